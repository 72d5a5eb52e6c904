// SPDX-License-Identifier: Apache-2.0

// Package why explains why a pod or a ResourceClaim is not scheduled, with the smallest change with which it would be.
// It has no client.
//
// NewExplainer prepares a snapshot; Explainer.Pod and Explainer.Claim answer about what exists, and Fit about a
// manifest. An Answer has one cause. Causes are looked for in the order in which a user can do something about them:
// the pod has ended or has its node (pod.go), a claim or a class does not exist, a quota, a mistake in a selector
// (mistakes.go), the nodes that the pod excludes, and last the devices, request by request (cause.go). Whether it fits
// is asked of package schedule, and what to change of package advice.
//
// Equal pods get equal answers: an answer about a workload without names is kept, and the names are put in afterwards
// (schedule.Workload.Anonymous). Answer.Text writes it for people; what objects say cannot begin a line of its own.
// Random tests judge answers with Kubernetes' allocator (TestRandomClaims) and its scheduler
// (TestRandomClaimsOnScheduler, make why-scheduler); docs/project/results/why-judged.md has the results.
package why
