// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

const (
	common = "\ncdi common NVIDIA_VISIBLE_DEVICES=void"
	aHas1  = "a Prepared boot-0 gpu-1\ncdi a-gpu-1 /dev/nvidia0" + common
)

// State of a claim a with gpu-1 and local IPC.
const aHasIPC = "ipc a 64Mi\na Prepared boot-0 gpu-1\n" +
	"common <dir>/ipc/a /run/nvidia-dra/local-ipc NVIDIA_DRA_LOCAL_IPC_DIR=/run/nvidia-dra/local-ipc\n" +
	"cdi a-gpu-1 /dev/nvidia0" + common

// State of a claim a with 5 GiB and 30 % of gpu-1.
const (
	exclusive1 = "GPU-1: time slice Default, compute mode EXCLUSIVE_PROCESS"
	aSharesCDI = "cdi a-gpu-1-s /dev/nvidia0 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe " +
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"
	aShares = "a Prepared boot-0 gpu-1\n" + aSharesCDI
)

// State of a claim a with a partition of gpu-1.
const (
	aSliceCDI = "cdi a-gpu-1-mig-1g10gb-0 /dev/nvidia0 PARTITION=1g.10gb"
	aSlice    = "GPU-1: 1g.10gb at 0, MIG-\nGPU-1: mig\na Prepared boot-0 gpu-1-mig-1g10gb-0\n" + aSliceCDI + common
)

// State of a claim b with 5 GiB of gpu-1 and an unreadable record, and how errors name it.
const (
	bSharesCDI = "cdi b-gpu-1-t /dev/nvidia0 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe " +
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"
	bUnreadable = "<dir>/state/claims/b.json: unexpected end of JSON input; when no container of that claim runs any " +
		"more, remove the file: record is unreadable"
	notRestored = "error: the settings of its GPUs are not restored: may hold gpu-1: " + bUnreadable
)

// CDI devices of a claim m for the monitor device.
const (
	allNodes   = " /dev/nvidia0 /dev/nvidia1 /dev/nvidia2"
	monitorCDI = "cdi m-monitor" + allNodes
)

// aHas1After is aHas1 beside another claim's record and CDI device.
func aHas1After(record, device string) string {
	return "a Prepared boot-0 gpu-1\n" + record + "\ncdi a-gpu-1 /dev/nvidia0\n" + device + common
}

func TestScripts(t *testing.T) {
	for _, row := range []struct {
		name   string
		script string
		result string // of the last verb
		want   string // state of the node at the end
	}{
		{"a claim gets its GPU", "prepare a gpu-1", "r0=node/gpu-1", aHas1},
		{"a claim with local IPC has a directory that its containers share", "prepare a gpu-1 ipc", "r0=node/gpu-1",
			aHasIPC},
		{"that is gone with the claim", "prepare a gpu-1 ipc; unprepare a", "ok", common[1:]},
		{"and stays over a restart, as it was", "prepare a gpu-1 ipc; ipc off; restart; prepare a gpu-1 ipc",
			"r0=node/gpu-1", aHasIPC},
		{"it is made again after a reboot", "prepare a gpu-1 ipc; reboot; restart", "ok",
			strings.Replace(aHasIPC, "boot-0", "boot-1", 1)},
		{"and when somebody has unmounted it", "prepare a gpu-1 ipc; unmount a; prepare a gpu-1 ipc", "r0=node/gpu-1",
			aHasIPC},
		{"it stays while a container runs", "prepare a gpu-1 ipc; run a; unprepare a",
			"error: container main of pod 1 (process 7) still runs: the claim is released when it has ended", aHasIPC},
		{"a claim with local IPC is refused on a node without it", "ipc off; prepare a gpu-1 ipc",
			"error: the claim has a LocalIPCConfig, and the driver is installed with localIPC.size: 0", ""},
		{"a claim beside it has no directory", "prepare a gpu-1 ipc; prepare b gpu-2; unprepare a", "ok",
			"b Prepared boot-0 gpu-2\ncdi b-gpu-2 /dev/nvidia1" + common},
		{"the directory of a record that was removed by hand goes with the claim",
			"prepare a gpu-1 ipc; discard a; unprepare a", "ok", common[1:]},
		{"a GPU that is stuck keeps its record, and not the directory",
			"prepare a gpu-1-vfio ipc; stuck yes; unprepare a",
			"error: the settings of its GPUs are not restored: GPU GPU-1: reset: input/output error",
			"0000:01:00.0: vfio-pci\n0000:01:00.1: vfio-pci\na Releasing boot-0 gpu-1-vfio"},
		{"two requests, two GPUs", "prepare a gpu-2,gpu-1", "r0=node/gpu-2 r1=node/gpu-1",
			"a Prepared boot-0 gpu-1,gpu-2\ncdi a-gpu-2 /dev/nvidia1\ncdi a-gpu-1 /dev/nvidia0" + common},
		{"the environment of the claim reaches the container", "prepare a gpu-1 A=1", "r0=node/gpu-1",
			"a Prepared boot-0 gpu-1\ncdi a-gpu-1 /dev/nvidia0 A=1" + common},
		{"prepare twice", "prepare a gpu-1; prepare a gpu-1", "r0=node/gpu-1", aHas1},
		{"two claims on two GPUs", "prepare a gpu-1; prepare b gpu-2", "r0=node/gpu-2",
			"a Prepared boot-0 gpu-1\nb Prepared boot-0 gpu-2\ncdi a-gpu-1 /dev/nvidia0\ncdi b-gpu-2 /dev/nvidia1" +
				common},
		{"nothing is left of a claim that ends", "prepare a gpu-1; unprepare a", "ok", strings.TrimSpace(common)},
		{"unprepare twice", "prepare a gpu-1; unprepare a; unprepare a", "ok", strings.TrimSpace(common)},
		{"unprepare of a claim that nobody knows", "unprepare a", "ok", ""},
		{"a GPU in use is refused, its holder named, and nothing touched", "prepare a gpu-1; prepare b gpu-2,gpu-1",
			"error: request r1: device gpu-1 is held by claim ns/a (UID a): device in use", aHas1},
		{"a GPU given back can be had", "prepare b gpu-1; unprepare b; prepare a gpu-1", "r0=node/gpu-1", aHas1},
		{"a GPU that is gone is refused", "unplug gpu-1; prepare a gpu-1",
			"error: request r0: device gpu-1: no such device on this node", ""},
		{"a claim allocated anew loses what it had", "prepare a gpu-2; prepare a gpu-1", "r0=node/gpu-1", aHas1},
		{"a CDI file deleted by hand is made again by prepare", "prepare a gpu-1; lose claim_a; prepare a gpu-1",
			"r0=node/gpu-1", aHas1},
		{"the driver's too", "prepare a gpu-1; lose driver; prepare a gpu-1", "r0=node/gpu-1", aHas1},
		{"and by a restart", "prepare a gpu-1; lose claim_a; restart", "ok", aHas1},
		{"a restart changes nothing", "prepare a gpu-1; restart", "ok", aHas1},
		{"after a reboot the kubelet prepares again", "prepare a gpu-1; reboot; prepare a gpu-1", "r0=node/gpu-1",
			strings.Replace(aHas1, "boot-0", "boot-1", 1)},
		{"after a reboot a GPU is still held", "prepare a gpu-1; reboot; restart; prepare b gpu-1",
			"error: request r0: device gpu-1 is held by claim ns/a (UID a): device in use",
			strings.Replace(aHas1, "boot-0", "boot-1", 1)},
		{"a GPU that is gone after a reboot", "prepare a gpu-1; reboot; unplug gpu-1; prepare a gpu-1",
			"error: device gpu-1 (GPU-1): no such device on this node", "a Prepared boot-0 gpu-1"},
		{"its claim can be released all the same", "prepare a gpu-1; reboot; unplug gpu-1; unprepare a", "ok", ""},
		{"the monitor has every GPU, also those that are taken", "prepare a gpu-1; prepare m monitor!",
			"r0=node/monitor", aHas1After("m Prepared boot-0 monitor", monitorCDI)},
		{"and keeps nobody from having one", "prepare m monitor!; prepare a gpu-1", "r0=node/gpu-1",
			aHas1After("m Prepared boot-0 monitor", monitorCDI)},
		{"two shares of the monitor in one claim", "prepare m monitor#s1!,monitor#s2!",
			"r0=node/monitor r1=node/monitor",
			"m Prepared boot-0 monitor\ncdi m-monitor-s1" + allNodes + "\ncdi m-monitor-s2" + allNodes + common},
		{"the monitor is refused without admin access", "prepare m monitor",
			"error: request r0: device monitor gives every GPU of the node: set adminAccess: true in the request, " +
				"in a namespace with the label resource.kubernetes.io/admin-access=true: device is for admin access " +
				"only", ""},
		{"nothing is left of a monitor that ends", "prepare m monitor!; unprepare m", "ok", strings.TrimSpace(common)},
		{"a GPU that is found later is there when the monitor's next container starts",
			"unplug gpu-3; prepare m monitor!; plug 3; restart", "ok",
			"m Prepared boot-0 monitor\ncdi m-monitor" + allNodes + common},
		{"one that is gone does not keep it from starting", "prepare m monitor!; unplug gpu-2; prepare m monitor!",
			"r0=node/monitor",
			"m Prepared boot-0 monitor\ncdi m-monitor /dev/nvidia0 /dev/nvidia2" + common},
		{"an unreadable record of a monitor blocks nothing", "prepare m monitor!; truncate m; restart; prepare a " +
			"gpu-1; unprepare a; prepare n monitor!", "r0=node/monitor",
			"unreadable m.json\nn Prepared boot-0 monitor\ncdi m-monitor" + allNodes + "\ncdi n-monitor" + allNodes +
				common},
		{"a truncated record blocks its GPU and names the file",
			"prepare a gpu-1; truncate a; restart; prepare b gpu-1",
			"error: may hold gpu-1: <dir>/state/claims/a.json: unexpected end of JSON input; when no container of " +
				"that claim runs any more, remove the file: record is unreadable",
			"unreadable a.json\ncdi a-gpu-1 /dev/nvidia0" + common},
		{"but no other", "prepare a gpu-1; truncate a; restart; prepare b gpu-2", "r0=node/gpu-2",
			"unreadable a.json\nb Prepared boot-0 gpu-2\ncdi a-gpu-1 /dev/nvidia0\ncdi b-gpu-2 /dev/nvidia1" + common},
		{"and nobody takes it for released", "prepare a gpu-1; truncate a; unprepare a",
			"error: <dir>/state/claims/a.json: unexpected end of JSON input; when no container of that claim runs " +
				"any more, remove the file: record is unreadable",
			"unreadable a.json\ncdi a-gpu-1 /dev/nvidia0" + common},
		{"a share is limited by an MPS daemon", "prepare a gpu-1#s:5Gi/30", "r0=node/gpu-1", exclusive1 +
			"\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"the daemon has the limits of the largest share", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:10Gi/20",
			"r0=node/gpu-1",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=10240Mi\na Prepared boot-0 gpu-1\nb Prepared boot-0 gpu-1\n" +
				aSharesCDI +
				"\ncdi b-gpu-1-t /dev/nvidia0 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe " +
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" + common},
		{"one of several sharers leaves", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:10Gi/20; prepare c " +
			"gpu-1#u:1Gi/0; unprepare b; unprepare c", "ok",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"after the last one the GPU is as it came from the factory", "prepare a gpu-1#s:5Gi/30; prepare b " +
			"gpu-1#t:10Gi/20; unprepare a; unprepare b", "ok", strings.TrimSpace(common)},
		{"whatever was switched off in between", "prepare a gpu-1#s:5Gi/30; use gpu-1 none; unprepare a", "ok",
			strings.TrimSpace(common)},
		{"a daemon that does not start is told of, and the claim holds its share",
			"supervisor away; prepare a gpu-1#s:5Gi/30",
			"error: MPS daemon gpu-1: nvidia-cuda-mps-control: exit status 1: MPS daemon is not ready",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\na Preparing boot-0 gpu-1"},
		{"it is ready the next time", "supervisor away; prepare a gpu-1#s:5Gi/30; supervisor back; prepare a " +
			"gpu-1#s:5Gi/30", "r0=node/gpu-1",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"or its claim is gone", "supervisor away; prepare a gpu-1#s:5Gi/30; unprepare a", "ok", ""},
		{"a share is released while the daemon is away", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:10Gi/20; " +
			"supervisor away; unprepare b", "ok",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"after a reboot everything is made again", "prepare a gpu-1#s:5Gi/30; reboot; restart", "ok",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + strings.Replace(aShares, "boot-0", "boot-1", 1) +
				common},
		{"so it is after GPUs were reset in between", "prepare a gpu-1#s:5Gi/30; reset; restart", "ok",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"after a reboot there is nothing to set back", "prepare a gpu-1 Long; reboot; unplug gpu-1; unprepare a", "ok",
			""},
		{"except for what another claim has needed since", "prepare b gpu-1#t:4Gi/20 Long; reboot; " +
			"prepare a gpu-1#s:5Gi/30 Long; unprepare a; unprepare b", "ok", strings.TrimPrefix(common, "\n")},
		{"a time slice", "prepare a gpu-1,gpu-2 Long", "r0=node/gpu-1 r1=node/gpu-2",
			"GPU-1: time slice Long, compute mode DEFAULT\nGPU-2: time slice Long, compute mode DEFAULT\na Prepared " +
				"boot-0 gpu-1,gpu-2\ncdi a-gpu-1 /dev/nvidia0\ncdi a-gpu-2 /dev/nvidia1" + common},
		{"is gone with its claim", "prepare a gpu-1 Long; unprepare a", "ok", strings.TrimSpace(common)},
		{"the compute mode of the administrator returns after the last share", "mode GPU-1 PROHIBITED; " +
			"prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:10Gi/20; unprepare a; unprepare b", "ok",
			"GPU-1: time slice Default, compute mode PROHIBITED" + common},
		{"so it does when the first share ends last", "mode GPU-1 EXCLUSIVE_PROCESS; prepare a gpu-1#s:5Gi/30; " +
			"prepare b gpu-1#t:10Gi/20; unprepare b; unprepare a", "ok", exclusive1 + common},
		{"so it does after a time slice", "mode GPU-1 EXCLUSIVE_PROCESS; prepare a gpu-1 Long; unprepare a", "ok",
			exclusive1 + common},
		{"after a reboot it is found anew", "mode GPU-1 PROHIBITED; prepare a gpu-1#s:5Gi/30; reboot; restart; " +
			"unprepare a", "ok", strings.TrimSpace(common)},
		{"the default one touches nothing", "prepare a gpu-1 Default", "r0=node/gpu-1", aHas1},
		{"several whole GPUs have one MPS daemon", "prepare a gpu-1,gpu-2 MPS", "r0=node/gpu-1 r1=node/gpu-2",
			exclusive1 + "\nGPU-2: time slice Default, compute mode EXCLUSIVE_PROCESS\ndaemon gpu-1 0% GPU-1=0Mi " +
				"GPU-2=0Mi\na Prepared boot-0 gpu-1,gpu-2\n" +
				"cdi a-gpu-1 /dev/nvidia0 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe\n" +
				"cdi a-gpu-2 /dev/nvidia1 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe" + common},
		{"other settings of a shared GPU are refused before anything is touched",
			"prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0 Long",
			"error: request r0: device gpu-1 is shared with claim ns/a (UID a), which has it with time slice " +
				"Default, compute mode EXCLUSIVE_PROCESS, MPS; " +
				"this claim wants time slice Long, compute mode DEFAULT: settings of another claim are in force",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"a partition is made when a claim has it", "prepare a gpu-1-mig-1g10gb-0", "r0=node/gpu-1-mig-1g10gb-0",
			aSlice},
		{"and removed after it", "prepare a gpu-1-mig-1g10gb-0; unprepare a", "ok", strings.TrimSpace(common)},
		{"the GPU stays partitioned while another is there", "prepare a gpu-1-mig-1g10gb-0; prepare b " +
			"gpu-1-mig-3g40gb-4; unprepare b", "ok", aSlice},
		{"what overlaps it is refused", "prepare a gpu-1-mig-1g10gb-0; prepare b gpu-1-mig-2g20gb-0",
			"error: request r0: device gpu-1-mig-2g20gb-0 is held by claim ns/a (UID a), which has " +
				"gpu-1-mig-1g10gb-0: device in use", aSlice},
		{"so is the whole GPU", "prepare a gpu-1-mig-1g10gb-0; prepare b gpu-1",
			"error: request r0: device gpu-1 is held by claim ns/a (UID a), which has gpu-1-mig-1g10gb-0: device " +
				"in use", aSlice},
		{"and a share of it", "prepare a gpu-1-mig-1g10gb-0; prepare b gpu-1#s:5Gi/30",
			"error: request r0: device gpu-1 is held by claim ns/a (UID a), which has gpu-1-mig-1g10gb-0: device " +
				"in use", aSlice},
		{"a share keeps partitions away", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1-mig-1g10gb-0",
			"error: request r0: device gpu-1-mig-1g10gb-0 is held by claim ns/a (UID a), which has gpu-1: device " +
				"in use", exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"two in one claim do not overlap", "prepare a gpu-1-mig-1g10gb-0,gpu-1-mig-2g20gb-0",
			"error: request r1: device gpu-1-mig-2g20gb-0 is held by request r0 of the same claim, which has " +
				"gpu-1-mig-1g10gb-0: device in use", ""},
		{"a partition and a whole GPU in one claim", "prepare a gpu-1-mig-1g10gb-0,gpu-2",
			"r0=node/gpu-1-mig-1g10gb-0 r1=node/gpu-2",
			"GPU-1: 1g.10gb at 0, MIG-\nGPU-1: mig\na Prepared boot-0 gpu-1-mig-1g10gb-0,gpu-2\n" + aSliceCDI +
				"\ncdi a-gpu-2 /dev/nvidia1" + common},
		// A container that sees one of them would have no limit at all.
		{"several whole GPUs have the limits of their MPS daemon, and no variable", "prepare a gpu-1,gpu-2 MPS:5Gi",
			"r0=node/gpu-1 r1=node/gpu-2", exclusive1 + "\nGPU-2: time slice Default, compute mode " +
				"EXCLUSIVE_PROCESS\ndaemon gpu-1 50% GPU-1=5120Mi GPU-2=5120Mi\na Prepared boot-0 gpu-1,gpu-2\n" +
				"cdi a-gpu-1 /dev/nvidia0 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe " +
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50\n" +
				"cdi a-gpu-2 /dev/nvidia1 <dir>/mps/gpu-1/pipe CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1/pipe " +
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" + common},
		{"MPS inside a partition", "prepare a gpu-1-mig-1g10gb-0 MPS", "r0=node/gpu-1-mig-1g10gb-0",
			"GPU-1: 1g.10gb at 0, MIG-\nGPU-1: mig\ndaemon gpu-1-mig-1g10gb-0 0% MIG-=0Mi\na Prepared boot-0 " +
				"gpu-1-mig-1g10gb-0\n" +
				"cdi a-gpu-1-mig-1g10gb-0 /dev/nvidia0 <dir>/mps/gpu-1-mig-1g10gb-0/pipe PARTITION=1g.10gb " +
				"CUDA_MPS_PIPE_DIRECTORY=<dir>/mps/gpu-1-mig-1g10gb-0/pipe" + common},
		{"after a reboot it is made again", "prepare a gpu-1-mig-1g10gb-0; reboot; restart", "ok",
			strings.Replace(aSlice, "boot-0", "boot-1", 1)},
		{"after a reboot there is none to remove", "prepare a gpu-1-mig-1g10gb-0; reboot; unprepare a", "ok", ""},
		{"removed by hand, its claim ends all the same", "prepare a gpu-1-mig-1g10gb-0; remove all; unprepare a", "ok",
			strings.TrimSpace(common)},
		{"and it is not made again: its containers would not notice", "prepare a gpu-1-mig-1g10gb-0; remove all; " +
			"restart",
			"error: resume claim ns/a: create partition 1g.10gb at 0 of GPU-1: MIG-1: somebody has removed the " +
				"partition", strings.Replace(aSlice, "GPU-1: 1g.10gb at 0, MIG-\n", "", 1)},
		{"neither for the kubelet, which is told", "prepare a gpu-1-mig-1g10gb-0; remove all; prepare a " +
			"gpu-1-mig-1g10gb-0",
			"error: create partition 1g.10gb at 0 of GPU-1: MIG-1: somebody has removed the partition",
			strings.Replace(aSlice, "GPU-1: 1g.10gb at 0, MIG-\n", "", 1)},
		{"nor is another one at its place taken for it", "prepare a gpu-1-mig-1g10gb-0; remove all; partition gpu-1 " +
			"1g.10gb@0; unprepare a", "ok",
			"GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: mig" + common},
		{"nor after a reboot", "prepare a gpu-1-mig-1g10gb-0; reboot; partition gpu-1 1g.10gb@0; restart",
			"error: resume claim ns/a: partition 1g.10gb at 0 of GPU-1: 1g.10gb at 0 of GPU-1 (MIG-hand): a " +
				"partition that is not the driver's is in the way",
			"GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: mig\na Preparing boot-1 gpu-1-mig-1g10gb-0"},
		{"which stays when the claim ends", "prepare a gpu-1-mig-1g10gb-0; reboot; partition gpu-1 1g.10gb@0; " +
			"unprepare a", "ok", "GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: mig"},
		{"also one that was made while a claim waited", "busy yes; prepare a gpu-1-mig-1g10gb-0; busy no; partition " +
			"gpu-1 1g.10gb@0; unprepare a", "ok",
			"GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: mig"},
		{"a partition of others is named, and nothing is touched", "partition gpu-1 1g.10gb@0; prepare a " +
			"gpu-1-mig-2g20gb-0",
			"error: partition 2g.20gb at 0 of GPU-1: 1g.10gb at 0 of GPU-1 (MIG-hand): a partition that is not the " +
				"driver's is in the way",
			"GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: mig"},
		{"also one that is just what the claim wants", "partition gpu-1 1g.10gb@0; prepare a gpu-1-mig-1g10gb-0",
			"error: partition 1g.10gb at 0 of GPU-1: 1g.10gb at 0 of GPU-1 (MIG-hand): a partition that is not the " +
				"driver's is in the way",
			"GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: mig"},
		{"who keeps the GPU from being partitioned is named, and the claim waits",
			"busy yes; prepare a gpu-1-mig-1g10gb-0",
			"error: GPU GPU-1: process 7 (exporter): the GPU is in use", "a Preparing boot-0 gpu-1-mig-1g10gb-0"},
		{"until the GPU is free", "busy yes; prepare a gpu-1-mig-1g10gb-0; busy no; prepare a gpu-1-mig-1g10gb-0",
			"r0=node/gpu-1-mig-1g10gb-0", aSlice},
		{"or its claim is gone", "busy yes; prepare a gpu-1-mig-1g10gb-0; busy no; unprepare a", "ok", ""},
		{"a GPU that was left in the mode for partitions is made whole",
			"partition gpu-1 1g.10gb@0; remove all; prepare a gpu-1", "r0=node/gpu-1", aHas1},
		{"for a share, too", "partition gpu-1 1g.10gb@0; remove all; prepare a gpu-1#s:5Gi/30", "r0=node/gpu-1",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"unless somebody uses it", "partition gpu-1 1g.10gb@0; remove all; busy yes; prepare a gpu-1",
			"error: GPU GPU-1: process 7 (exporter): the GPU is in use", "GPU-1: mig"},
		{"admin access to one is refused", "prepare a gpu-1-mig-1g10gb-0!",
			"error: request r0: device gpu-1-mig-1g10gb-0 is a partition that claims make and remove, so it cannot " +
				"be monitored by itself; ask for the device monitor: configuration refused", ""},
		{"a claim whose container still runs is not released", "prepare a gpu-1; run a; unprepare a",
			"error: container main of pod 1 (process 7) still runs: the claim is released when it has ended", aHas1},
		{"its GPU goes to nobody", "prepare a gpu-1; run a; unprepare a; prepare b gpu-1",
			"error: request r0: device gpu-1 is held by claim ns/a (UID a): device in use", aHas1},
		{"also over a restart of the driver", "prepare a gpu-1; run a; unprepare a; restart; unprepare a",
			"error: container main of pod 1 (process 7) still runs: the claim is released when it has ended", aHas1},
		{"until the container has ended", "prepare a gpu-1; run a; unprepare a; end a; unprepare a", "ok", common[1:]},
		{"the machine has started since", "prepare a gpu-1; run a; unprepare a; reboot; unprepare a", "ok", ""},
		{"another claim's container does not matter", "prepare a gpu-1; prepare b gpu-2; run b; unprepare a", "ok",
			"b Prepared boot-0 gpu-2\ncdi b-gpu-2 /dev/nvidia1" + common},
		{"nor do its own settings go while it runs", "prepare a gpu-1#s:5Gi/30; run a; unprepare a",
			"error: container main of pod 1 (process 7) still runs: the claim is released when it has ended",
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\n" + aShares + common},
		{"a share beside an unreadable record ends, and the GPU stays as that claim may need it",
			"prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0; truncate b; unprepare a", notRestored,
			exclusive1 + "\ndaemon gpu-1 0% GPU-1=5120Mi\na Releasing boot-0 gpu-1\nunreadable b.json\n" +
				bSharesCDI + common},
		{"until the record is removed", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0; truncate b; unprepare a; " +
			"discard b; unprepare a", "ok", bSharesCDI + common},
		{"a restart does the same", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0; truncate b; unprepare a; " +
			"discard b; restart", "ok", bSharesCDI + common},
		{"of a claim whose own record is removed, too",
			"prepare a gpu-1#s:5Gi/30; truncate a; restart; discard a; cleanup; prepare b gpu-1; lose claim_a",
			"ok", "b Prepared boot-0 gpu-1\ncdi b-gpu-1 /dev/nvidia0" + common},
		{"over an end of the driver, and with all GPUs of its MPS daemon",
			"prepare a gpu-1,gpu-2 MPS; truncate a; discard a; prepare b gpu-2 MPS; restart; lose claim_a; unprepare b",
			"ok", common[1:]},
		{"without those that another claim shares by now", "prepare a gpu-1,gpu-2 MPS; discard a; prepare b " +
			"gpu-2#s:5Gi/30; cleanup; lose claim_a", "ok",
			strings.NewReplacer("gpu-1", "gpu-2", "GPU-1", "GPU-2", "nvidia0", "nvidia1", "a Prepared", "b Prepared",
				"cdi a", "cdi b").Replace(exclusive1+"\ndaemon gpu-1 30% GPU-1=5120Mi\n"+aShares) + common},
		{"nor while the record may be that of the daemon", "prepare a gpu-1#s:5Gi/30; truncate a; cleanup",
			"error: may hold gpu-1: " + strings.ReplaceAll(bUnreadable, "b.json", "a.json"),
			exclusive1 + "\ndaemon gpu-1 30% GPU-1=5120Mi\nunreadable a.json\n" +
				strings.ReplaceAll(aSharesCDI, "\n", "") + common},
		{"meanwhile nobody gets a share", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0; truncate b; " +
			"unprepare a; prepare c gpu-1#u:5Gi/0", "error: may hold gpu-1: " + bUnreadable,
			exclusive1 + "\ndaemon gpu-1 0% GPU-1=5120Mi\na Releasing boot-0 gpu-1\nunreadable b.json\n" +
				bSharesCDI + common},
		{"nor does the claim itself get another GPU", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0; " +
			"truncate b; prepare a gpu-2",
			strings.Replace(notRestored, "error", "error: release what the claim had before", 1),
			exclusive1 + "\ndaemon gpu-1 0% GPU-1=5120Mi\na Releasing boot-0 gpu-1\nunreadable b.json\n" +
				bSharesCDI + common},
		{"a partition is removed beside an unreadable record",
			"prepare a gpu-1-mig-1g10gb-0 MPS; prepare b gpu-1-mig-3g40gb-4; truncate b; unprepare a",
			strings.Replace(notRestored, "gpu-1", "gpu-1-mig-1g10gb-0", 1),
			"GPU-1: 3g.40gb at 4, MIG-\nGPU-1: mig\na Releasing boot-0 gpu-1-mig-1g10gb-0\nunreadable b.json\n" +
				"cdi b-gpu-1-mig-3g40gb-4 /dev/nvidia0 PARTITION=3g.40gb" + common},
		{"and one at its place later is not", "prepare a gpu-1-mig-1g10gb-0; prepare b gpu-1-mig-3g40gb-4; " +
			"truncate b; unprepare a; partition gpu-1 1g.10gb@0; discard b; unprepare a", "ok",
			"GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: 3g.40gb at 4, MIG-\nGPU-1: mig\n" +
				"cdi b-gpu-1-mig-3g40gb-4 /dev/nvidia0 PARTITION=3g.40gb" + common},
		{"a partition is removed beside a record that may hold anything",
			"prepare a gpu-1-mig-1g10gb-0; prepare b gpu-2; truncate b; unmark b; unprepare a",
			strings.Replace(notRestored, "gpu-1", "gpu-1-mig-1g10gb-0", 1),
			"GPU-1: mig\na Releasing boot-0 gpu-1-mig-1g10gb-0\nunreadable b.json\ncdi b-gpu-2 /dev/nvidia1" + common},
		{"a time slice stays beside such a record until it is removed",
			"prepare a gpu-1 Long; prepare b gpu-2; truncate b; unmark b; unprepare a; discard b; unprepare a", "ok",
			"cdi b-gpu-2 /dev/nvidia1" + common},
		{"after a reboot, too", "prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:5Gi/0; truncate b; reboot; unprepare a; " +
			"discard b; unprepare a", "ok", ""},
		{"admin access beside an unreadable record, twice",
			"prepare a gpu-1!; prepare b gpu-1; truncate b; prepare a gpu-1!", "r0=node/gpu-1",
			"a Prepared boot-0 gpu-1\nunreadable b.json\ncdi a-gpu-1 /dev/nvidia0\ncdi b-gpu-1 /dev/nvidia0" + common},
		{"what the same claim holds is restored",
			"prepare a gpu-1!,gpu-2 Long; prepare b gpu-1; truncate b; unprepare a", "ok",
			"unreadable b.json\ncdi b-gpu-1 /dev/nvidia0" + common},
		{"a share behind a hook", "use gpu-1 hook; prepare a gpu-1#s:5Gi/30", "r0=node/gpu-1",
			"a Prepared boot-0 gpu-1\ncdi a-gpu-1-s /dev/nvidia0 /opt/libvgpu.so /etc/ld.so.preload " +
				"CUDA_DEVICE_MEMORY_LIMIT=5120m CUDA_DEVICE_SM_LIMIT=30" +
				" CUDA_OVERSUBSCRIBE=false CUDA_REDIRECT=/opt/libvgpu.so GPU_CORE_UTILIZATION_POLICY=force" +
				numbered("CUDA_DEVICE_MEMORY_LIMIT", "5120m") + numbered("CUDA_DEVICE_SM_LIMIT", "30") + common},
		{"a share of a control group", "use gpu-1 cgroup; prepare a gpu-1#s:5Gi/0", "r0=node/gpu-1",
			"a Prepared boot-0 gpu-1\ncdi a-gpu-1-s /dev/nvidia0 LIMITED=1 NVIDIA_GPU_MEMORY_LIMIT=5120" +
				" NVIDIA_GPU_MEMORY_REQUEST=0" + common},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newFixture(t)
			result := w.run(row.script)
			if result != row.result {
				t.Errorf("\ngot  %s\nwant %s", result, row.result)
			}
			if diff := cmp.Diff(w.String(), row.want); diff != "" {
				t.Errorf("state: got - want +\n%s", diff)
			}
		})
	}
}

// What could not be done for a claim that is not released is told beside the container: see containers.Running.
func TestRunningWithAnError(t *testing.T) {
	w := newFixture(t)
	w.run("prepare a gpu-1; run a")
	before := w.String()
	p := w.preparer()
	looks := p.Running
	p.Running = func(c sharing.Claim) ([]string, error) {
		found, _ := looks(c)
		return found, unix.ENOSPC
	}
	err := p.Unprepare(w.context(), sharing.Claim{Name: "a", UID: "a"})
	if !errors.Is(err, claims.ErrRunning) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got error %v, want %v and %v", err, claims.ErrRunning, unix.ENOSPC)
	}
	w.run("end a")
	if err := p.Unprepare(w.context(), sharing.Claim{Name: "a", UID: "a"}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got error %v without a container, want %v", err, unix.ENOSPC)
	}
	if diff := cmp.Diff(w.String(), before); diff != "" {
		t.Errorf("state: got - want +\n%s", diff)
	}
}

// After a crash before or after any step, the same call by a new process leads to the same state as without a crash,
// and so does the opposite call.
func TestCrashes(t *testing.T) {
	for _, row := range []struct {
		name   string
		before string // what has happened so far
		verb   string // what is cut off
		then   []string
	}{
		{"prepare of one GPU", "", "prepare a gpu-1", []string{"prepare a gpu-1", "unprepare a"}},
		{"prepare of two GPUs", "", "prepare a gpu-1,gpu-3", []string{"prepare a gpu-1,gpu-3", "unprepare a"}},
		{"prepare beside another claim", "prepare b gpu-2", "prepare a gpu-1",
			[]string{"prepare a gpu-1", "unprepare a"}},
		{"prepare of a claim allocated anew", "prepare a gpu-1", "prepare a gpu-2",
			[]string{"prepare a gpu-2", "unprepare a"}},
		{"prepare after a reboot", "prepare a gpu-1; reboot", "prepare a gpu-1",
			[]string{"prepare a gpu-1", "unprepare a", "restart"}},
		{"prepare after a CDI file was lost", "prepare a gpu-1; lose claim_a", "prepare a gpu-1",
			[]string{"prepare a gpu-1", "unprepare a", "restart"}},
		{"unprepare", "prepare a gpu-1", "unprepare a", []string{"unprepare a", "prepare a gpu-1"}},
		{"prepare of a monitor", "prepare b gpu-2", "prepare a monitor!", []string{"prepare a monitor!",
			"unprepare a"}},
		{"unprepare of a monitor", "prepare a monitor!", "unprepare a", []string{"unprepare a", "prepare a monitor!"}},
		{"unprepare of two GPUs", "prepare a gpu-1,gpu-2", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1,gpu-2"}},
		{"prepare of the first share", "", "prepare a gpu-1#s:5Gi/30", []string{"prepare a gpu-1#s:5Gi/30",
			"unprepare a"}},
		{"prepare of the first share of a prohibited GPU", "mode GPU-1 PROHIBITED", "prepare a gpu-1#s:5Gi/30",
			[]string{"prepare a gpu-1#s:5Gi/30; unprepare a", "unprepare a"}},
		{"unprepare of the last share of a prohibited GPU", "mode GPU-1 PROHIBITED; prepare a gpu-1#s:5Gi/30",
			"unprepare a", []string{"unprepare a"}},
		{"prepare of the second share", "prepare b gpu-1#t:6Gi/30", "prepare a gpu-1#s:5Gi/30",
			[]string{"prepare a gpu-1#s:5Gi/30", "unprepare a"}},
		{"prepare of a larger second share", "prepare b gpu-1#t:4Gi/20", "prepare a gpu-1#s:5Gi/30",
			[]string{"prepare a gpu-1#s:5Gi/30", "unprepare a"}},
		{"prepare of the second time slice", "prepare b gpu-1#t:4Gi/20 Long", "prepare a gpu-1#s:5Gi/30 Long",
			[]string{"prepare a gpu-1#s:5Gi/30 Long", "unprepare a"}},
		{"prepare of the second time slice after a reboot", "prepare b gpu-1#t:4Gi/20 Long; reboot",
			"prepare a gpu-1#s:5Gi/30 Long", []string{"prepare a gpu-1#s:5Gi/30 Long", "unprepare b; unprepare a"}},
		{"unprepare of the larger share", "prepare b gpu-1#t:4Gi/20; prepare a gpu-1#s:5Gi/30", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1#s:5Gi/30"}},
		{"unprepare of one of two shares", "prepare b gpu-1#t:6Gi/30; prepare a gpu-1#s:5Gi/30", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1#s:5Gi/30"}},
		{"unprepare of the last share", "prepare a gpu-1#s:5Gi/30", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1#s:5Gi/30"}},
		{"prepare of shares after a reboot", "prepare b gpu-1#t:6Gi/30; prepare a gpu-1#s:5Gi/30; reboot",
			"prepare a gpu-1#s:5Gi/30", []string{"prepare a gpu-1#s:5Gi/30", "unprepare a", "restart"}},
		{"prepare of a time slice", "", "prepare a gpu-1,gpu-2 Long", []string{"prepare a gpu-1,gpu-2 Long",
			"unprepare a"}},
		{"unprepare of a time slice", "prepare a gpu-1,gpu-2 Long", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1,gpu-2 Long"}},
		{"prepare of MPS on two GPUs", "", "prepare a gpu-1,gpu-2 MPS", []string{"prepare a gpu-1,gpu-2 MPS",
			"unprepare a"}},
		{"unprepare of MPS on two GPUs", "prepare a gpu-1,gpu-2 MPS", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1,gpu-2 MPS"}},
		{"a share allocated anew", "prepare a gpu-1#s:5Gi/30", "prepare a gpu-2#s:5Gi/30",
			[]string{"prepare a gpu-2#s:5Gi/30", "unprepare a"}},
		{"prepare of a share behind a hook", "use gpu-1 hook", "prepare a gpu-1#s:5Gi/30",
			[]string{"prepare a gpu-1#s:5Gi/30", "unprepare a"}},
		{"prepare of a partition", "", "prepare a gpu-1-mig-1g10gb-0", []string{"prepare a gpu-1-mig-1g10gb-0",
			"unprepare a"}},
		{"prepare of a second partition", "prepare b gpu-1-mig-3g40gb-4", "prepare a gpu-1-mig-1g10gb-0",
			[]string{"prepare a gpu-1-mig-1g10gb-0", "unprepare a"}},
		{"prepare of partitions of two GPUs", "", "prepare a gpu-1-mig-1g10gb-0,gpu-2-mig-3g40gb-4,gpu-2-mig-1g10gb-1",
			[]string{"prepare a gpu-1-mig-1g10gb-0,gpu-2-mig-3g40gb-4,gpu-2-mig-1g10gb-1", "unprepare a"}},
		{"unprepare of the last partition", "prepare a gpu-1-mig-1g10gb-0", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1-mig-1g10gb-0"}},
		{"unprepare of one of two partitions", "prepare b gpu-1-mig-3g40gb-4; prepare a gpu-1-mig-1g10gb-0",
			"unprepare a", []string{"unprepare a", "prepare a gpu-1-mig-1g10gb-0"}},
		{"prepare of MPS in a partition", "", "prepare a gpu-1-mig-3g40gb-4 MPS",
			[]string{"prepare a gpu-1-mig-3g40gb-4 MPS", "unprepare a"}},
		{"unprepare of MPS in a partition", "prepare a gpu-1-mig-3g40gb-4 MPS", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1-mig-3g40gb-4 MPS"}},
		{"prepare of a partition after a reboot", "prepare a gpu-1-mig-1g10gb-0; reboot",
			"prepare a gpu-1-mig-1g10gb-0", []string{"prepare a gpu-1-mig-1g10gb-0", "unprepare a", "restart"}},
		{"a partition instead of the whole GPU", "prepare a gpu-1", "prepare a gpu-1-mig-1g10gb-0",
			[]string{"prepare a gpu-1-mig-1g10gb-0", "unprepare a"}},
		{"the whole GPU instead of a partition", "prepare a gpu-1-mig-1g10gb-0", "prepare a gpu-1",
			[]string{"prepare a gpu-1", "unprepare a"}},
		{"prepare for a virtual machine", "persist GPU-1", "prepare a gpu-1-vfio", []string{"prepare a gpu-1-vfio",
			"unprepare a", "restart; unprepare a"}},
		{"unprepare of a virtual machine's", "persist GPU-1; prepare a gpu-1-vfio", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1-vfio", "restart; unprepare a"}},
		{"prepare for a virtual machine after a reboot", "prepare a gpu-1-vfio; reboot", "prepare a gpu-1-vfio",
			[]string{"prepare a gpu-1-vfio", "unprepare a", "restart"}},
		{"prepare of what somebody else has bound", "external gpu-1", "prepare a gpu-1-vfio",
			[]string{"prepare a gpu-1-vfio", "unprepare a"}},
		{"a virtual machine instead of a container", "prepare a gpu-1", "prepare a gpu-1-vfio",
			[]string{"prepare a gpu-1-vfio", "unprepare a"}},
		{"a partition instead of a virtual machine", "prepare a gpu-1-vfio", "prepare a gpu-1-mig-1g10gb-0",
			[]string{"prepare a gpu-1-mig-1g10gb-0", "unprepare a"}},
		{"prepare with local IPC", "", "prepare a gpu-1,gpu-2 ipc",
			[]string{"prepare a gpu-1,gpu-2 ipc", "unprepare a"}},
		{"unprepare with local IPC", "prepare b gpu-2 ipc; prepare a gpu-1 ipc", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1 ipc", "restart; unprepare a"}},
		{"prepare with local IPC after a reboot", "prepare a gpu-1 ipc; reboot", "prepare a gpu-1 ipc",
			[]string{"prepare a gpu-1 ipc", "unprepare a", "restart"}},
		{"prepare of a partition with local IPC", "", "prepare a gpu-1-mig-1g10gb-0 ipc",
			[]string{"prepare a gpu-1-mig-1g10gb-0 ipc", "unprepare a"}},
		{"unprepare of a partition with local IPC", "prepare a gpu-1-mig-1g10gb-0 ipc", "unprepare a",
			[]string{"unprepare a", "prepare a gpu-1-mig-1g10gb-0 ipc"}},
		{"local IPC for what a claim gets anew", "prepare a gpu-1", "prepare a gpu-2 ipc",
			[]string{"prepare a gpu-2 ipc", "unprepare a"}},
		{"resume", "prepare a gpu-1; prepare b gpu-2; reboot", "restart", []string{"restart", "prepare a gpu-1",
			"unprepare a"}},
	} {
		for _, then := range row.then {
			// Undisturbed: the verb, then what follows, then a start of the driver.
			finish := append(strings.Split(then, "; "), "restart")
			clean := newFixture(t)
			runScript(clean, row.before)
			clean.breaker = &breaker{}
			runScript(clean, row.verb)
			steps := len(clean.breaker.passed)
			if steps == 0 {
				t.Fatalf("%s: no steps", row.name)
			}
			runScript(clean, finish...)
			want := clean.String()

			for n := 1; n <= steps; n++ {
				for _, after := range []bool{false, true} {
					name := fmt.Sprintf("%s, cut off at step %d of %d (done: %t), then %s", row.name, n, steps, after,
						then)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						w := newFixture(t)
						runScript(w, row.before)
						w.breaker = &breaker{at: n, after: after}
						if result := w.do(row.verb); !strings.Contains(result, errCrash.Error()) {
							t.Fatalf("not cut off: %s", result)
						}
						w.breaker = &breaker{}
						for _, verb := range finish {
							if result := w.do(verb); strings.HasPrefix(result, "error") {
								t.Errorf("%s: %s", verb, result)
							}
						}
						if diff := cmp.Diff(withoutCommon(w.String()), withoutCommon(want)); diff != "" {
							t.Errorf("state: got - want +\n%s", diff)
						}
					})
				}
			}
		}
	}
}

// A claim is recorded before anything changes for it. If nothing does, because other claims need the same daemons and
// settings, it is recorded once, and its release needs no record before the last step.
func TestRecordsOfAClaim(t *testing.T) {
	for _, row := range []struct {
		name, before, verb string
		starting           bool // the daemon of gpu-1
		want               int
	}{
		{"a GPU", "", "prepare a gpu-1", false, 1},
		{"a GPU with local IPC", "", "prepare a gpu-1 ipc", false, 1},
		{"the first share", "", "prepare a gpu-1#s:5Gi/30", false, 2},
		{"the second share", "prepare b gpu-1#t:5Gi/30", "prepare a gpu-1#s:5Gi/30", false, 1},
		{"a smaller second share", "prepare b gpu-1#t:6Gi/40", "prepare a gpu-1#s:5Gi/30", false, 1},
		{"a second share with more memory", "prepare b gpu-1#t:4Gi/30", "prepare a gpu-1#s:5Gi/30", false, 2},
		{"a second share with more cores", "prepare b gpu-1#t:5Gi/20", "prepare a gpu-1#s:5Gi/30", false, 2},
		{"the second share while the daemon starts", "prepare b gpu-1#t:5Gi/30", "prepare a gpu-1#s:5Gi/30", true, 2},
		{"the first share of another GPU", "prepare b gpu-1#t:5Gi/30", "prepare a gpu-2#s:5Gi/30", false, 2},
		{"the first time slice", "", "prepare a gpu-1#s:5Gi/30 Long", false, 2},
		{"the second time slice", "prepare b gpu-1#t:5Gi/30 Long", "prepare a gpu-1#s:5Gi/30 Long", false, 1},
		{"one of two shares ends", "prepare b gpu-1#t:5Gi/30; prepare a gpu-1#s:5Gi/30", "unprepare a", false, 0},
		{"the larger one ends", "prepare b gpu-1#t:4Gi/30; prepare a gpu-1#s:5Gi/30", "unprepare a", false, 1},
		{"the last share ends", "prepare a gpu-1#s:5Gi/30", "unprepare a", false, 1},
		{"one of two time slices ends", "prepare b gpu-1#t:5Gi/30 Long; prepare a gpu-1#s:5Gi/30 Long", "unprepare a",
			false, 0},
		{"the last time slice ends", "prepare a gpu-1#s:5Gi/30 Long", "unprepare a", false, 1},
	} {
		w := newFixture(t)
		runScript(w, row.before)
		if row.starting {
			if err := w.daemons().Report("gpu-1", mps.DaemonState{Message: "starting"}); err != nil {
				t.Fatal(err)
			}
		}
		w.breaker = &breaker{}
		if result := w.do(row.verb); strings.HasPrefix(result, "error") {
			t.Errorf("%s: %s", row.name, result)
		}
		got := 0
		for _, step := range w.breaker.passed {
			if step == steps.WriteRecord {
				got++
			}
		}
		if got != row.want {
			t.Errorf("%s: the record is written %d times, want %d", row.name, got, row.want)
		}
	}
}

// As TestCrashes, for the release of a claim beside an unreadable record, which ends after that record was removed.
func TestCrashesBesideAnUnreadableRecord(t *testing.T) {
	for _, before := range []string{
		"prepare a gpu-1#s:5Gi/30; prepare b gpu-1#t:6Gi/30; truncate b",
		"prepare a gpu-1-mig-1g10gb-0 MPS; prepare b gpu-1-mig-3g40gb-4; truncate b",
	} {
		finish := func(w *fixture) string {
			w.breaker = &breaker{}
			w.do("unprepare a")
			runScript(w, "discard b; unprepare a")
			return w.String()
		}
		clean := newFixture(t)
		runScript(clean, before)
		clean.breaker = &breaker{}
		clean.do("unprepare a")
		steps := len(clean.breaker.passed)
		want := finish(clean)
		for n := 1; n <= steps; n++ {
			for _, after := range []bool{false, true} {
				w := newFixture(t)
				runScript(w, before)
				w.breaker = &breaker{at: n, after: after}
				if result := w.do("unprepare a"); !strings.Contains(result, errCrash.Error()) {
					t.Fatalf("not cut off: %s", result)
				}
				if diff := cmp.Diff(finish(w), want); diff != "" {
					t.Errorf("%s, cut off at step %d of %d (done: %t): got - want +\n%s", before, n, steps, after, diff)
				}
			}
		}
	}
}

// A claim whose partition has no known UUID yet ends beside an unreadable record. Its placement is free from then on.
func TestPlacementOfAnEndedClaim(t *testing.T) {
	w := newFixture(t)
	runScript(w, "prepare b gpu-1-mig-3g40gb-4")
	ctx := steps.With(w.context(), func(ctx context.Context, name string, do func(context.Context) error) error {
		if name == "create_compute_instance" {
			return errCrash
		}
		return do(ctx)
	})
	if _, err := w.preparer().Prepare(ctx, claim("a", "gpu-1-mig-1g10gb-0")); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	runScript(w, "truncate b")
	w.do("unprepare a")
	runScript(w, "partition gpu-1 1g.10gb@0; discard b; unprepare a")
	want := "GPU-1: 1g.10gb at 0, MIG-hand\nGPU-1: 3g.40gb at 4, MIG-\nGPU-1: mig\n" +
		"cdi b-gpu-1-mig-3g40gb-4 /dev/nvidia0 PARTITION=3g.40gb" + common
	if diff := cmp.Diff(w.String(), want); diff != "" {
		t.Errorf("state: got - want +\n%s", diff)
	}
}

func runScript(w *fixture, verbs ...string) {
	w.t.Helper()
	for _, script := range verbs {
		for verb := range strings.SplitSeq(script, "; ") {
			if verb == "" {
				continue
			}
			if result := w.do(verb); strings.HasPrefix(result, "error") {
				w.t.Fatalf("%s: %s", verb, result)
			}
		}
	}
}

// withoutCommon removes the driver's own spec, which depends on how far the first prepare came.
func withoutCommon(state string) string {
	return strings.TrimSpace(strings.ReplaceAll("\n"+state, common, ""))
}

// If another claim still holds the device, Prepare waits without the locks that the release needs.
func TestPrepareWaitsForTheHolder(t *testing.T) {
	w := newFixture(t)
	w.timeout = time.Minute
	runScript(w, "prepare a gpu-1")
	result := make(chan string)
	go func() { result <- w.do("prepare b gpu-1") }()
	// Whether or not b has begun to wait: neither this claim on another device nor the release may wait for it.
	runScript(w, "prepare c gpu-2")
	select {
	case early := <-result:
		t.Fatalf("b did not wait for a: %s", early)
	case <-time.After(3 * time.Second / 10):
	}
	runScript(w, "unprepare a")
	if got, want := <-result, "r0=node/gpu-1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The kubelet calls Prepare once for each pod with a claim. Here another such call runs in the middle of this one,
// which then finds everything done.
func TestTwoCallsForOneClaim(t *testing.T) {
	for _, row := range []struct {
		name   string
		before string
		step   string // of this call, before which the other one runs
		devs   string
	}{
		{"a whole GPU", "", steps.LockDevices, "gpu-1"},
		{"a share", "", steps.LockDevices, "gpu-1#s:5Gi/30"},
		{"MPS on two GPUs", "", steps.LockDevices, "gpu-1,gpu-2 MPS"},
		{"a partition", "", steps.LockDevices, "gpu-1-mig-1g10gb-0"},
		{"a partition instead of another one, which is released at the same time", "prepare a gpu-2-mig-1g10gb-0",
			steps.FindUsers, "gpu-1-mig-1g10gb-0"},
		{"one whose release waits for the locks", "prepare a gpu-1-mig-2g20gb-0", steps.LockDevices,
			"gpu-1-mig-1g10gb-0"},
		{"a share instead of another one", "prepare a gpu-2#s:5Gi/30", steps.FindUsers, "gpu-1#s:5Gi/30"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newFixture(t)
			runScript(w, row.before)
			var done string // the state after the other call
			changes := 0
			ctx := steps.With(w.context(), func(ctx context.Context, name string,
				do func(context.Context) error) error {
				switch {
				case done == "" && name == row.step:
					runScript(w, "prepare a "+row.devs)
					done = w.String()
				case slices.Contains([]string{steps.WriteRecord, steps.DeleteRecord, steps.RemoveClaimSpec,
					steps.DestroyPartition}, name):
					changes++
				}
				return do(ctx)
			})
			rec, err := w.preparer().Prepare(ctx, claim("a", row.devs))
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := w.preparer().Records.Get("a"); !cmp.Equal(rec, again) {
				t.Errorf("got %+v, want the record %+v", rec, again)
			}
			if diff := cmp.Diff(w.String(), done); diff != "" {
				t.Errorf("state: got - want +\n%s", diff)
			}
			if changes > 0 {
				t.Errorf("it changed records, CDI specs or partitions in %d steps", changes)
			}
		})
	}
}

// numbered returns the variable for each of HAMi-core's 16 GPUs, because a pod's own would override the one for all.
func numbered(name, value string) string {
	var b strings.Builder
	for i := range 16 {
		fmt.Fprintf(&b, " %s_%d=%s", name, i, value)
	}
	return b.String()
}
