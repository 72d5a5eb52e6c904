// SPDX-License-Identifier: Apache-2.0

// Package convert turns pods that ask for GPUs in the way of older sharing systems into pods with claims: in a webhook
// of the controller, and in manifests with the command convert. AddTo adds both to the controller's program.
//
// Each family, which is one system or several with the same names, has a file such as hami.go or kai.go with what it
// reads of a container. The rest is common: converter.convertPod (convert.go) finds the family of the pod; read returns
// a gpuRequest for each container; beside.check (beside.go) looks at the rest of the pod; claimFor makes the spec of
// the claim (claim.go). The result is a conversion. Webhook.Handle (webhook.go) writes it into the pod: apply adds the
// name of a ResourceClaimTemplate, and mark annotates the spec and the original resources (pod.go). The leader creates
// the template when it sees the pod (Webhook.Reconcile in templates.go); templateCollector deletes unused ones. The
// command (command.go) writes manifests with their templates (manifest.go).
//
// What must hold:
//   - The webhook creates nothing: a pod may still be rejected.
//   - The annotation of a pod may come from anybody. The leader creates only templates for GPUs of the driver, without
//     admin access and tolerations (converter.check, TestForgedAnnotation). No foreign template is used
//     (TestForeignTemplate).
//   - A pod is converted once (TestConvertedOnce). Its manifest can be applied again, and an update that asks for
//     something else is refused (restore, TestConvertedPodIsAppliedAgain).
//   - A pod of a family that cannot be converted is refused. If it can be later, it waits with a warning, unless it
//     would start without a GPU (converter.wait).
//   - Work and texts are bounded: the API server has not validated the pod (TestTheWorkDoesNotMultiply).
//   - A document in which nothing is converted is written as it is (TestManifestsThatAreNotKnown).
//
// TestConvert runs the cases in testdata; FuzzConvert checks that what is converted is valid.
package convert
