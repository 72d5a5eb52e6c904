// SPDX-License-Identifier: Apache-2.0

// Package moves says which pods end or move so that others get devices: Preempt for a pod of higher priority, Defrag so
// that whole GPUs or nodes are free. It evicts nobody.
//
// Both take pods away from a snapshot and ask package schedule what fits then. Preempt looks for the cheapest set of
// pods of a node, with the pods of other nodes that are evicted with them (unit), without which one pod fits there.
// Nodes are tried in the order of a lower bound of that cost, until the next bound is no lower than the best set. How
// many sets of a node are compared is bounded (exactAsked, maxSets). Defrag knows which pods must go, the holders of a
// GPU or node, and places each of them elsewhere, on the fullest GPU first; candidates with the fewest pods come first.
//
// What must hold: a pod ends only for one that then starts (schedule.Question.Starts). Preempt evicts no static pod and
// respects budgets; Defrag moves no pod that an annotation or its controller keeps. TestRandomPreemptions compares with
// an oracle that tries every set of victims; TestDefragRandom replays each plan with Kubernetes' allocator and looks
// for a better one.
package moves
