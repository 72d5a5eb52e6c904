// SPDX-License-Identifier: Apache-2.0

// Package preempt makes room for pods of higher priority that wait for devices: it evicts the cheapest pods of lower
// priority, and keeps their devices for the pod. The scheduler preempts for CPU and memory, and not for claims.
//
// Preemptor.Start runs rounds on the leader. Preemptor.round (preempt.go) first calls keep (hold.go), which goes on
// with what was begun. Then it takes the pods that are due, the highest priority first, reads the cluster (read.go),
// and plans with moves.Preempt. ask (refused.go) asks the API server in a dry run whether it would evict the victims;
// allowed plans again without those that it refuses. begin creates a DeviceTaintRule for each device that is kept, sets
// the nominated node, and evicts. The webhook (tolerator in webhook.go) has let the claims of the pod tolerate this
// taint. A hold ends when the pod has a node or is gone (end), or has not used the devices in time (expire).
//
// What must hold:
//   - What is decided is in the cluster before a pod is evicted: the rules name the pod and the victims. Another leader
//     reads them (readHolds) and goes on (TestNextLeader). Before Kubernetes 1.37 there are no rules, and nothing is
//     kept.
//   - A preemption begins only after the dry run has allowed all evictions. Nobody is evicted for a pod that has got a
//     node meanwhile, or whose devices cannot be kept (TestAbandoned).
//   - Rules may be forged. Victims read from rules must have a lower priority than the pod (compare, TestForgedRule).
//   - If a preemption cannot begin or is not used in time, abandon removes the nomination and the rules, and keep tries
//     again what fails (TestGivenBack).
//   - An owner whose pods do not use a preemption pauses, each time twice as long up to a day (pause.go, TestNotUsed).
//   - Events tell users of another namespace no name of a pod, and never the UID for which devices are kept (nameFor).
//
// Tests run rounds on a simulated node, and compare the writes in their order as text: TestPreemption,
// TestRefusedVictim.
package preempt
