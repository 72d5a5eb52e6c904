// SPDX-License-Identifier: Apache-2.0

// Package sharing plans how a claim uses its allocated GPUs: settings, partitions, limits and MPS daemons. It only
// decides and changes nothing: package claims carries a plan out.
//
// NewPlan makes a Plan of the allocation's results, the inventory of the node, and the plans of other claims (Holder).
// For each result, assign finds the device and makes an Assignment, with the share, partition, settings and Isolation.
// kindOf says which function does it (assign.go, vfio.go): useWhole, usePartition, useFraction, useReplica,
// useUnlimited or assignVFIO. Then fits checks it beside the other holders of the GPU (share.go). Each kind of
// isolation has a file of its own: isolation_mps.go, isolation_hook.go and isolation_cgroup.go. DryRun does the same
// for devices that nobody holds. Plan.CheckContainer refuses containers that could not be kept within their limits.
// State and StateWithout say what a physical GPU needs while a claim holds it and after its release (state.go); Daemons
// says which MPS daemons run.
//
// What must hold:
//   - A plan is for exactly the devices of the claim. The same input gives the same plan, also after it was stored
//     (FuzzClaim). It is part of the record on disk, so later versions must still read its JSON.
//   - A device has several holders only if all have shares of one kind and need the same settings and isolation. What
//     they hold together is not more than the device has, nor more than 48 clients of MPS (TestShares,
//     TestClientsOfMPS).
//   - Every problem is reported: the error joins a Refusal for each refused result (TestNewPlan).
//   - A process has one set of limits and one MPS daemon (OneSetOfLimits, TestContainersWithOtherClaims).
//   - A daemon's limit is never below that of one of its clients (TestDaemonOfSeveralClaims).
//   - Admin access holds nothing. The monitor device needs it.
//   - A GPU that moved on the PCI bus is no longer used under its former name (moved.go).
//
// The tests plan claims one after the other in tables (TestShares, TestState); FuzzDecode looks for configurations that
// api.Decode accepts and NewPlan refuses.
package sharing
