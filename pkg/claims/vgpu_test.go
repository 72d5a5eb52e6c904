// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nodeOfVGPU is the device node of a vGPU that the driver has made, whose UUID depends on the claim.
var nodeOfVGPU = regexp.MustCompile(`/dev/vfio/[0-9a-f]{2}\b`)

func TestVGPUs(t *testing.T) {
	const (
		four    = "gpu-1-vgpu-a16-4q-0"
		byHand  = "gpu-1-vgpu-ee-GPU-1"
		made    = "vgpu A16-4Q of 0000:01:00.0\n"
		rec     = "a Prepared boot-0 " + four + "\n"
		cdi     = "cdi a-" + four + " /dev/vfio/N NVIDIA_VISIBLE_DEVICES=void"
		hasFour = made + rec + cdi
	)
	for _, row := range []struct {
		name, script, result, want string
	}{
		{"a claim gets one, which is made for it", "prepare a " + four, "r0=node/" + four, hasFour},
		{"prepare twice", "prepare a " + four + "; prepare a " + four, "r0=node/" + four, hasFour},
		{"a restart changes nothing", "prepare a " + four + "; restart", "ok", hasFour},
		{"nothing is left of it", "prepare a " + four + "; unprepare a; unprepare a", "ok", ""},
		{"there is no room", "busy yes; prepare a " + four,
			"error: GPU GPU-1: no room: the GPU is in use", "a Preparing boot-0 " + four},
		{"the claim ends before there is room", "busy yes; prepare a " + four + "; unprepare a", "ok", ""},
		{"a program has it open", "prepare a " + four + "; busy yes; unprepare a",
			"error: GPU GPU-1: process 7 (qemu): the GPU is in use", made + "a Releasing boot-0 " + four},
		{"and has ended", "prepare a " + four + "; busy yes; unprepare a; busy no; restart", "ok", ""},
		{"another of its type", "prepare a " + four + "; prepare b gpu-1-vgpu-a16-4q-1",
			"r0=node/gpu-1-vgpu-a16-4q-1", made + made + rec + "b Prepared boot-0 gpu-1-vgpu-a16-4q-1\n" + cdi +
				"\ncdi b-gpu-1-vgpu-a16-4q-1 /dev/vfio/N NVIDIA_VISIBLE_DEVICES=void"},
		{"one of another type", "prepare a " + four + "; prepare b gpu-1-vgpu-a16-8q-0", "error: request r0: device " +
			"gpu-1-vgpu-a16-8q-0 is held by claim ns/a (UID a), which has " + four + ": device in use", hasFour},
		{"the whole GPU", "prepare a " + four + "; prepare b gpu-1", "error: request r0: device gpu-1 is held by " +
			"claim ns/a (UID a), which has " + four + ": device in use", hasFour},
		{"the whole GPU for a virtual machine", "prepare a " + four + "; prepare b gpu-1-vfio", "error: request r0: " +
			"device gpu-1-vfio is held by claim ns/a (UID a), which has " + four + ": device in use", hasFour},
		{"a partition", "prepare a gpu-1-mig-1g10gb-0; prepare b " + four, "error: request r0: device " + four +
			" is held by claim ns/a (UID a), which has gpu-1-mig-1g10gb-0: device in use", aSlice},
		{"it cannot be monitored", "prepare a " + four + "!", "error: request r0: device " + four + " is for virtual " +
			"machines, so it cannot be monitored; ask for the device monitor: configuration refused", ""},
		{"after a reboot it is made again", "prepare a " + four + "; reboot; restart", "ok",
			strings.Replace(hasFour, "boot-0", "boot-1", 1)},
		{"after a reboot nothing is removed", "prepare a " + four + "; reboot; vgpu gpu-1; unprepare a", "ok",
			"vgpu by hand"},
		{"one that somebody else has made", "vgpu gpu-1; prepare a " + byHand, "r0=node/" + byHand,
			"vgpu by hand\na Prepared boot-0 " + byHand + "\ncdi a-" + byHand +
				" /dev/vfio/N NVIDIA_VISIBLE_DEVICES=void"},
		{"stays", "vgpu gpu-1; prepare a " + byHand + "; unprepare a", "ok", "vgpu by hand"},
		{"beside one of its type", "vgpu gpu-1; prepare a " + byHand + "; prepare b " + four, "r0=node/" + four,
			"vgpu A16-4Q of 0000:01:00.0\nvgpu by hand\na Prepared boot-0 " + byHand + "\nb Prepared boot-0 " + four +
				"\ncdi a-" + byHand + " /dev/vfio/N NVIDIA_VISIBLE_DEVICES=void\ncdi b-" + four +
				" /dev/vfio/N NVIDIA_VISIBLE_DEVICES=void"},
		{"an unreadable record keeps none", "prepare b gpu-1; prepare a gpu-2-vgpu-a16-4q-0; truncate b; unprepare a",
			"ok", "unreadable b.json\ncdi b-gpu-1 /dev/nvidia0" + common},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			got := w.run(row.script)
			if got != row.result {
				t.Errorf("got  %s\nwant %s", got, row.result)
			}
			if diff := cmp.Diff(nodeOfVGPU.ReplaceAllString(w.String(), "/dev/vfio/N"), row.want); diff != "" {
				t.Errorf("state: got - want +\n%s", diff)
			}
		})
	}
}
