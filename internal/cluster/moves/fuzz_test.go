// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"math/rand/v2"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

// FuzzDefrag plans with a claim, its template and a pod that the API server has not validated. Nothing panics, and the
// pods that move have a controller.
func FuzzDefrag(f *testing.F) {
	for seed := range uint64(6) {
		f.Add(randomClaim(rand.New(rand.NewPCG(seed, 0))), "{}", "{}")
	}
	f.Add("requests: [{name: a, firstAvailable: [{}]}]",
		"{allocation: {devices: {results: [{}, {device: gpu-3b-00-0}]}}}",
		"{resourceClaims: [{}, {name: x-0, resourceClaimTemplateName: x-0}]}")
	f.Add("requests: [{name: a, exactly: {deviceClassName: "+driver+", allocationMode: ExactCount, count: 1}}]", "{}",
		"{nodeName: ''}")
	f.Fuzz(func(t *testing.T, devices, status, spec string) {
		s := onNodes(t, "a", "m")
		run(t, s, "x", "ReplicaSet", "a/0 5Gi")
		run(t, s, "y", "", "a/1 6Gi")
		template := &s.Templates[0].Spec.Spec
		template.Devices = resourceapi.DeviceClaim{}
		if yaml.Unmarshal([]byte(devices), &template.Devices) != nil ||
			yaml.Unmarshal([]byte(status), &s.Claims[0].Status) != nil ||
			yaml.Unmarshal([]byte(spec), &s.Pods[0].Spec) != nil {
			return
		}
		d, err := Defrag(t.Context(), s, DefragOptions{Drivers: []string{driver}, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range d.Moves {
			if m.Pod != "x" {
				t.Errorf("%s moves, and has no controller", m.Pod)
			}
		}
	})
}
