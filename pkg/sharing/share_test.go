// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// shareInventory has a card of 80 GiB for each way in which it may be used, named after it, and a second fractional
// one.
var shareInventory = func() inventory.Inventory {
	var devices []gpu.Device
	for name, use := range map[string]gpu.SharingMode{
		"mps": {}, "mps2": {}, "none": {Isolation: gpu.IsolationNone}, "cgroup": {Isolation: gpu.IsolationCgroup},
		"hook":     {Isolation: gpu.IsolationHook, Hook: gpu.HookLibrary{Path: "/opt/libvgpu.so"}},
		"slices4":  {Sharing: gpu.Replicated, Replicas: 4, Isolation: gpu.IsolationNone},
		"mps4":     {Sharing: gpu.Replicated, Replicas: 4},
		"once":     {Sharing: gpu.Replicated, Replicas: 4, Isolation: gpu.IsolationNone, OnePerClaim: true},
		"alone":    {Sharing: gpu.Exclusive},
		"anyone":   {Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone},
		"replaced": {Sharing: gpu.Exclusive},
	} {
		devices = append(devices, gpu.Device{Name: name, UUID: gpu.UUID("GPU-" + name), Memory: 80 << 30, Use: use})
	}
	return inventory.New(devices)
}()

// Claims come one after the other, and the last one is shown. A result is "request=device" and what was counted:
// ":5Gi/30" for a share, ":2x" for replicas. After "|" stands the sharing of the claim's GpuConfig.
func TestShares(t *testing.T) {
	const timeSlices, long = `{"strategy":"TimeSlicing"}`,
		`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`
	const short = `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}`
	const mps = `{"strategy":"MPS"}`
	mpsWith := func(fields string) string { return `{"strategy":"MPS","mpsConfig":{` + fields + `}}` }
	for _, row := range []struct {
		name   string
		claims []string
		want   string
	}{
		{"all memory is a whole card", []string{"a=mps:80Gi/0"}, "a mps"},
		{"all memory and multiprocessors are a whole card", []string{"a=mps:80Gi/100"}, "a mps"},
		{"a share is limited by MPS", []string{"a=mps:5Gi/30"}, "a mps 5Gi/30 mode=EXCLUSIVE_PROCESS daemon=mps " +
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"},
		{"a share of memory alone has all multiprocessors", []string{"a=mps:5Gi/0"},
			"a mps 5Gi/0 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"},
		{"a share of the multiprocessors alone has all the memory", []string{"a=mps:80Gi/30"},
			"a mps 80Gi/30 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"},
		{"two claims on one card", []string{"a=mps:5Gi/30", "a=mps:10Gi/70"},
			"a mps 10Gi/70 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=70 " +
				"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M"},
		{"two shares of one card in one claim keep their own limits", []string{"a=mps:5Gi/30 b=mps:6Gi/0"},
			"a mps 5Gi/30 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 " +
				"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M\n" +
				"b mps 6Gi/0 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=6144M"},
		{"shares of several cards in one request", []string{"a=mps:5Gi/0 a=mps2:5Gi/0"},
			"error: request a: devices mps, mps2: a process has one set of limits and talks to one MPS daemon: " +
				"give each container one of these shares, by a claim of its own or by naming one request: " +
				"configuration refused"},
		{"shares of several cards in two requests, for two containers", []string{"a=mps:5Gi/0 b=mps2:5Gi/0"},
			"a mps 5Gi/0 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M\n" +
				"b mps2 5Gi/0 mode=EXCLUSIVE_PROCESS daemon=mps2 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"},
		{"a share beside a whole card", []string{"a=mps:80Gi/0", "a=mps:5Gi/0"},
			"error: request a: device mps is held by claim ns/c0 (UID c0): device in use"},
		{"a whole card beside a share", []string{"a=mps:5Gi/0", "a=mps:80Gi/0"},
			"error: request a: device mps is held by claim ns/c0 (UID c0): device in use"},
		{"more memory than the others leave", []string{"a=mps:50Gi/0", "a=mps:40Gi/0"},
			"error: request a: device mps has 80Gi of its memory, of which claim ns/c0 (UID c0) and this claim want " +
				"90Gi: device in use"},
		{"more multiprocessors than the others leave", []string{"a=mps:5Gi/60", "a=mps:5Gi/41"},
			"error: request a: device mps has 100 % of its multiprocessors, of which claim ns/c0 (UID c0) and this " +
				"claim want 101 %: device in use"},
		{"a share without limits", []string{"a=mps:5Gi/30|" + timeSlices}, "a mps 5Gi/30 unenforced"},
		{"a share without limits, with a time slice", []string{"a=mps:5Gi/30|" + long},
			"a mps 5Gi/30 interval=Long unenforced"},
		{"a share with limits beside one without", []string{"a=mps:5Gi/30|" + long, "a=mps:5Gi/30"},
			"error: request a: device mps is shared with claim ns/c0 (UID c0), which has it with time slice Long, " +
				"compute mode DEFAULT; " +
				"this claim wants time slice Default, compute mode EXCLUSIVE_PROCESS, MPS: settings of another claim " +
				"are in force"},
		{"shares with different time slices", []string{"a=mps:5Gi/30|" + long, "a=mps:5Gi/30|" + short},
			"error: request a: device mps is shared with claim ns/c0 (UID c0), which has it with time slice Long, " +
				"compute mode DEFAULT; " +
				"this claim wants time slice Short, compute mode DEFAULT: settings of another claim are in force"},
		{"shares with the same time slice", []string{"a=mps:5Gi/30|" + long, "a=mps:5Gi/30|" + long},
			"a mps 5Gi/30 interval=Long unenforced"},
		{"a share may set the strategy MPS", []string{"a=mps:5Gi/0|" + mps},
			"a mps 5Gi/0 mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"},
		{"a share may have more multiprocessors than are counted", []string{"a=mps:5Gi/30|" +
			mpsWith(`"defaultActiveThreadPercentage":60`)}, "a mps 5Gi/30 mode=EXCLUSIVE_PROCESS daemon=mps " +
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M"},
		{"a share may not have fewer multiprocessors than are counted", []string{"a=mps:5Gi/30|" +
			mpsWith(`"defaultActiveThreadPercentage":29`)}, "error: request a: device mps: sharing.mpsConfig." +
			"defaultActiveThreadPercentage 29: must be at least the cores that the request asks for, 30: " +
			"configuration refused"},
		{"a share may not set other MPS limits", []string{"a=mps:5Gi/0|" + mpsWith(`"defaultPinnedDeviceMemoryLimit":"6Gi"`)},
			"error: request a: device mps: sharing.mpsConfig: the memory limit of a share is what its request asks " +
				"for in capacity.requests; leave the default limits out: configuration refused"},
		{"a share without isolation", []string{"a=none:5Gi/30"}, "a none 5Gi/30"},
		{"a share without isolation refuses MPS", []string{"a=none:5Gi/30|" + mps},
			"error: request a: device none: sharing.strategy MPS: the " +
				"administrator has chosen isolation none for shares of this GPU: configuration refused"},
		{"a share behind a hook", []string{"a=hook:5Gi/30"}, "a hook 5Gi/30 hook=/opt/libvgpu.so " +
			"CUDA_DEVICE_MEMORY_LIMIT=5120m CUDA_DEVICE_SM_LIMIT=30"},
		{"a share with isolation cgroup", []string{"a=cgroup:5Gi/0"}, "a cgroup 5Gi/0 NVIDIA_GPU_MEMORY_LIMIT=5120 " +
			"NVIDIA_GPU_MEMORY_REQUEST=0"},
		{"a cgroup cannot limit multiprocessors", []string{"a=cgroup:5Gi/30"},
			"error: request a: device cgroup: cores: isolation cgroup limits memory only; ask for memory alone: " +
				"configuration refused"},
		{"a share of a card that is no longer shared", []string{"a=alone:5Gi/0"},
			"error: request a: device alone was allocated as a share, and is exclusive by now; delete the pod, so " +
				"that it is scheduled anew: configuration refused"},
		{"one claim for more than the card has", []string{"a=slices4:5x"},
			"error: request a: device slices4 has 4 of its replicas; this claim alone wants 5 of them: " +
				"configuration refused"},
		{"a replica", []string{"a=slices4:1x"}, "a slices4 1x"},
		{"an MPS replica has an equal part", []string{"a=mps4:1x"}, "a mps4 1x mode=EXCLUSIVE_PROCESS daemon=mps4 " +
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M"},
		{"two replicas have two parts", []string{"a=mps4:2x"}, "a mps4 2x mode=EXCLUSIVE_PROCESS daemon=mps4 " +
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=40960M"},
		{"a replica may have time slices", []string{"a=slices4:1x|" + long}, "a slices4 1x interval=Long"},
		{"an MPS replica may not have time slices", []string{"a=mps4:1x|" + long},
			"error: request a: device mps4: sharing.strategy " +
				"TimeSlicing: the administrator has chosen isolation mps for the replicas of this GPU: configuration " +
				"refused"},
		{"a replica may not choose MPS", []string{"a=slices4:1x|" + mps}, "error: request a: device slices4: " +
			"sharing.strategy MPS: how the replicas of this GPU are kept apart is up to the administrator (isolation " +
			"none): configuration refused"},
		{"more replicas than there are", []string{"a=slices4:3x", "a=slices4:2x"},
			"error: request a: device slices4 has 4 of its replicas, of which claim ns/c0 (UID c0) and this claim " +
				"want 5: device in use"},
		{"two replicas with one per claim", []string{"a=once:1x b=once:1x"},
			"error: request b: device once is limited by the administrator to one replica for a claim: configuration " +
				"refused"},
		{"a replica of a card that no longer has any", []string{"a=replaced:1x"},
			"error: request a: device replaced was allocated as a replica, and is exclusive by now; delete the pod, " +
				"so that it is scheduled anew: configuration refused"},
		{"an unlimited card", []string{"a=anyone:0/0"}, "a anyone 0/0 unenforced"},
		{"an unlimited card for several claims", []string{"a=anyone:0/0", "a=anyone:0/0", "a=anyone:0/0 b=anyone:0/0"},
			"a anyone 0/0 unenforced\nb anyone 0/0 unenforced"},
		{"an unlimited card beside claims that ask for an amount", []string{"a=anyone:0/0", "a=anyone:80Gi/100",
			"a=anyone:0/0"}, "a anyone 0/0 unenforced"},
		{"all the memory of an unlimited card is no whole card", []string{"a=anyone:80Gi/0"},
			"a anyone 80Gi/0 unenforced"},
		{"more of an unlimited card than others leave", []string{"a=anyone:50Gi/0", "a=anyone:40Gi/0"},
			"error: request a: device anyone has 80Gi of its memory, of which claim ns/c0 (UID c0) and this claim " +
				"want 90Gi: device in use"},
		{"an unlimited card may have time slices", []string{"a=anyone:0/0|" + long},
			"a anyone 0/0 interval=Long unenforced"},
		{"an unlimited card with different time slices", []string{"a=anyone:0/0|" + long, "a=anyone:0/0"},
			"error: request a: device anyone is shared with claim ns/c0 (UID c0), which has it with time slice Long, " +
				"compute mode DEFAULT; this claim wants time slice Default, compute mode DEFAULT: settings of " +
				"another claim are in force"},
		{"an unlimited card refuses MPS", []string{"a=anyone:0/0|" + mps}, "error: request a: device anyone: " +
			"sharing.strategy MPS: the administrator lets any number of claims use this GPU, without MPS (sharing " +
			"unlimited): configuration refused"},
		{"a card that is no longer unlimited", []string{"a=mps:0/0"},
			"error: request a: device mps was allocated without limits, and is fractional, isolation mps by now; " +
				"delete the pod, so that it is scheduled anew: configuration refused"},
		{"a replica of a card that is unlimited by now", []string{"a=anyone:1x"},
			"error: request a: device anyone was allocated as a replica, and is unlimited, isolation none by now; " +
				"delete the pod, so that it is scheduled anew: configuration refused"},
		{"a whole card with a time slice", []string{"a=alone|" + long}, "a alone interval=Long"},
		{"the default time slice changes nothing", []string{"a=alone|" + timeSlices}, "a alone"},
		{"a whole card under MPS", []string{"a=alone|" + mps}, "a alone mode=EXCLUSIVE_PROCESS daemon=alone"},
		{"a shareable card under MPS", []string{"a=mps:80Gi/0|" +
			mpsWith(`"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi"`)},
			"a mps mode=EXCLUSIVE_PROCESS daemon=mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 " +
				"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M"},
		{"several cards have one daemon", []string{"a=alone b=mps:80Gi/0|" +
			mpsWith(`"defaultPerDevicePinnedMemoryLimit":{"1":"2Gi","0":"1Gi"}`)},
			"a alone mode=EXCLUSIVE_PROCESS daemon=alone CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M,1=2048M\n" +
				"b mps mode=EXCLUSIVE_PROCESS daemon=alone CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M,1=2048M"},
		{"a limit for a card of no request",
			[]string{"a=alone|" + mpsWith(`"defaultPerDevicePinnedMemoryLimit":{"1":"2Gi"}`)},
			"error: request a: device alone: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[1]: the " +
				"configuration is for 1 devices; name them by index, from 0, or by UUID: configuration refused"},
		{"a limit above the card's memory", []string{"a=alone|" +
			mpsWith(`"defaultPinnedDeviceMemoryLimit":"81Gi"`)},
			"error: request a: device alone: sharing.mpsConfig: a memory limit of 81Gi is more than device alone has " +
				"(80Gi): configuration refused"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var others []Holder
			for i, c := range row.claims {
				plan, err := NewPlan(shareResults(t, c), shareInventory, others)
				if i == len(row.claims)-1 {
					if got := sharesText(plan, err); got != row.want {
						t.Errorf("\ngot  %s\nwant %s", got, row.want)
					}
				} else if err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprint("c", i)
				others = append(others, Holder{Claim{"ns", name, types.UID(name)}, plan})
			}
		})
	}
}

// Limits for single devices name them by index among the devices of the same configuration, as NVIDIA's driver does.
func TestMemoryPerDevice(t *testing.T) {
	devices := []gpu.Device{{Name: "g0"}, {Name: "g1"}, {Name: "g2"},
		{Name: "p0", Partition: &gpu.Partition{Placement: gpu.Placement{Parent: "GPU", Start: 0, Size: 1}}},
		{Name: "p1", Partition: &gpu.Partition{Placement: gpu.Placement{Parent: "GPU", Start: 1, Size: 1}}}}
	for i := range devices {
		devices[i].UUID, devices[i].Memory = gpu.UUID("UUID-"+devices[i].Name), 10<<30
	}
	for _, row := range []struct {
		name    string
		results string            // request=device/configuration; "!" at the end: with admin access
		limits  map[string]uint64 // GiB, of each configuration
		want    string
	}{
		{"a GPU that the configuration does not rule has no number", "a=g0 b=g1/1 c=g2/1", map[string]uint64{"1": 2},
			"g0\ng1 daemon=g1 [0 2]\ng2 daemon=g1 [0 2]"},
		{"nor one with admin access", "a=g0/1! b=g1/1 c=g2/1", map[string]uint64{"1": 2},
			"g0\ng1 daemon=g1 [0 2]\ng2 daemon=g1 [0 2]"},
		{"partitions have numbers, too", "a=p0/1 b=p1/1", map[string]uint64{"0": 1, "1": 2},
			"p0 daemon=p0 [1]\np1 daemon=p1 [2]"},
		{"one of two partitions, by UUID", "a=p0/1 b=p1/1", map[string]uint64{"UUID-p1": 2},
			"p0 daemon=p0 [0]\np1 daemon=p1 [2]"},
		{"two equal configurations have numbers of their own, and one daemon", "a=g1/1 b=g2/2",
			map[string]uint64{"0": 2},
			"g1 daemon=g1 [2 2]\ng2 daemon=g1 [2 2]"},
		{"a GPU that the configuration does not rule, by number", "a=g0 b=g1/1", map[string]uint64{"1": 2},
			"error: request b: device g1: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[1]: the " +
				"configuration is for 1 devices; name them by index, from 0, or by UUID: configuration refused"},
		{"a third partition", "a=p0/1 b=p1/1", map[string]uint64{"2": 2},
			"error: request a: device p0: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[2]: the " +
				"configuration is for 2 devices; name them by index, from 0, or by UUID: configuration refused\n" +
				"request b: device p1: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[2]: the " +
				"configuration is for 2 devices; name them by index, from 0, or by UUID: configuration refused"},
		{"only the device whose limit is too large is refused", "a=g0/1 b=g1/1", map[string]uint64{"1": 11},
			"error: request b: device g1: sharing.mpsConfig: a memory limit of 11Gi is more than device g1 has " +
				"(10Gi): configuration refused"},
	} {
		t.Run(row.name, func(t *testing.T) {
			configs := map[string]api.DeviceConfig{"": {}}
			for _, name := range []string{"1", "2"} {
				limits := map[string]uint64{}
				for key, gib := range row.limits {
					limits[key] = gib << 30
				}
				configs[name] = api.DeviceConfig{Sharing: api.Sharing{MPS: &api.MPS{MemoryPerDevice: limits}}}
			}
			results := parseResults(row.results)
			for i, r := range results {
				device, config, _ := strings.Cut(r.Device, "/")
				results[i].Device, results[i].Config = device, configs[config]
			}
			plan, err := NewPlan(results, inventory.New(devices), nil)
			var lines []string
			for _, a := range plan.Assignments {
				line := a.Device
				if m := a.MPS; m != nil {
					var gib []uint64
					for _, bytes := range m.Memory {
						gib = append(gib, bytes>>30)
					}
					line += fmt.Sprint(" daemon=", m.Daemon, " ", gib)
				}
				lines = append(lines, line)
			}
			got := strings.Join(lines, "\n")
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestPart(t *testing.T) {
	for _, row := range []struct{ name, claim, want string }{
		{"a whole card", "a=alone", "81920 100 true"},
		{"a whole shareable card", "a=mps:80Gi/0", "81920 100 true"},
		{"a share", "a=mps:5Gi/30", "5120 30 true"},
		{"a share of memory alone", "a=mps:5Gi/0", "5120 0 true"},
		{"a replica", "a=slices4:1x", "20480 25 true"},
		{"two replicas", "a=mps4:2x", "40960 50 true"},
		{"an unlimited card", "a=anyone:0/0", "0 0 true"},
	} {
		plan, err := NewPlan(shareResults(t, row.claim), shareInventory, nil)
		if err != nil {
			t.Fatal(row.name, err)
		}
		a := plan.Assignments[0]
		d, _ := shareInventory.Find(a.Device)
		memory, cores, ok := a.Part(d)
		if got := fmt.Sprint(memory/mib, cores, ok); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		a.AdminAccess = true
		if memory, cores, ok := a.Part(d); memory != 0 || cores != 0 || !ok {
			t.Errorf("%s, with admin access: got %d %d %t, want nothing", row.name, memory, cores, ok)
		}
	}
	if _, _, ok := (Assignment{Share: &Share{Replicas: 1}}).Part(gpu.Device{}); ok {
		t.Error("a replica of a card that has none any more has a part")
	}
}

func TestTwoEqualShares(t *testing.T) {
	plan, err := NewPlan(shareResults(t, "a=mps:5Gi/0 b=mps:5Gi/0"), shareInventory, nil)
	if err != nil || !plan.Limited() || plan.CheckContainer(Container{}) == nil ||
		plan.CheckContainer(Container{Requests: []string{"b"}}) != nil {
		t.Errorf("got error %v and limited: %t, want a plan whose shares are for two containers", err, plan.Limited())
	}
}

func TestContainersOfTwoIsolations(t *testing.T) {
	plan, err := NewPlan(shareResults(t, "a=mps:5Gi/0 b=mps2:5Gi/0"), shareInventory, nil)
	if err != nil || !plan.Limited() {
		t.Fatal(err, "want a plan with limits of two kinds")
	}
	for _, row := range []struct {
		requests []string
		fits     bool
	}{{[]string{"a"}, true}, {[]string{"b"}, true}, {nil, false}, {[]string{"a", "b"}, false}} {
		if err := plan.CheckContainer(Container{Name: "main", Requests: row.requests}); (err == nil) != row.fits {
			t.Errorf("requests %v: got %v, want it to fit: %t", row.requests, err, row.fits)
		}
	}
}

// TestContainersWithOtherClaims: what keeps a container within a share would hold, or fail to hold, for the
// devices of other claims.
func TestContainersWithOtherClaims(t *testing.T) {
	other := []string{"device gpu-9 of claim other"}
	for _, row := range []struct {
		claim    string
		requests []string
		others   []string
		fits     bool
	}{
		{"a=mps:5Gi/0", nil, nil, true},
		{"a=mps:5Gi/0", nil, other, false},
		{"a=hook:5Gi/30", nil, other, false},
		{"a=cgroup:5Gi/0", nil, other, false},
		{"a=mps4:1x", nil, other, false},
		{`a=alone|{"strategy":"MPS"}`, nil, other, false},
		{"a=none:5Gi/30", nil, other, true}, // nothing is enforced
		{"a=anyone:0/0", nil, other, true},
		{"a=alone", nil, other, true},
		{"a=mps:5Gi/0 b=alone", []string{"b"}, other, true},
		{"a=mps:5Gi/0 b=alone", []string{"a"}, other, false},
	} {
		plan, err := NewPlan(shareResults(t, row.claim), shareInventory, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = plan.CheckContainer(Container{Name: "main", Requests: row.requests, Others: row.others})
		if fits := err == nil; fits != row.fits || !fits && !errors.Is(err, ErrRefused) {
			t.Errorf("%s, requests %v beside %v: got error %v, want it to fit: %t", row.claim, row.requests, row.others,
				err, row.fits)
		}
		if !row.fits && !strings.Contains(err.Error(), other[0]) {
			t.Errorf("%s: the error does not name the other device: %v", row.claim, err)
		}
	}
}

// Under MPS, the memory of the daemon is mounted at /dev/shm. An emptyDir there has nothing to lose, and its container
// is named for an event; another volume is refused.
func TestContainersWithOwnSharedMemory(t *testing.T) {
	const mps, mpsInside, hook, none, alone = "a=mps:5Gi/0", `a=alone|{"strategy":"MPS"}`, "a=hook:5Gi/30",
		"a=none:5Gi/30", "a=alone"
	host := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/shm"}}
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for _, row := range []struct {
		claim, path string
		source      corev1.VolumeSource
		want        string // the container as one whose volume is not mounted, or a part of the error
	}{
		{mps, "/dev/shm", empty, "[main]"}, {mpsInside, "/dev/shm", empty, "[main]"}, {hook, "/dev/shm", empty, "[]"},
		{none, "/dev/shm", empty, "[]"}, {alone, "/dev/shm", empty, "[]"}, {mps, "/dev/shm/x", empty, "[]"},
		{mps, "/dev/shm", host, "is no emptyDir"}, {hook, "/dev/shm", host, "[]"},
		{mps, "/dev/shm/", empty, "has the mountPath /dev/shm/"}, {mps, "dev/shm", empty, "has the mountPath dev/shm"},
	} {
		plan, err := NewPlan(shareResults(t, row.claim), shareInventory, nil)
		if err != nil {
			t.Fatal(err)
		}
		main := corev1.Container{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "other", MountPath: "/data"},
			{Name: "v", MountPath: row.path}}}
		pod := &corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: row.source}}}
		container := Container{Name: "main", SharedMemory: SharedMemoryOf(pod, &main)}
		got := fmt.Sprint(plan.WithUnmounted([]Container{container}).Assignments[0].Unmounted)
		if err := plan.CheckContainer(container); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, row.want) {
			t.Errorf("%s at %s: got %s, want %s", row.claim, row.path, got, row.want)
		}
	}
}

// The daemon of a card serves all who have a share of it: nobody's limit may be below what one of them may use.
func TestDaemonOfSeveralClaims(t *testing.T) {
	plan := func(claim string) Plan {
		p, err := NewPlan(shareResults(t, claim), shareInventory, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	small, large, all := plan("a=mps:5Gi/30"), plan("a=mps:10Gi/20"), plan("a=mps:7Gi/0")
	for _, row := range []struct {
		name   string
		plan   Plan
		others []Holder
		want   string
	}{
		{"alone", small, nil, "mps 30% 5Gi"},
		{"with a larger one", small, []Holder{{Plan: large}}, "mps 30% 10Gi"},
		{"with one that has all multiprocessors", small, []Holder{{Plan: all}}, "mps 0% 7Gi"},
		{"the order does not matter", all, []Holder{{Plan: large}, {Plan: small}}, "mps 0% 10Gi"},
		{"a claim on another card is ignored", small, []Holder{{Plan: plan("a=mps2:10Gi/0")}}, "mps 30% 5Gi"},
	} {
		daemons := Daemons(row.plan.DaemonIDs(), append(row.others, Holder{Plan: row.plan}))
		if len(daemons) != 1 || !daemons[0].MultiUser {
			t.Fatalf("%s: got %+v, want one daemon for many users", row.name, daemons)
		}
		d := daemons[0]
		if got := fmt.Sprintf("%s %d%% %s", d.ID, d.ThreadPercentage, quantity(d.Memory["GPU-mps"])); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

func TestState(t *testing.T) {
	plan := func(claim string) Plan {
		p, err := NewPlan(shareResults(t, claim), shareInventory, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const long = `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`
	partition := func(uuid gpu.UUID) Plan {
		return Plan{Assignments: []Assignment{{GPU: "GPU-mig", Partition: &AssignedPartition{UUID: uuid}}}}
	}
	dynamic := inventory.New([]gpu.Device{{UUID: "GPU-mig", Use: gpu.SharingMode{Partitions: gpu.PartitionsDynamic}}})
	text := func(s gpu.DesiredState) string {
		out := fmt.Sprint("MIG ", s.MIG)
		if s.Settings != nil {
			out += fmt.Sprintf(", time slice %q, compute mode %q", s.Settings.Interval, s.Settings.Mode)
		}
		return out
	}
	for _, row := range []struct {
		name   string
		id     gpu.UUID
		plan   Plan
		others []Plan
		held   string // while the claim holds the GPU
		after  string // when it is released
	}{
		{"a whole GPU", "GPU-alone", plan("a=alone"), nil, "MIG unchanged", "MIG unchanged"},
		{"a share", "GPU-mps", plan("a=mps:5Gi/30"), nil,
			"MIG unchanged, time slice \"\", compute mode \"EXCLUSIVE_PROCESS\"",
			"MIG unchanged, time slice \"\", compute mode \"\""},
		{"one of two shares", "GPU-mps", plan("a=mps:5Gi/30"), []Plan{plan("a=mps:5Gi/30")},
			"MIG unchanged, time slice \"\", compute mode \"EXCLUSIVE_PROCESS\"", "MIG unchanged"},
		{"a time slice", "GPU-alone", plan("a=alone|" + long), nil,
			"MIG unchanged, time slice \"Long\", compute mode \"\"", "MIG unchanged, time slice \"Default\", compute " +
				"mode \"\""},
		{"admin access", "GPU-alone", Plan{Assignments: []Assignment{{GPU: "GPU-alone", AdminAccess: true,
			Settings: gpu.Settings{Mode: gpu.ExclusiveProcess}}}}, nil,
			"MIG unchanged", "MIG unchanged"},
		{"a partition to create", "GPU-mig", partition(""), nil, "MIG on", "MIG off if unused"},
		{"a created partition", "GPU-mig", partition("MIG-1"), nil, "MIG unchanged", "MIG off if unused"},
		{"one of two partitions", "GPU-mig", partition("MIG-1"), []Plan{partition("MIG-2")}, "MIG unchanged",
			"MIG unchanged"},
		{"a partitionable GPU as a whole", "GPU-mig", Plan{Assignments: []Assignment{{GPU: "GPU-mig"}}},
			nil, "MIG off", "MIG unchanged"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var others []Holder
			for _, p := range row.others {
				others = append(others, Holder{Plan: p})
			}
			if got := text(State(row.id, append([]Holder{{Plan: row.plan}}, others...), dynamic)); got != row.held {
				t.Errorf("held: got %s, want %s", got, row.held)
			}
			if got := text(StateWithout(row.id, row.plan, others)); got != row.after {
				t.Errorf("released: got %s, want %s", got, row.after)
			}
		})
	}
}

func shareResults(t *testing.T, claim string) []allocation.Result {
	t.Helper()
	list, sharing, configured := strings.Cut(claim, "|")
	var config api.DeviceConfig
	if configured {
		var err error
		config, err = api.Decode([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":`+
			sharing+`}`), field.NewPath("p"))
		if err != nil {
			t.Fatal(err)
		}
	}
	var results []allocation.Result
	for i, one := range strings.Fields(list) {
		request, device, _ := strings.Cut(one, "=")
		device, counted, shared := strings.Cut(device, ":")
		r := allocation.Result{Request: request, Device: device, Config: config}
		if shared {
			r.ShareID = types.UID(fmt.Sprint("share-", i))
			if replicas, ok := strings.CutSuffix(counted, "x"); ok {
				fmt.Sscan(replicas, &r.Consumed.Replicas)
			} else {
				memory, cores, _ := strings.Cut(counted, "/")
				q := resource.MustParse(memory)
				r.Consumed.Memory = uint64(q.Value())
				fmt.Sscan(cores, &r.Consumed.Cores)
			}
		}
		results = append(results, r)
	}
	return results
}

func sharesText(plan Plan, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for _, a := range plan.Assignments {
		words := []string{a.Request, a.Device}
		if s := a.Share; s != nil && s.Replicas > 0 {
			words = append(words, fmt.Sprintf("%dx", s.Replicas))
		} else if s != nil {
			words = append(words, fmt.Sprintf("%s/%d", quantity(s.Memory), s.Cores))
		}
		if a.Settings.Interval != "" {
			words = append(words, "interval="+string(a.Settings.Interval))
		}
		if a.Settings.Mode != "" {
			words = append(words, "mode="+string(a.Settings.Mode))
		}
		switch {
		case a.MPS != nil:
			words = append(words, "daemon="+a.MPS.Daemon)
		case a.Hook != nil:
			words = append(words, "hook="+a.Hook.Library)
		}
		words = append(words, a.Limits()...)
		if a.Unenforced {
			words = append(words, "unenforced")
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(lines, "\n")
}

// An MPS server has 48 clients. The 49th would be refused by CUDA in the container.
func TestClientsOfMPS(t *testing.T) {
	for _, row := range []struct {
		device string
		shares int
		want   string
	}{
		{"mps", 48, ""},
		{"mps", 49, "request a: device mps has 48 shares with isolation mps, and an MPS server has no more " +
			"clients: device in use"},
		{"hook", 60, ""},
		{"none", 60, ""},
	} {
		var others []Holder
		var err error
		for range row.shares {
			if err != nil {
				t.Fatal(err)
			}
			var plan Plan
			plan, err = NewPlan(shareResults(t, "a="+row.device+":1Gi/0"), shareInventory, others)
			others = append(others, Holder{Plan: plan})
		}
		if got := fmt.Sprint(err); err != nil && got != row.want || err == nil && row.want != "" {
			t.Errorf("%d shares of %s: got %v, want %q", row.shares, row.device, err, row.want)
		}
		if err != nil && !errors.Is(err, ErrInUse) {
			t.Errorf("got %v, want that it may be free later", err)
		}
	}
}

// A claim may ask for MPS on a whole GPU that is older than the limits of MPS.
func TestLimitsOfMPSBeforeVolta(t *testing.T) {
	for _, row := range []struct {
		major int
		mps   api.MPS
		want  bool
	}{{6, api.MPS{}, false}, {6, api.MPS{ThreadPercentage: 30}, true}, {6, api.MPS{Memory: 1 << 30}, true},
		{7, api.MPS{ThreadPercentage: 30}, false}} {
		d := gpu.Device{Name: "gpu-0", UUID: "GPU-0", Memory: 16 << 30, Use: gpu.SharingMode{Sharing: gpu.Exclusive},
			Product: gpu.Product{ComputeCapability: gpu.Version{Major: row.major}}}
		plan, err := NewPlan([]allocation.Result{{Device: "gpu-0",
			Config: api.DeviceConfig{Sharing: api.Sharing{MPS: &row.mps}}}}, inventory.Inventory{d}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Assignments[0].Unenforced; got != row.want {
			t.Errorf("%d, %+v: got unenforced %t, want %t", row.major, row.mps, got, row.want)
		}
	}
}

func TestNoMPSOnAVGPU(t *testing.T) {
	d := gpu.Device{Name: "gpu-0", UUID: "GPU-0", Memory: 8 << 30, Guest: &gpu.Guest{}}
	d.Use = gpu.SharingMode{}.EnforceableOn(d)
	if got := d.Use.String(); got != "exclusive" {
		t.Errorf("by default: got %s, want exclusive", got)
	}
	replicas := gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2}
	if got := replicas.EnforceableOn(d).String(); got != "replicated: 2, isolation none" {
		t.Errorf("replicas: got %s", got)
	}
	_, err := NewPlan([]allocation.Result{{Request: "r", Device: "gpu-0",
		Config: api.DeviceConfig{Sharing: api.Sharing{MPS: &api.MPS{}}}}}, inventory.Inventory{d}, nil)
	const want = "request r: device gpu-0: sharing.strategy MPS: it is a vGPU, "
	if !errors.Is(err, ErrRefused) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a claim for MPS: got %v, want %s…", err, want)
	}
}
