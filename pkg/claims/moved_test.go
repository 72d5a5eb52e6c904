// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// After a reboot with one card more, a GPU has another place on the PCI bus, so it has another name. A claim from
// before the reboot knows it by the former one.
func TestMovedGPUs(t *testing.T) {
	const (
		moved = "error: device gpu-1 (GPU-1): the GPUs have other places on the PCI bus now, and so other names; " +
			"delete the pod, so that it is scheduled anew: no such device on this node"
		exclusive = "GPU-1: time slice Default, compute mode EXCLUSIVE_PROCESS\n"
		long      = "GPU-1: time slice Long, compute mode DEFAULT\n"
		common    = "\ncdi common NVIDIA_VISIBLE_DEVICES=void"
		bHas9     = "b Prepared boot-1 gpu-9\ncdi b-gpu-9-t /dev/nvidia0 <dir>/mps/gpu-9/pipe " +
			"CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-9/pipe CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 " +
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"
	)
	for _, row := range []struct{ name, script, result, want string }{
		{"its claim cannot use it any more", "prepare a gpu-1; reboot; move gpu-1 gpu-9; prepare a gpu-1", moved,
			"a Prepared boot-0 gpu-1"},
		{"nor is anything changed on it for that claim",
			"prepare a gpu-1#s:5Gi/30; reboot; move gpu-1 gpu-9; restart", "error: resume claim ns/a" +
				strings.TrimPrefix(moved, "error"), "a Prepared boot-0 gpu-1"},
		{"the claim ends, and leaves the GPU to another one",
			"prepare a gpu-1#s:5Gi/30; reboot; move gpu-1 gpu-9; prepare b gpu-9#t:5Gi/30; unprepare a", "ok",
			exclusive + "daemon gpu-9 30% GPU-1=5120Mi\n" + bHas9 + common},
		{"also if both have a time slice", "prepare a gpu-1 Long; reboot; move gpu-1 gpu-9; prepare b gpu-9 Long; " +
			"unprepare a", "ok", long + "b Prepared boot-1 gpu-9\ncdi b-gpu-9 /dev/nvidia0" + common},
		{"a partition at the same place of the other claim stays",
			"prepare a gpu-1-mig-1g10gb-0; reboot; move gpu-1 gpu-9; prepare b gpu-9-mig-1g10gb-0; unprepare a", "ok",
			"GPU-1: 1g.10gb at 0, MIG-\nGPU-1: mig\nb Prepared boot-1 gpu-9-mig-1g10gb-0\n" +
				"cdi b-gpu-9-mig-1g10gb-0 /dev/nvidia0 PARTITION=1g.10gb" + common},
		{"GPUs that have changed places", "prepare a gpu-1#s:5Gi/30; reboot; move gpu-1 gpu-9; move gpu-2 gpu-1; " +
			"prepare b gpu-1#t:5Gi/30; unprepare a", "ok",
			"GPU-2: time slice Default, compute mode EXCLUSIVE_PROCESS\ndaemon gpu-1 30% GPU-2=5120Mi\n" +
				"b Prepared boot-1 gpu-1\n" +
				strings.NewReplacer("gpu-9", "gpu-1", "nvidia0", "nvidia1").Replace(
					bHas9[strings.Index(bHas9, "cdi"):]) + common},
		{"a claim of two GPUs, of which one has moved while the machine ran",
			"prepare a gpu-1,gpu-2 MPS; move gpu-1 gpu-9; reset; restart; prepare b gpu-9 Long; unprepare a", "ok",
			long + "b Prepared boot-0 gpu-9\ncdi b-gpu-9 /dev/nvidia0" + common},
		{"its MPS daemon ends", "prepare a gpu-1,gpu-2 MPS; reboot; move gpu-2 gpu-9; restart",
			"error: resume claim ns/a" + strings.NewReplacer("gpu-1", "gpu-2", "GPU-1", "GPU-2").Replace(
				strings.TrimPrefix(moved, "error")), "a Prepared boot-0 gpu-1,gpu-2"},
		{"one GPU is replaced by another", "prepare a gpu-1#s:5Gi/30; reboot; unplug gpu-1; move gpu-2 gpu-1; " +
			"unprepare a", "ok", ""},
		{"then its claim cannot use that one, which may not be what it asks for",
			"prepare a gpu-1; reboot; unplug gpu-1; move gpu-2 gpu-1; prepare a gpu-1", "error: device " +
				"gpu-1 (GPU-1): there is another GPU in its place now; delete the pod, so that it is scheduled " +
				"anew: no such device on this node", "a Prepared boot-0 gpu-1"},
		{"it is back at its place", "prepare a gpu-1; reboot; move gpu-1 gpu-9; restart; reboot; move gpu-9 gpu-1; " +
			"restart", "ok", "a Prepared boot-2 gpu-1\ncdi a-gpu-1 /dev/nvidia0" + common},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newFixture(t)
			result := w.run(row.script)
			if result != row.result {
				t.Errorf("\ngot  %s\nwant %s", result, row.result)
			}
			if diff := cmp.Diff(w.String(), row.want); diff != "" {
				t.Error(diff)
			}
		})
	}
}
