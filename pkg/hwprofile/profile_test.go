// SPDX-License-Identifier: Apache-2.0

package hwprofile_test

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// base is a profile without mistakes, with a place for a difference.
const base = `name: small
system: {SystemGetDriverVersion: 580.95.05}
defaults:
  calls: {GetName: One}
gpus:
- pci: {address: "0000:3b:00.0", root: "pci0000:3a"}
  calls: {GetSerial: "1"}
- pci: {address: "0000:af:00.0", root: "pci0000:ae"}
`

func TestParseProfileNamesEveryMistake(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"nothing wrong", "", "", ""},
		{"an unknown field at the top", "name:", "nmae:", "line 1: nmae: unknown field; accepted here: defaults, " +
			"description, gpus, kernel, name, system"},
		{"an unknown field of a GPU", "- pci: {address: \"0000:af", "- speed: 1\n  pci: {address: \"0000:af",
			"gpus[1].speed: unknown field; accepted here: calls, gpuInstances, pci"},
		{"an unknown field of a place", "root: \"pci0000:ae\"", "rooot: x",
			"gpus[1].pci.rooot: unknown field; accepted here: address, bridges, deviceId"},
		{"an unknown call", "GetSerial: \"1\"", "GetMemoryInf: 1", "line 7: gpus[0].calls.GetMemoryInf: NVML has no " +
			"device call \"GetMemoryInf\"; the calls are the methods of go-nvml's Device, such as GetMemoryInfo"},
		{"an unknown call in the defaults", "GetName: One", "GetNames: One",
			"defaults.calls.GetNames: NVML has no device call"},
		{"an unknown call of the system", "{SystemGetDriver", "{SystemGetX: 1, SystemGetDriver",
			"system.SystemGetX: unknown field; accepted here: SystemGetCudaDriverVersion"},
		{"a value for a call that has none here", "GetSerial: \"1\"", "GetSamples: 1",
			"gpus[0].calls.GetSamples: this call can only answer {error: NAME} here"},
		{"an error for a call that has no values here", "GetSerial: \"1\"", "GetSamples: {error: ERROR_NO_PERMISSION}",
			""},
		{"an unknown error", "GetSerial: \"1\"", "GetSerial: {error: ERROR_X}",
			"gpus[0].calls.GetSerial.error: \"ERROR_X\" is not one of ERROR_UNINITIALIZED"},
		{"an unknown constant", "GetSerial: \"1\"", "GetBrand: Nvidia",
			"gpus[0].calls.GetBrand: \"Nvidia\" is not one of BRAND_UNKNOWN"},
		{"a word for a number", "GetSerial: \"1\"", "GetNumGpuCores: many",
			"gpus[0].calls.GetNumGpuCores: \"many\": want a whole number"},
		{"a negative number of bits", "GetSerial: \"1\"", "GetMemoryBusWidth: -1",
			"gpus[0].calls.GetMemoryBusWidth: \"-1\": want a whole number from 0 to 4294967295"},
		{"no value", "GetSerial: \"1\"", "GetSerial: ", "gpus[0].calls.GetSerial: \"\": want a string"},
		{"a list for a map", "GetSerial: \"1\"", "GetMemoryInfo: [1]",
			"gpus[0].calls.GetMemoryInfo: a list: want a map with the fields reserved, total, used"},
		{"more memory used than there is", "GetSerial: \"1\"", "GetMemoryInfo: {total: 1, used: 2}",
			"gpus[0].calls.GetMemoryInfo: want a total of at least reserved and used together"},
		{"a link that does not exist", "GetSerial: \"1\"", "GetNvLinkState: {0-36: FEATURE_ENABLED}",
			"gpus[0].calls.GetNvLinkState.0-36: want a link from 0 to 35 or a range"},
		{"a link twice", "GetSerial: \"1\"", "GetNvLinkState: {0-2: FEATURE_ENABLED, 1: FEATURE_ENABLED}",
			"gpus[0].calls.GetNvLinkState.1: link 1 is given twice"},
		{"a call twice", "GetSerial: \"1\"", "GetName: a, GetName: b", "gpus[0].calls.GetName: given twice"},
		{"a clock that does not exist", "GetSerial: \"1\"", "GetClockInfo: {CLOCK_X: 1}",
			"gpus[0].calls.GetClockInfo.CLOCK_X: \"CLOCK_X\" is not one of CLOCK_GRAPHICS, CLOCK_SM"},
		{"a UUID that is none", "GetSerial: \"1\"", "GetUUID: 7", "gpus[0].calls.GetUUID: \"7\": want GPU-xxxxxxxx-"},
		{"a fabric without a cluster", "GetSerial: \"1\"", "GetGpuFabricInfo: {cliqueId: 1}",
			"gpus[0].calls.GetGpuFabricInfo.clusterUuid: \"\": want xxxxxxxx-"},
		{"a minor out of range", "GetSerial: \"1\"", "GetMinorNumber: 248",
			"gpus[0].calls.GetMinorNumber: 248: want 0 to 247"},
		{"the same minor twice", "GetSerial: \"1\"", "GetMinorNumber: 1",
			"gpus[1].calls.GetMinorNumber: 1 is also that of gpus[0]"},
		{"the same address twice", "0000:af:00.0", "0000:3b:00.0", "gpus[1].pci.address: 0000:3b:00.0 is also that " +
			"of gpus[0]"},
		{"the same address twice in other words", "0000:af:00.0", "00000000:3B:00.0",
			"gpus[1].pci.address: 0000:3b:00.0 is also that of gpus[0]"},
		{"an address that is none", "0000:af:00.0", "af:00.0", "gpus[1].pci.address: \"af:00.0\" is no PCI address " +
			"such as 0000:1b:00.0"},
		{"no root", ", root: \"pci0000:ae\"", "", "gpus[1].pci.root: \"\": want a root complex such as pci0000:15"},
		{"a NUMA node that cannot be", "root: \"pci0000:ae\"", "root: \"pci0000:ae\", numaNode: 1024",
			"gpus[1].pci.numaNode: 1024: want -1 (the machine does not say) to 1023"},
		{"no name", "name: small\n", "", "name: missing"},
		{"a driver version that names no library", "580.95.05", "new",
			"system.SystemGetDriverVersion: want a version such as 580.95.05"},
		{"two mistakes", "GetSerial: \"1\"", "GetX: 1, GetBrand: y", "gpus[0].calls.GetBrand: \"y\" is not one of"},
		{"not YAML", "name: small", "name: [", "parse profile: yaml:"},
		{"a list", base, "- a\n", "a list: want a map with the fields"},
		{"nothing", base, "", "parse profile: the file is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := hwprofile.ParseProfile([]byte(strings.Replace(base, tt.old, tt.new, 1)))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error:\n%v\nwant it to contain:\n%s", err, tt.want)
			}
		})
	}
}

func TestParseProfileRefusesTooManyGPUs(t *testing.T) {
	text := strings.Replace(base, "gpus:\n", "gpus:\n"+strings.Repeat("- {}\n", hwprofile.MaxGPUs), 1)
	_, err := hwprofile.ParseProfile([]byte(text))
	if err == nil || !strings.Contains(err.Error(), "gpus: 66 GPUs: at most 64") {
		t.Errorf("error %v, want one about the number of GPUs", err)
	}
}

func TestGPUReplacesDefaults(t *testing.T) {
	p, err := hwprofile.ParseProfile([]byte(`name: x
system: {SystemGetDriverVersion: 580.95.05}
defaults:
  pci: {root: "pci0000:00", deviceId: 0x2330, numaNode: 1}
  calls: {GetName: One, GetMemoryInfo: {total: 10, reserved: 5}, GetSamples: {error: ERROR_NO_DATA}}
gpus:
- pci: {address: "0000:01:00.0", numaNode: 0}
  calls: {GetName: {error: ERROR_UNKNOWN}, GetMemoryInfo: {total: 20}}
- pci: {address: "0000:02:00.0"}
`))
	if err != nil {
		t.Fatal(err)
	}
	first, second := p.GPUs[0], p.GPUs[1]
	name, e := first.Calls.GetName.Get()
	memory, _ := first.Calls.GetMemoryInfo.Get()
	if name != "" || e != "ERROR_UNKNOWN" || memory != (hwprofile.Memory{Total: 20}) || first.PCI.NUMANode != 0 ||
		first.PCI.DeviceID != 0x2330 {
		t.Errorf("first GPU: %+v", first)
	}
	name, e = second.Calls.GetName.Get()
	memory, _ = second.Calls.GetMemoryInfo.Get()
	if name != "One" || e != "" || memory != (hwprofile.Memory{Total: 10, Reserved: 5}) || second.PCI.NUMANode != 1 ||
		second.ErrorOf("GetSamples") != "ERROR_NO_DATA" {
		t.Errorf("second GPU: %+v", second)
	}
	if _, e := second.Calls.GetBrand.Get(); e != hwprofile.NotSupported {
		t.Errorf("a call that is not mentioned answers %q, want %q", e, hwprofile.NotSupported)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// builtIn is one of the profiles of the simulator.
func builtIn(t *testing.T, name string) hwprofile.Profile {
	t.Helper()
	p, err := node.BuiltIn(name)
	must(t, err)
	return p
}

// open is a simulated machine with that profile.
func open(t *testing.T, p hwprofile.Profile) *node.Node {
	t.Helper()
	n, err := node.Open(t.TempDir(), p)
	must(t, err)
	return n
}
