// SPDX-License-Identifier: Apache-2.0

// Package cluster is the model of the cluster's GPUs: the devices of ResourceSlices, the claims that hold them, device
// classes and DeviceTaintRules. It has no client: others read or watch the objects, and give them to it.
//
// There are two forms of it. A Snapshot (snapshot.go) has the objects at one time, as far as the reader may read them;
// package read makes it for kubectl gpu and for plans. A View (view.go) follows one driver for the webhooks and metrics
// of the controller: informers call SetSlice, SetClaim, SetClass and SetTaintRule, and the Delete functions.
//
// SetSlice gives each device its physical GPU (gpus.go) and its DeviceKind (kind.go), which devices share that differ
// only in identity. SetClaim (claims.go) adds what the claim holds to the GPU; measure (use.go) computes its Use. Most
// answers loop over kinds and not over devices: Accepts (selectors.go) evaluates a CEL selector for a kind, Available
// (available.go) counts GPUs of which new claims can get something, and AmountOf (amount.go) returns what a claim
// takes, for a GPUQuota (quota.go). SlimSlice and SlimClaim (slim.go) drop what a View does not read, before the
// informers store an object.
//
// What must hold:
//   - An object that was given to a View does not change any more. Callers change nothing that it returns.
//   - The functions that GPUs, Claims and Nodes call while they iterate must not call the View: it is locked.
//   - What is unknown stays unknown. A missing key of an Amount is not 0, and Exceeded takes it for too much. A
//     resource that could not be read is in Unread; Unknown and Err say so.
//   - The counts after each change are those of a walk over all GPUs (TestAvailable).
//   - What users write at length needs bounded memory (TestSlimClaimIsBounded). An expression that is too long to
//     evaluate counts as accepted.
//
// Tests build a View of simulated nodes and compare it as text: TestView, TestKinds, TestAmountOfPendingClaims.
package cluster
