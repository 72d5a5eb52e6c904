// SPDX-License-Identifier: Apache-2.0

// Package advice finds the smallest changes with which a workload that waits would be scheduled.
//
// Each Proposal is a change of one thing in a claim or pod, or a claim to wait for. It has levels from mild to loose,
// such as the values that devices have beyond a limit. Find tries each proposal alone, at its loosest level, unless
// another of the same thing has helped. Only if none helps, it tries sets: the loosest proposal for each thing, with
// other claims that end, without those that are not needed. What helps is made as mild as it can be, by halving the
// levels, or one by one where a looser level may admit less (Proposal.try). Fewer changes come first, then those of a
// kind that is preferred (kinds).
//
// A change counts only if the workload also starts with it (schedule.Question.Starts), unless there is no other. A
// search ends after SearchAsked questions or searchTimeout, and then says what it has not tried. The random tests of
// package why judge the advice with the allocator (TestRandomClaims) and the scheduler: with the advice the pod is
// placed, with less it is not. TestPage compares docs/use/why.md with the kinds and the limits.
package advice
