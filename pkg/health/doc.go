// SPDX-License-Identifier: Apache-2.0

// Package health knows what can be wrong with a GPU, what follows from it, and what is wrong at the moment.
//
// A Cause is what is wrong: an XID, or something that NVML or the kernel reports. A Rule has its Effect, which is that
// of a taint, and its Recovery, which ends it. Policy.For returns the rule of the administrator, or that of the table
// of defaults: conditions in policy.go, and NVIDIA's XID catalog in xids.go. State (state.go) has the Conditions:
// what is or was wrong with a Subject, a GPU or a partition. See, Answered, Counted and Lost begin conditions.
// Answered, Lost, Reset, Booted, Elapsed, Gone and Clear end them. State.Of returns those of a device. Saved is the
// state on disk, with the rules in force (store.go); Lines formats it for people. Files in the plugin's directory are
// requests of people: RequestClear and RequestRelease.
//
// What must hold:
//   - State does no I/O, and its methods are given the time. Only store.go reads and writes files.
//   - No default evicts pods (TestTableOfDefaults). An XID without an entry has a rule, too (Policy.For).
//   - A cause that the GPU can be asked about (answered) ends when the GPU no longer reports it, and not after a time.
//     An answer that does not tell ends nothing (unknown).
//   - A silent fault (silent.go) is found by comparison with what the GPU was, and with others of its model. Two looks
//     in succession must see it (TestSilentFaults). No healthy GPU is accused (gpuhealth: TestPlantedFaults).
//   - When a condition keeps coming back, its cause must be gone for longer each time before it ends, up to 24 h
//     (Condition.Quiet, TestQuiet).
//   - Many events of one cause are one condition (TestStorm). At most 500 conditions are remembered, unless more are
//     active (TestMemoryIsBounded).
//   - A clock that was ahead prolongs neither a condition nor a request to close NVML (TestClamp, TestReleaseRequest).
//   - Instances that save the state lose nothing of each other, if they do it within Locked (TestLocked).
//
// Most tests play scripts of events, answers and times to a State: TestConditionsBeginAndEnd.
package health
