// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A vGPU is a part of its GPU, as a partition is: quotas count its memory and its part of the GPU.
func TestVGPUs(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "n", Profile: "a16-x4"})
	request := func(selector string) *resourceapi.ResourceClaim {
		return clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: vgpu.nvidia.com"+selector+"}}]")
	}
	const of4Q = `, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == 'A16-4Q'"}}]`
	for name, row := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"of a type":                {request(of4Q), "gpus=1 memory=4096Mi cores=20 tflops=4"},
		"of any type: the largest": {request(""), "gpus=1 memory=16384Mi cores=100 tflops=18"},
		"an allocated one": {claim("vm", "n", "gpu-3d-00-0-vgpu-a16-4q-2"),
			"gpus=1 memory=4096Mi cores=20 tflops=4"},
	} {
		if got := asText(v.AmountOf(t.Context(), row.claim)); got != row.want {
			t.Errorf("%s: got %s, want %s", name, got, row.want)
		}
	}
	v.SetClaim(claim("vm", "n", "gpu-3d-00-0-vgpu-a16-4q-2"))
	for g, held := range v.GPUs {
		switch {
		case g.Name != "gpu-3d-00-0":
			if idle := g.Idle(g.Use(), nil); idle != 1000 || len(held) > 0 {
				t.Errorf("%s: idle %d, held %v", g.Name, idle, held)
			}
		case len(held) != 1 || held[0].Profile != "A16-4Q" || held[0].Memory != 4<<30:
			t.Errorf("%s: held %+v", g.Name, held)
		default:
			if idle := g.Idle(g.Use(), nil); idle < 700 || idle > 750 { // 4096 of 15356 MiB are held
				t.Errorf("%s: idle %d", g.Name, idle)
			}
		}
	}
	isVGPU := func(k *cluster.DeviceKind) bool { return k.Type() == gpu.TypeVGPU }
	if i := slices.IndexFunc(v.Kinds(), isVGPU); i < 0 || v.Kinds()[i].String() != "vGPU A16-16Q of NVIDIA A16" {
		t.Errorf("kinds: got %v", v.Kinds())
	}
}
