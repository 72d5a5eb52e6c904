// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"fmt"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// gpus are the handles of a simulated machine.
func gpus(t *testing.T, profile string) []nvmllib.Device {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	if err != nil {
		t.Fatal(err)
	}
	m, err := simulator.Open(tmpfs.Dir(t), p)
	if err != nil {
		t.Fatal(err)
	}
	library := m.NVML()
	if ret := library.Init(); ret != nvmllib.SUCCESS {
		t.Fatal(ret)
	}
	t.Cleanup(func() { _ = library.Shutdown() })
	count, ret := library.DeviceGetCount()
	if ret != nvmllib.SUCCESS {
		t.Fatal(ret)
	}
	var out []nvmllib.Device
	for i := range count {
		d, ret := library.DeviceGetHandleByIndex(i)
		if ret != nvmllib.SUCCESS {
			t.Fatal(ret)
		}
		out = append(out, d)
	}
	return out
}

// A GeForce has nothing that only boards for data centres have; everything that asks for it is told so.
func TestGeForceLacksDataCentreFeatures(t *testing.T) {
	for i, d := range gpus(t, "rtx2080ti-x4") {
		for call, ret := range map[string]nvmllib.Return{
			"GetSerial":          second(d.GetSerial()),
			"GetBoardPartNumber": second(d.GetBoardPartNumber()),
			"GetEccMode":         third(d.GetEccMode()),
			"GetTotalEccErrors": second(d.GetTotalEccErrors(nvmllib.MEMORY_ERROR_TYPE_UNCORRECTED,
				nvmllib.VOLATILE_ECC)),
			"GetRetiredPages":           second(d.GetRetiredPages(nvmllib.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)),
			"GetMigMode":                third(d.GetMigMode()),
			"SetMigMode":                second(d.SetMigMode(nvmllib.DEVICE_MIG_ENABLE)),
			"GetGpuInstanceProfileInfo": second(d.GetGpuInstanceProfileInfo(0)),
			"GetNumaNodeId":             second(d.GetNumaNodeId()),
			"GetGpuFabricInfo":          second(d.GetGpuFabricInfo()),
		} {
			if ret != nvmllib.ERROR_NOT_SUPPORTED {
				t.Errorf("GPU %d: %s: got %v, want %v", i, call, ret, nvmllib.ERROR_NOT_SUPPORTED)
			}
		}
		const ecc = nvmllib.EventTypeSingleBitEccError | nvmllib.EventTypeDoubleBitEccError
		if events, ret := d.GetSupportedEventTypes(); ret != nvmllib.SUCCESS || events&ecc != 0 ||
			events&nvmllib.EventTypeXidCriticalError == 0 {
			t.Errorf("GPU %d: events %#x, %v, want XIDs and none of ECC", i, events, ret)
		}
	}
}

func second[A any](_ A, ret nvmllib.Return) nvmllib.Return { return ret }

func third[A, B any](_ A, _ B, ret nvmllib.Return) nvmllib.Return { return ret }

// The memory of a GPU beside a Grace is a NUMA node, and both use the same addresses.
func TestGraceGPUs(t *testing.T) {
	var got []string
	for _, d := range gpus(t, "gb200-nvl4") {
		memory, ret := d.GetNumaNodeId()
		mode, modeRet := d.GetAddressingMode()
		got = append(got, fmt.Sprint(memory, " ", ret, " ",
			nvmllib.DeviceAddressingModeType(mode.Value) == nvmllib.DEVICE_ADDRESSING_MODE_ATS, " ", modeRet))
	}
	const want = "2 SUCCESS true SUCCESS; 10 SUCCESS true SUCCESS; 18 SUCCESS true SUCCESS; 26 SUCCESS true SUCCESS"
	if got := strings.Join(got, "; "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A link that leads to a GPU leads back, as often: else a profile would describe a machine that cannot be.
func TestLinksAreSymmetric(t *testing.T) {
	for _, profile := range simulator.Profiles() {
		p, err := simulator.BuiltIn(profile)
		if err != nil {
			t.Fatal(err)
		}
		links := map[string]int{}
		for _, g := range p.GPUs {
			state, _ := g.Calls.GetNvLinkState.Get()
			kinds, _ := g.Calls.GetNvLinkRemoteDeviceType.Get()
			ends, _ := g.Calls.GetNvLinkRemotePciInfo.Get()
			for link, on := range state {
				if end, ok := ends[link]; (on == 1) != ok {
					t.Errorf("%s: %s: link %d: on %v, with another end %v", profile, g.PCI.Address, link, on, ok)
				} else if ok && kinds[link] == 0 {
					links[g.PCI.Address.String()+" "+end.String()]++
				}
			}
		}
		for between, n := range links {
			a, b, _ := strings.Cut(between, " ")
			if back := links[b+" "+a]; back != n {
				t.Errorf("%s: %d links from %s to %s, %d back", profile, n, a, b, back)
			}
		}
	}
}
