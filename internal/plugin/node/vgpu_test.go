// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// A vGPU that a claim has leaves its GPU as it is, and one that somebody else has made takes its place. Those of other
// types are blocked.
func TestVGPUs(t *testing.T) {
	const (
		four, eight = "gpu-0-vgpu-a16-4q-0=gpu-0-vgpu-a16-4q-0", "gpu-0-vgpu-a16-8q-0=gpu-0-vgpu-a16-8q-0"
		whole       = "gpu-0=GPU-0, gpu-1=GPU-1, gpu-0-vfio=GPU-0, " + four + ", " + eight
	)
	l := newVMNode(t)
	types := []gpu.VGPUType{{Name: "A16-4Q", Memory: 4 << 30, Max: 1}, {Name: "A16-8Q", Memory: 8 << 30, Max: 1}}
	l.devices[0].VGPUs = &gpu.VGPUs{Types: types}
	blocked := func(when, want string) { // of the other type
		t.Helper()
		if d, _ := l.Inventory().Find("gpu-0-vgpu-a16-8q-0"); d.Blocked != want {
			t.Errorf("%s: got blocked %q, want %q", when, d.Blocked, want)
		}
	}
	l.is("nobody has one", whole+"; gpu-0 gpu-1")
	blocked("nobody has one", "")
	l.devices[0].VGPUs = &gpu.VGPUs{Types: types, Existing: []gpu.VGPU{{Parent: "GPU-0", Type: types[0], MDev: "u1"}}}
	byHand := "gpu-1=GPU-1, gpu-0-vgpu-u1=gpu-0-vgpu-u1, " + four + ", " + eight + " blocked; gpu-1 gpu-0"
	l.is("somebody has made one", byHand)
	blocked("somebody has made one", "the GPU has vGPUs of type A16-4Q")
	rec := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "vm", UID: "vm"},
		Phase: checkpoint.Prepared, Plan: sharing.Plan{Assignments: []sharing.Assignment{{
			Device: "gpu-0-vgpu-a16-4q-0", GPU: "GPU-0", VFIO: &sharing.AssignedVFIO{VGPU: &sharing.AssignedVGPU{
				Type: "A16-4Q", UUID: "u1", Made: true}}}}}}
	if err := l.records.Put(rec); err != nil {
		t.Fatal(err)
	}
	l.is("a claim has it", whole+" blocked; gpu-0 gpu-1")
	blocked("a claim has it", "the GPU has vGPUs of type A16-4Q")
	l.restart(l.Options)
	l.is("the plugin starts anew", whole+" blocked; gpu-0 gpu-1")
	l.release(rec)
	l.is("its record is lost", byHand)
	l.devices[0].VGPUs = &gpu.VGPUs{Types: types}
	l.is("it is removed", whole+"; gpu-0 gpu-1")
}
