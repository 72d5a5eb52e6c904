// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// From NVML in a guest to what is published, also when the license comes and goes.
func TestVGPU(t *testing.T) {
	l, sim := simulated(t, "vgpu-guest")
	published := func(when, want string, events ...string) {
		t.Helper()
		for _, d := range l.Inventory().GPUs() { // asked for its health at once
			l.Machine.Recheck(d.UUID)
		}
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		d := l.published.Pools("node")["node"].Slices[0].Devices[0]
		got := fmt.Sprintf("vgpu=%t license=%q host=%s sharing=%s", *d.Attributes["vgpu"].BoolValue,
			*d.Attributes["vgpuLicense"].StringValue, *d.Attributes["vgpuHostDriverVersion"].VersionValue,
			*d.Attributes["sharing"].StringValue)
		for _, taint := range d.Taints {
			got += " " + taint.Value
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
		if len(l.recorded) != len(events) {
			t.Errorf("%s: got %d events, want %d", when, len(l.recorded), len(events))
		}
		for i, want := range events[:min(len(events), len(l.recorded))] {
			if !strings.HasPrefix(l.recorded[i], want) {
				t.Errorf("%s: got the event %q, want %q", when, l.recorded[i], want)
			}
		}
		l.recorded = nil
	}
	license := func(state hwprofile.Switch) {
		t.Helper()
		if err := sim.SetLicense("gpu-06-00-0", state); err != nil {
			t.Fatal(err)
		}
	}
	uuid := func() gpu.UUID { d, _ := l.Inventory().Find("gpu-06-00-0"); return d.UUID }
	const licensed = `vgpu=true license="licensed" host=580.95.2 sharing=exclusive`
	const unlicensed = `vgpu=true license="unlicensed" host=580.95.2 sharing=exclusive`
	published("with a license", licensed)
	license(hwprofile.Disabled)
	about := fmt.Sprintf("GPUNotice: GPU gpu-06-00-0 (NVIDIA L40S-24Q, %s): VGPUUnlicensed", uuid())
	published("without one", unlicensed, "Normal "+about)
	if state := l.state.health.States()[uuid()]; state.State != "healthy" ||
		fmt.Sprint(state.Causes) != "[VGPUUnlicensed]" {
		t.Errorf("got the state %+v, want it healthy with a cause", state)
	}
	license(hwprofile.Enabled)
	published("it has come", licensed, "Normal "+about+" has ended (healthy again)")
	l.write("default", configHead+"gpus: [{health: [{conditions: [VGPUUnlicensed], effect: NoSchedule}]}]")
	license(hwprofile.Disabled)
	published("an administrator keeps claims away", unlicensed+" VGPUUnlicensed", "Warning GPUUnhealthy")
	if err := sim.Fail("gpu-06-00-0", "GetGridLicensableFeatures", "ERROR_UNKNOWN"); err != nil {
		t.Fatal(err)
	}
	published("NVML does not tell", strings.Replace(unlicensed, "unlicensed", "", 1)+" VGPUUnlicensed")
	for _, d := range l.published {
		if d.Type != gpu.TypeGPU || d.MIG.Capable || d.VFIO != nil {
			t.Errorf("got %+v, want a GPU that is neither divided nor passed on", d)
		}
	}
}
