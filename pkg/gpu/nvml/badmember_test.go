// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"os"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// A profile that the driver cannot name, or that NVML does not describe, is left out alone.
func TestOneBadProfile(t *testing.T) {
	for _, tt := range []struct{ name, info string }{
		{"a number that is newer than the library", "17: {id: 40, name: 3g.72gb+gfx, sliceCount: 3,"},
		{"slices that no compute instance has", "17: {id: 41, name: 5g.96gb, sliceCount: 5,"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := withProfile(t, tt.info+" instanceCount: 1, multiprocessorCount: 140, copyEngineCount: 3, "+
				"decoderCount: 3, encoderCount: 3, jpegCount: 3, ofaCount: 0, memorySizeMB: 72960}",
				"17: [{start: 0, size: 9}]",
				"17: {2: {id: 2, sliceCount: 3, instanceCount: 1, multiprocessorCount: 140}}")
			m, n := machineOf(t, p)
			d := first(t, n)
			if len(d.MIG.Profiles) != 11 || len(d.MIG.Problems) != 1 || d.MIG.Unlisted {
				t.Errorf("got %d profiles and problems %q, want 11 and one", len(d.MIG.Profiles), d.MIG.Problems)
			}
			must(t, m.SwitchMIG("0", 1))
			d = first(t, n)
			if len(d.MIG.Profiles) != 11 || !d.MIG.Enabled || d.MIG.Unlisted {
				t.Errorf("in MIG mode: got %+v, want 11 profiles", d.MIG)
			}
			// Somebody makes a partition of it: it occupies its place.
			library := m.NVML()
			if ret := library.Init(); ret != nvmllib.SUCCESS {
				t.Fatal(ret)
			}
			handle, ret := library.DeviceGetHandleByUUID(string(d.UUID))
			if ret != nvmllib.SUCCESS {
				t.Fatal(ret)
			}
			if ret := createInstance(handle); ret != nvmllib.SUCCESS {
				t.Fatal(ret)
			}
			d = first(t, n)
			if len(d.MIG.Instances) != 1 || d.MIG.Instances[0].Profile != "" || d.MIG.Instances[0].Size != 9 {
				t.Errorf("got partitions %+v, want the one without a name", d.MIG.Instances)
			}
			p0 := d.MIG.Profiles[0]
			err := n.CheckPlacement(t.Context(), gpu.Placement{Parent: d.UUID, Profile: p0.Name, Size: p0.Size})
			if err == nil || !strings.Contains(err.Error(), "a partition at 0") {
				t.Errorf("got %v, want the partition in the way", err)
			}
		})
	}
}

// createInstance creates a GPU instance of the profile that withProfile adds.
func createInstance(handle nvmllib.Device) nvmllib.Return {
	info, ret := handle.GetGpuInstanceProfileInfo(17)
	if ret != nvmllib.SUCCESS {
		return ret
	}
	_, ret = handle.CreateGpuInstanceWithPlacement(&info, &nvmllib.GpuInstancePlacement{Start: 0, Size: 9})
	return ret
}

// withProfile is the profile rtxpro6000-x2, whose GPUs have one MIG profile more.
func withProfile(t *testing.T, info, span, compute string) simulator.Profile {
	t.Helper()
	table, err := os.ReadFile("../../hwprofile/mig/rtxpro6000-96gb.yaml")
	must(t, err)
	section := func(name, end string) string {
		_, rest, _ := strings.Cut(string(table), name+":\n")
		s, _, _ := strings.Cut(rest, end)
		return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(s), "\n  ", ", "), "\n", ", ")
	}
	builtIn, err := simulator.BuiltIn("rtxpro6000-x2")
	must(t, err)
	text := builtIn.YAML()
	for _, call := range []struct{ name, end, more string }{
		{"GetGpuInstanceProfileInfo", "GetGpuInstancePossiblePlacements", info},
		{"GetGpuInstancePossiblePlacements", "#", span},
		{"GpuInstanceGetComputeInstanceProfileInfo", "#", compute},
	} {
		text = strings.ReplaceAll(text, call.name+": rtxpro6000-96gb",
			call.name+": {"+section(call.name, call.end)+", "+call.more+"}")
	}
	p, err := simulator.ParseProfile([]byte(text))
	must(t, err)
	return p
}

// oneFails is a library in which calls about one profile of GPU instances fail.
type oneFails struct {
	nvmllib.Interface
	profile    func(number int) nvmllib.Return
	placements func(id uint32) nvmllib.Return
	instances  func(id uint32) nvmllib.Return
}

func (l *oneFails) DeviceGetHandleByIndex(i int) (nvmllib.Device, nvmllib.Return) {
	d, ret := l.Interface.DeviceGetHandleByIndex(i)
	return oneFailsDevice{d, l}, ret
}

func (l *oneFails) DeviceGetHandleByUUID(id string) (nvmllib.Device, nvmllib.Return) {
	d, ret := l.Interface.DeviceGetHandleByUUID(id)
	return oneFailsDevice{d, l}, ret
}

type oneFailsDevice struct {
	nvmllib.Device
	library *oneFails
}

func (d oneFailsDevice) GetGpuInstanceProfileInfo(n int) (nvmllib.GpuInstanceProfileInfo, nvmllib.Return) {
	if f := d.library.profile; f != nil && f(n) != nvmllib.SUCCESS {
		return nvmllib.GpuInstanceProfileInfo{}, f(n)
	}
	return d.Device.GetGpuInstanceProfileInfo(n)
}

func (d oneFailsDevice) GetGpuInstancePossiblePlacements(
	info *nvmllib.GpuInstanceProfileInfo) ([]nvmllib.GpuInstancePlacement, nvmllib.Return) {
	if f := d.library.placements; f != nil && f(info.Id) != nvmllib.SUCCESS {
		return nil, f(info.Id)
	}
	return d.Device.GetGpuInstancePossiblePlacements(info)
}

func (d oneFailsDevice) GetGpuInstances(info *nvmllib.GpuInstanceProfileInfo) ([]nvmllib.GpuInstance, nvmllib.Return) {
	if f := d.library.instances; f != nil && f(info.Id) != nvmllib.SUCCESS {
		return nil, f(info.Id)
	}
	return d.Device.GetGpuInstances(info)
}

// What NVML does not tell about one profile is as it was, and everything else is as it is.
func TestOneProfileFails(t *testing.T) {
	is := func(bad uint32) func(uint32) nvmllib.Return {
		return func(id uint32) nvmllib.Return {
			if id == bad {
				return nvmllib.ERROR_UNKNOWN
			}
			return nvmllib.SUCCESS
		}
	}
	const oneSlice = 19 // ID of 1g.10gb
	for _, tt := range []struct {
		name     string
		fails    oneFails
		profiles int // without knowledge of before
	}{
		{"its description", oneFails{profile: func(n int) nvmllib.Return {
			return is(0)(uint32(n))
		}}, 6},
		{"its placements", oneFails{placements: is(oneSlice)}, 6},
		{"its instances", oneFails{instances: is(oneSlice)}, 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, n := machine(t, "dgx-h100")
			must(t, m.SwitchMIG("0", 1))
			d := first(t, n)
			for _, at := range []gpu.Placement{place(t, d, "1g.10gb", 0), place(t, d, "2g.20gb", 4)} {
				if _, err := n.CreatePartition(t.Context(), at, ""); err != nil {
					t.Fatal(err)
				}
			}
			fails := &oneFails{Interface: n.MachineConfig.Library}
			config := n.MachineConfig
			config.Library = fails
			knows, err := nvml.Open(config)
			must(t, err)
			if d := first(t, knows); len(d.MIG.Profiles) != 7 || len(d.MIG.Instances) != 2 {
				t.Fatalf("before: got %+v", d.MIG)
			}
			fails.profile, fails.placements, fails.instances = tt.fails.profile, tt.fails.placements, tt.fails.instances
			started, err := nvml.Open(config)
			must(t, err)
			d = first(t, started)
			if len(d.MIG.Profiles) != tt.profiles || len(d.MIG.Instances) != 1 || !d.MIG.Unlisted ||
				len(d.MIG.Problems) != 1 {
				t.Errorf("after a start: got %+v, want %d profiles, one partition, and perhaps others", d.MIG,
					tt.profiles)
			}
			d = first(t, knows)
			if len(d.MIG.Profiles) != 7 || len(d.MIG.Instances) != 2 || d.MIG.Unlisted {
				t.Errorf("what was known before: got %+v, want 7 profiles and two partitions", d.MIG)
			}
			// The other profile's partition can be removed.
			must(t, started.DestroyPartition(t.Context(), place(t, d, "2g.20gb", 4), d.MIG.Instances[1].UUID))
		})
	}
}
