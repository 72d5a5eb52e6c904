// SPDX-License-Identifier: Apache-2.0

// Package admission validates claims, claim templates and device classes in webhooks. An error means that no node, of
// now or later, can serve the claim. A warning means that the claim may fail, or has to wait.
//
// Validator.Handle (webhook.go) decodes the object. For a claim, the Expander first collapses a list that the webhook
// of package strongest has made, so that paths are those that the user wrote. Checker.Claim (check.go) returns a
// Verdict. It decodes the configurations of the driver, validates each alternative of each request (checkAlternative),
// the limit for GPUs over the network (overNetwork), and what concerns several requests (checkTogether). meant.go finds
// what the user cannot have meant: names that nothing has, and amounts of no use. Without problems, dryRun (dryrun.go)
// lets the node's own code plan the claim, with devices of each kind that a request could get. Checker.DeviceClass
// validates the configurations and selectors of a class. Pods (pod.go) warns of pods that each node would refuse.
// OptionalFields (optional.go) is a mutating webhook: it lists in an annotation the fields that need a feature gate,
// and DroppedFields warns of those that the API server has dropped afterwards.
//
// What must hold:
//   - Whatever depends on the published devices is a warning, and never an error: a node may be added later.
//   - Requests for classes of other drivers are not validated, but for those for GPUs over the network.
//   - Checker makes no API calls; it reads cluster.View. Objects change meanwhile (TestWebhooksDuringChanges). Pods
//     reads the templates that a pod names, at most maxClaims.
//   - The work does not grow with the numbers in a claim (TestTheWorkDoesNotGrowWithTheCounts), it stops when the time
//     is over (TestManySelectors), and a Verdict has at most maxTexts problems and as many warnings. What could not be
//     checked in time is a warning.
//   - A template can be applied again as it was written (TestOptionalFieldsOnUpdate).
//
// Tests are rows of claims, or pods, and the expected texts (TestClaim, TestPods); FuzzWebhooks looks for objects that
// make a webhook panic.
package admission
