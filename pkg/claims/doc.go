// SPDX-License-Identifier: Apache-2.0

// Package claims prepares GPUs for claims and releases them. Only this package knows the order of the steps:
//
//	Prepare:   decide → write the record (Preparing) → change the hardware → wait for daemons →
//	           write the record (Prepared) → make the directory for local IPC → write the CDI spec → answer
//	Unprepare: write the record (Releasing) → remove the CDI spec → change the hardware back → delete the record
//
// The two recipes are tx.prepare and tx.release. If nothing changes with the claim, because another claim on the GPU
// needs the same, and no daemon has to be waited for, the record is written once. The release then begins without one,
// and removes the CDI spec last: see sharing.Alters. Every step may be repeated, so a second call of Prepare or
// Unprepare completes an interrupted one. Each step runs through steps.Do, so that observers can follow it.
//
// What must hold:
//   - A crash after any step, followed by the same call or the opposite one, ends as without the crash (TestCrashes,
//     TestCrashesBesideAnUnreadableRecord).
//   - A GPU is never in two shapes at once (TestEveryTwoShapesOfAGPU).
//   - A GPU that cannot be changed back holds neither the pod nor other claims (TestBrokenGPUs).
//   - A GPU that has become unfit since its allocation is refused, and claims that hold it go on (TestUnfitGPU).
//   - Records of earlier versions are released as they were prepared (TestKeptRecords).
package claims
