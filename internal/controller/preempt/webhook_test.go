// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"encoding/json"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

// The claim of a pod tolerates the taint of what is kept for it, in each request for devices of the driver.
func TestWebhook(t *testing.T) {
	handler := tolerator{clustertest.New(t, node)}
	const ofPod = "metadata: {ownerReferences: [{kind: Pod, name: p, uid: uid-of-p, apiVersion: v1, " +
		"controller: true}]}\n"
	for _, row := range []struct{ name, claim, want string }{
		{"one request", ofPod + "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: " +
			"gpu.nvidia.com}}]}}", "uid-of-p"},
		{"a request with a toleration", ofPod + "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: " +
			"gpu.nvidia.com, tolerations: [{key: x, value: own}]}}]}}", "own uid-of-p"},
		{"alternatives", ofPod + "spec: {devices: {requests: [{name: gpu, firstAvailable: [{name: a, " +
			"deviceClassName: mig.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com}]}]}}", "uid-of-p uid-of-p"},
		{"another driver's request", ofPod + "spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: " +
			"nic.example.com}}, {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}", "uid-of-p"},
		{"a claim of a user", "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}",
			""},
		{"a pod that is not the controller", strings.Replace(ofPod, ", controller: true", "", 1) +
			"spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := webhooktest.Request(t, "ResourceClaim", row.claim)
			var after resourceapi.ResourceClaim
			got := handler.Handle(t.Context(), req)
			if err := json.Unmarshal(webhooktest.Patched(t, req.Object.Raw, got), &after); err != nil || !got.Allowed {
				t.Fatal(got, err)
			}
			var values []string
			for _, r := range after.Spec.Devices.Requests {
				if r.Exactly != nil {
					for _, one := range r.Exactly.Tolerations {
						values = append(values, one.Value)
					}
				}
				for _, sub := range r.FirstAvailable {
					for _, one := range sub.Tolerations {
						values = append(values, one.Value)
					}
				}
			}
			if got := strings.Join(values, " "); got != row.want {
				t.Errorf("got tolerations of %q, want %q", got, row.want)
			}
		})
	}
	if got := handler.Handle(t.Context(), webhooktest.Request(t, "ResourceClaim", "spec: 5")); got.Allowed {
		t.Error("got it allowed, want an error about the claim")
	}
}
