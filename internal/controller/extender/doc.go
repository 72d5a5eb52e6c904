// SPDX-License-Identifier: Apache-2.0

// Package extender scores nodes for a scheduler, which asks it over HTTPS: it predicts which GPUs a pod would get on
// each node, and package placement says what that costs the cluster. Without it, pods are scheduled by other scores.
//
// Extender.Prioritize answers for one pod. ask (predict.go) reads what it asks for, and waits for a claim that the
// controller has not read yet. node.predict gives devices out as fit.Estimate does. usage (usage.go, follow.go) knows
// the CPU of nodes and pods, and the pods that were proposed for a node and are not seen there yet; demand (demand.go)
// what pods ask for beside GPUs. scale (scale.go) makes points of the costs.
//
// What must hold:
//   - The GPUs that are predicted are those that the allocator gives (TestReservedGPUs, TestEstimateIsPlace).
//   - What was proposed counts as taken until it is seen or does not come true, and nothing counts twice
//     (TestProposals).
//   - Only the best node has MaxScore, and the same nodes give the same answer in any order (TestTies). Points are
//     differences in cost: other nodes do not change them (TestPoints).
//   - Until slices, claims, pods and nodes are known, the status is 503 (TestHandler). An answer for which the
//     scheduler does not wait any more proposes nothing (TestAnAnswerThatIsTooLateProposesNothing).
//
// Tests ask a world of simulated nodes for scores, and let Kubernetes' allocator place the pods.
package extender
