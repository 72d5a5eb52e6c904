// SPDX-License-Identifier: Apache-2.0

package hwprofile_test

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// partitioned is a profile with all that the built-in ones lack.
const partitioned = `name: x
system: {SystemGetDriverVersion: 580.95.05-beta, SystemGetNVMLVersion: {error: ERROR_NO_PERMISSION}}
gpus:
- pci: {address: "0000:01:00.0", root: "pci0000:00", bridges: ["0000:00:01.0"], numaNode: -1}
  calls:
    GetName: "null"
    GetArchitecture: 4000000000
    GetUUID: GPU-00000000-0000-0000-0000-000000000001
    GetCudaComputeCapability: {major: 9, minor: 0}
    GetMigMode: {current: 1, pending: 1}
    GetGpuInstanceProfileInfo: {3: {id: 9, name: 3g.40gb, sliceCount: 3, instanceCount: 2, multiprocessorCount: 60, copyEngineCount: 3, memorySizeMB: 40448}}
    GetGpuInstancePossiblePlacements: {3: [{start: 0, size: 4}, {start: 4, size: 4}]}
    GpuInstanceGetComputeInstanceProfileInfo: {3: {0: {id: 0, sliceCount: 1, instanceCount: 3, multiprocessorCount: 20}}}
    GetNvLinkState: {0-3: FEATURE_ENABLED, 5: FEATURE_DISABLED, 6-7: FEATURE_ENABLED}
    GetTopologyCommonAncestor: {"0000:02:00.0": TOPOLOGY_SYSTEM}
    GetSamples: {error: ERROR_NO_DATA}
  gpuInstances:
  - {id: 2, profile: 3, span: {start: 4, size: 4}, compute: [{id: 1, profile: 0, span: {start: 1, size: 1}, uuid: MIG-00000000-0000-0000-0000-000000000001}]}
- pci: {address: "0000:02:00.0", root: "pci0000:00"}
  calls: {DeviceGetHandleByIndex: {error: ERROR_GPU_IS_LOST}}
`

func TestFormatRoundTrip(t *testing.T) {
	texts := map[string]string{"partitioned": partitioned}
	for _, name := range node.Names() {
		texts[name] = builtIn(t, name).YAML()
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			p, err := hwprofile.ParseProfile([]byte(text))
			must(t, err)
			out, err := hwprofile.Format(p)
			must(t, err)
			again, err := hwprofile.ParseProfile(out)
			must(t, err)
			if !p.Same(again) {
				t.Errorf("another machine:\n%s", out)
			}
			if second, err := hwprofile.Format(again); err != nil || string(second) != string(out) {
				t.Errorf("written again (%v):\n%s\nwant:\n%s", err, second, out)
			}
		})
	}
}

func TestFormatSharesDefaults(t *testing.T) {
	out, err := hwprofile.Format(builtIn(t, "hgx-h200"))
	must(t, err)
	for _, once := range []string{"GetName: ", "deviceId: 0x2335", "GetNvLinkState: {0-17: FEATURE_ENABLED}",
		"GetGpuInstanceProfileInfo: h200-141gb"} {
		if got := strings.Count(string(out), once); got != 1 {
			t.Errorf("%q is written %d times:\n%s", once, got, out)
		}
	}
}

func TestFormatOfInvalidProfile(t *testing.T) {
	p := builtIn(t, "t4-x2")
	p.Name = ""
	if _, err := hwprofile.Format(p); err == nil || !strings.Contains(err.Error(), "name: missing") {
		t.Errorf("error %v, want one about the name", err)
	}
}

func TestInitialGPUInstances(t *testing.T) {
	p, err := hwprofile.ParseProfile([]byte(partitioned))
	must(t, err)
	n := open(t, p)
	text := func() string { return strings.Join(strings.Split(n.String(), "\n")[1:3], "\n") }
	at := func(want string) {
		t.Helper()
		if got := text(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
	const gpu = `gpu-01-00-0 null memory=0MiB numa=-1 root=pci0000:00 mode=Default mig=on`
	at(gpu + "\ngpu-01-00-0/1c.3g.40gb@4 gi=2 ci=1")
	must(t, n.AddProcess("gpu-01-00-0/1c.3g.40gb@4", "train", 1<<30))
	must(t, n.RemoveProcess("gpu-01-00-0/1c.3g.40gb@4", "train"))
	at(gpu + "\ngpu-01-00-0/1c.3g.40gb@4 gi=2 ci=1")
	must(t, n.DestroyComputeInstance("0", 2, 1))
	at(gpu + "\ngpu-01-00-0/3g.40gb@4 gi=2")
	must(t, n.DestroyGPUInstance("0", 2))
	at(gpu + "\ngpu-02-00-0 ERROR_NOT_SUPPORTED memory=0MiB numa=0 root=pci0000:00 mode=Default")
}

func TestInvalidGPUInstances(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"without MIG mode", "current: 1, pending: 1", "current: 0, pending: 0",
			"gpus[0].gpuInstances: the GPU is not in MIG mode"},
		{"at a place that the profile does not have", "span: {start: 4", "span: {start: 1",
			"gpus[0].gpuInstances[0]: profile 3 cannot be at 1 with a size of 4"},
		{"with an unknown compute instance", "[{id: 1, profile: 0", "[{id: 1, profile: 2",
			"compute[0].profile: 2 is no compute instance profile of profile 3"},
		{"with a UUID that is none", "uuid: MIG-", "uuid: GPU-", "compute[0].uuid: \"GPU-0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := hwprofile.ParseProfile([]byte(strings.Replace(partitioned, tt.old, tt.new, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}
