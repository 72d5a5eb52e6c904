// SPDX-License-Identifier: Apache-2.0

package gpuhealth_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// fault is a fault of the second GPU of a node. Its values are those that others have recorded, or that they fail for.
type fault struct {
	profile, register string // what the simulation's registers get
	source            string
	fromFirstLook     bool
}

// planted are the faults, on 5 % of the nodes.
var planted = []fault{
	{profile: "dgx-h100", register: "pcie=x8g3",
		source: "github.com/NVIDIA/NVSentinel/issues/890: Gen5 x16 → Gen3 x8"},
	{profile: "hgx-h200", register: "pcie=x8g3", fromFirstLook: true,
		source: "the same, of a machine that came so"},
	{profile: "rtxpro6000-x2", register: "performance=P0 pcie=x16g2",
		source: "github.com/local-inference-lab/rtx6kpro/pull/88: Gen2 x16 for 3.5 hours of training"},
	{profile: "workstation", register: "performance=P2 pcie=x16g1",
		source: "github.com/NVIDIA/open-gpu-kernel-modules/issues/1010: stays at Gen1; issues/731: programs run in P2"},
	{profile: "dgx-h100", register: "nvlink-down=17",
		source: "docs.nvidia.com/health-validation nvlink_active: critical above 0 inactive NVLinks"},
	{profile: "dgx-a100", register: "nvlink-down=0,1,2,3,4,5,6,7,8,9,10,11", fromFirstLook: true,
		source: "github.com/MicrosoftDocs/azure-aks-docs, gpu-health-monitoring.md: NVLink is inactive"},
	{profile: "dgx-a100", register: "ecc=off", source: "nvml.h: nvmlDeviceGetEccMode answers FEATURE_DISABLED"},
	{profile: "l40s-x4", register: "slowdown=power-brake",
		source: "tests of alert rules for DCGM, dcgm.yaml: DCGM_FI_DEV_CLOCK_THROTTLE_REASONS 128"},
	{profile: "hgx-b200", register: "slowdown=thermal", source: "nvml.h: nvmlClocksEventReasonHwThermalSlowdown"},
	{profile: "hgx-h200", register: "remapped-rows=pending",
		source: "facebookresearch.github.io/gcm row_remap: critical with pending remaps"},
}

// atRest are what healthy GPUs that reduce their links have shown, from rest to full use: NVIDIA's figures of a GPU in
// a system with generation 3 (github.com/NVIDIA/open-gpu-kernel-modules/issues/731). A GPU in a better system reaches
// the profile's generation.
var atRest = []struct {
	state      string
	generation int // 0: the profile's
}{{"P8", 1}, {"P5", 2}, {"P2", 0}, {"P0", 0}}

// flapping are the generations between which a resting RTX PRO 6000 goes all the time: 32, 5 and 2.5 GT/s
// (github.com/local-inference-lab/rtx6kpro/pull/88).
var flapping = []int{5, 2, 1}

// healthyRegisters returns what a healthy GPU of the profile shows at a look.
func healthyRegisters(profile string, chance *rand.Rand) string {
	best := map[string]int{"t4-x2": 3, "l40s-x4": 4, "workstation": 4, "rtxpro6000-x2": 5}[profile]
	if best == 0 {
		return "" // it does not reduce its link
	}
	now := atRest[chance.IntN(len(atRest))]
	generation := now.generation
	switch {
	case generation == 0:
		generation = best
	case profile == "rtxpro6000-x2":
		generation = flapping[chance.IntN(len(flapping))]
	}
	return fmt.Sprintf("performance=%s pcie=x16g%d", now.state, generation)
}

// clocksChange is how often NVML reports a hardware slowdown of a healthy GPU for a moment, because its clocks change
// (nvml.h: nvmlClocksEventReasonHwSlowdown). Once in so many looks.
const clocksChange = 50

const (
	nodes        = 200
	healthyLooks = 10_000
	looks        = 12 // at each GPU
	lateLook     = 6  // at which a fault that is not there from the first look on begins
	within       = 2  // looks, in which each must be found
)

// TestPlantedFaults looks at 200 simulated nodes, 10 of which have a GPU with a fault, through NVML's calls.
func TestPlantedFaults(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	profiles := []string{"t4-x2", "l40s-x4", "rtxpro6000-x2", "workstation", "t4-x2", "dgx-a100", "t4-x2", "dgx-h100",
		"rtxpro6000-x2", "hgx-h200", "hgx-b200", "a30-x2"}
	chance := rand.New(rand.NewPCG(59, 4))
	clean := 0
	for i := range nodes {
		f := fault{profile: profiles[i%len(profiles)]}
		if i%(nodes/len(planted)) == 0 {
			f = planted[i/(nodes/len(planted))]
		}
		clean += watch(t, f, chance)
	}
	if clean < healthyLooks {
		t.Errorf("got %d looks at healthy GPUs, want at least %d", clean, healthyLooks)
	}
	t.Logf("%d looks at healthy GPUs, %d faults on %d nodes", clean, len(planted), nodes)
}

// watch looks at a node, with a fault or without. It returns how many looks were at healthy GPUs.
func watch(t *testing.T, f fault, chance *rand.Rand) (clean int) {
	t.Helper()
	from := lateLook
	if f.fromFirstLook {
		from = 0
	}
	p, err := simulator.BuiltIn(f.profile)
	must(t, err)
	sim, err := simulator.Open(tmpfs.Dir(t), p)
	must(t, err)
	must(t, sim.LayOut(simulator.Programs{NvidiaSMI: os.DevNull}))
	m := nvml.New(nvml.MachineConfig{Library: sim.NVML(), Sysfs: sim.DriverRoot() + "/sys", Proc: sim.Proc(),
		Driver: driverroot.Root{Host: sim.DriverRoot(), Here: sim.DriverRoot()}})
	dir := t.TempDir()
	records, err := checkpoint.Open(dir)
	must(t, err)
	manager := gpuhealth.New(dir, "boot", records)
	now := time.Now()
	slow := map[int]bool{} // at the last look
	for look := range looks {
		for i := range p.GPUs {
			registers := healthyRegisters(f.profile, chance)
			if !slow[i] && chance.IntN(clocksChange) == 0 {
				slow[i], registers = true, registers+" slowdown=thermal"
			} else if slow[i] {
				slow[i], registers = false, registers+" slowdown=none"
			}
			if i == 1 && f.register != "" && look >= from {
				registers = strings.ReplaceAll(registers, "slowdown=thermal", "slowdown=none") + " " + f.register
			}
			if registers == "" {
				continue
			}
			change, err := node.ParseHealth(strings.Fields(registers))
			must(t, err)
			must(t, sim.ChangeHealth(fmt.Sprint(i), change))
		}
		found, err := m.Discover(t.Context())
		must(t, err)
		now = now.Add(30 * time.Second)
		manager.Discovered(t.Context(), gpuhealth.Moment{Now: now, Alone: true},
			gpuhealth.Known{Discovery: found, GPUs: inventory.New(found.Devices)})
		states := manager.States()
		for i, d := range found.Devices {
			m.Recheck(d.UUID)
			causes := states[d.UUID].Causes
			sick := i == 1 && f.register != "" && look >= from
			switch {
			case !sick && len(causes) > 0:
				t.Errorf("%s, GPU %d, look %d: got %s of a healthy GPU", f.profile, i, look, causes)
			case !sick:
				clean++
			case look >= from+within-1 && len(causes) == 0:
				t.Errorf("%s, look %d of a GPU with %s (%s): nothing found", f.profile, look-from+1, f.register,
					f.source)
			case look == from+within-1:
				t.Logf("%s %s: %s", f.profile, f.register, strings.Join(slices.Sorted(slices.Values(causes)), ", "))
			}
		}
	}
	return clean
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
