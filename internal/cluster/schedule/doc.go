// SPDX-License-Identifier: Apache-2.0

// Package schedule asks package fit about a snapshot of a cluster: on which nodes does a pod with its claims fit, with
// which devices, and what does each device lack? Answers of kubectl gpu why, advice, preemption and defragmentation are
// built on it.
//
// New prepares a Cluster from a cluster.Snapshot. WorkloadOf makes a Workload of a pod: its claims without devices,
// also those that Kubernetes has not made yet, with where each is written down (Origin). Question.FitsOn says whether a
// Workload fits on a Group, which stands for nodes that are equal in all that the Workload reads (Group.print,
// Workload.nodePrint); it asks the filters of the scheduler that are simulated (Workload.Excludes), quotas (OverQuota),
// a bound that is cheaper than the allocator (Most), Kubernetes' allocator (allocator.Classes.Place) and, with
// Question.Starts, what the node would refuse (fit.Refusal). Question.Compare says of each device why a request does
// not get it.
//
// What must hold:
//   - An answer about a Group holds for each of its nodes (TestGroups and TestRandomClaims of package why).
//   - A bound is never below what the allocator gives (TestMostIsBound).
//   - What users choose is bounded: the size of a workload (Workload.TooLarge), the time of a question, and how many
//     devices are kept in memory (Limits). What is not known in time is ErrLimit; in a search (Question.MaxAsked) it
//     counts as no, and Question.Slow counts it.
//   - With HideOthers, causes and details name no object of another namespace.
//
// What it does not simulate of the scheduler is listed by Notes.
package schedule
