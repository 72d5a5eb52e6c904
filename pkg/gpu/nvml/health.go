// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// healthPeriod is how often a GPU is asked for what NVML has no events of. Recheck asks sooner.
const healthPeriod = 30 * time.Second

// Recheck makes the next Discover ask the GPU for its health.
func (m *Machine) Recheck(id gpu.UUID) {
	m.known.mu.Lock()
	defer m.known.mu.Unlock()
	for i, r := range m.known.gpus {
		if r.device.UUID == id {
			r.recheck = time.Now()
			m.known.gpus[i] = r
		}
	}
}

// withHealth returns r with the health of the GPU, which is asked for every healthPeriod, and after Recheck.
func (s *session) withHealth(handle nvmllib.Device, r discovered) discovered {
	if time.Since(r.checked) >= healthPeriod || r.recheck.After(r.health.At) {
		r.device.Guest = s.guest(handle, r.device.PCI) // the license may come later
		r.health, r.checked = s.health(handle, r.device), time.Now()
	}
	return r
}

// health asks the GPU for its health. What a GPU does not support is healthy.
func (s *session) health(handle nvmllib.Device, d gpu.Device) gpu.Health {
	h := gpu.Health{At: time.Now(), RecoveryAction: recoveryAction(handle), Slowdown: s.slowdown(handle)}
	h.Fabric, h.FabricUnknown = s.fabricProblem(handle, d)
	if h.LinksUp = linksUp(handle, d); s.known.anySwitching() { // its peers lose their links before its mode is known
		h.LinksUp = nil
	}
	h.LinkPeers = linkPeers(handle, h.LinksUp)
	_, _, pending, failed, ret := handle.GetRemappedRows()
	h.RowsUnknown = ret != nvmllib.SUCCESS
	if !h.RowsUnknown {
		h.RowsPending, h.RowsFailed = pending, failed
	}
	if pending, ret := handle.GetRetiredPagesPendingStatus(); ret == nvmllib.SUCCESS {
		h.PagesPending = pending == nvmllib.FEATURE_ENABLED
	}
	h.Link, h.LinkMax, h.Resting, h.ECC = pcieLink(handle), maxPCIeLink(handle), resting(handle), eccMode(handle)
	if d.Guest != nil {
		h.License = d.Guest.License.State
	}
	h.NodeMissing = s.vanishedNode(d)
	return h
}

// pcieLink returns the present PCIe link of the GPU. A vGPU has none.
func pcieLink(handle nvmllib.Device) (l gpu.PCIeLink) {
	l.Width, _ = handle.GetCurrPcieLinkWidth()
	l.Generation, _ = handle.GetCurrPcieLinkGeneration()
	return l
}

// maxPCIeLink returns the best PCIe link that the GPU and its slot can have.
func maxPCIeLink(handle nvmllib.Device) (l gpu.PCIeLink) {
	l.Width, _ = handle.GetMaxPcieLinkWidth()
	l.Generation, _ = handle.GetMaxPcieLinkGeneration()
	return l
}

// resting reports whether the GPU is in a performance state below P2, the one in which many GPUs run CUDA programs:
// there, it may reduce its PCIe link. A state that is not known is one.
func resting(handle nvmllib.Device) bool {
	state, ret := handle.GetPerformanceState()
	return ret != nvmllib.SUCCESS || state > nvmllib.PSTATE_2
}

func eccMode(handle nvmllib.Device) gpu.ECCMode {
	switch now, _, ret := handle.GetEccMode(); {
	case ret != nvmllib.SUCCESS:
		return ""
	case now == nvmllib.FEATURE_ENABLED:
		return gpu.ECCEnabled
	}
	return gpu.ECCDisabled
}

// recoveryActions are NVML's recovery actions by their numbers.
var recoveryActions = map[nvmllib.DeviceGpuRecoveryAction]gpu.RecoveryAction{
	nvmllib.GPU_RECOVERY_ACTION_NONE:                gpu.RecoveryNone,
	nvmllib.GPU_RECOVERY_ACTION_GPU_RESET:           gpu.RecoveryReset,
	nvmllib.GPU_RECOVERY_ACTION_NODE_REBOOT:         gpu.RecoveryReboot,
	nvmllib.GPU_RECOVERY_ACTION_DRAIN_P2P:           gpu.RecoveryDrainP2P,
	nvmllib.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     gpu.RecoveryDrainAndReset,
	nvmllib.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: gpu.RecoveryIMEXDomain,
	nvmllib.GPU_RECOVERY_ACTION_BUS_RESET:           gpu.RecoveryBusReset,
	nvmllib.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       gpu.RecoverySystemReboot,
}

// recoveryAction returns what the driver says must be done with the GPU. Drivers before R570 do not say.
func recoveryAction(handle nvmllib.Device) gpu.RecoveryAction {
	values := []nvmllib.FieldValue{{FieldId: nvmllib.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := handle.GetFieldValues(values); ret != nvmllib.SUCCESS ||
		nvmllib.Return(values[0].NvmlReturn) != nvmllib.SUCCESS {
		return gpu.RecoveryUnknown
	}
	return recoveryActions[nvmllib.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:]))]
}

// linksUp returns the active NVLinks of the GPU, nil if it has none or is in MIG mode.
func linksUp(handle nvmllib.Device, d gpu.Device) []int {
	if d.MIG.Enabled {
		return nil
	}
	var up []int
	for link := range nvmllib.NVLINK_MAX_LINKS {
		state, ret := handle.GetNvLinkState(link)
		if ret != nvmllib.SUCCESS {
			continue
		}
		if up == nil {
			up = []int{}
		}
		if state == nvmllib.FEATURE_ENABLED {
			up = append(up, link)
		}
	}
	return up
}

// linkPeers returns the GPUs at the other ends of the NVLinks. If one leads to a switch, all do.
func linkPeers(handle nvmllib.Device, active []int) map[int]gpu.PCIAddress {
	peers := map[int]gpu.PCIAddress{}
	for _, link := range active {
		peer, toSwitch, ok := otherEnd(handle, link)
		if toSwitch {
			break
		}
		if ok {
			peers[link] = peer
		}
	}
	return peers
}

// registrationTime is how long a GPU may take to register with the fabric, as after a boot. Longer means that the
// fabric manager does not run, or is not of the driver's version: then no CUDA program starts.
const registrationTime = 5 * time.Minute

// fabricProblem says what is wrong with the GPU on the NVLink fabric, or that this is not known yet. Only drivers with
// version 4 of the call report more than that the GPU has not joined: R610 and newer.
func (s *session) fabricProblem(handle nvmllib.Device, d gpu.Device) (problem string, unknown bool) {
	if s.has("nvmlDeviceGetGpuFabricInfo_v4") {
		info, ret := handle.GetGpuFabricInfo_v4()
		switch {
		case ret != nvmllib.SUCCESS:
		case info.HealthSummary == nvmllib.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:
			return fmt.Sprintf("unhealthy, health mask %#x", info.HealthMask), false
		case info.HealthSummary == nvmllib.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY:
			return fmt.Sprintf("limited capacity, health mask %#x", info.HealthMask), false
		}
	}
	info, _ := s.fabricInfo(handle)
	registers := info.State == nvmllib.GPU_FABRIC_STATE_NOT_STARTED ||
		info.State == nvmllib.GPU_FABRIC_STATE_IN_PROGRESS
	if registers && !d.MIG.Enabled { // MIG mode switches NVLink off
		since, _ := s.known.registering.LoadOrStore(d.UUID, time.Now())
		if time.Since(since.(time.Time)) < registrationTime {
			return "", true
		}
		return fmt.Sprintf("not registered for %.0f minutes", registrationTime.Minutes()), false
	}
	s.known.registering.Delete(d.UUID)
	if info.State == nvmllib.GPU_FABRIC_STATE_COMPLETED && nvmllib.Return(info.Status) != nvmllib.SUCCESS {
		return fmt.Sprintf("not joined: %v", nvmllib.Return(info.Status)), false
	}
	return "", false
}

// slowdowns are the clocks event reasons of a hardware slowdown, which is an emergency. NVML gives the first one alone
// too, and may do so for a moment when the clocks change (nvml.h).
const slowdowns = nvmllib.ClocksThrottleReasonHwSlowdown | nvmllib.ClocksThrottleReasonHwThermalSlowdown |
	nvmllib.ClocksThrottleReasonHwPowerBrakeSlowdown

// slowdown says why the hardware slows the GPU down. Drivers before R535 do not have the call.
func (s *session) slowdown(handle nvmllib.Device) string {
	if !s.has("nvmlDeviceGetCurrentClocksEventReasons") {
		return ""
	}
	reasons, ret := handle.GetCurrentClocksEventReasons()
	if ret != nvmllib.SUCCESS || reasons&slowdowns == 0 {
		return ""
	}
	var why []string
	if reasons&nvmllib.ClocksThrottleReasonHwThermalSlowdown != 0 {
		why = append(why, "temperature")
	}
	if reasons&nvmllib.ClocksThrottleReasonHwPowerBrakeSlowdown != 0 {
		why = append(why, "power brake")
	}
	return cmp.Or(strings.Join(why, ", "), "NVML gives no reason")
}

// vanishedNode returns the GPU's device node if it has been there and is not; otherwise "". A machine may have no
// device nodes before its first CUDA program.
func (s *session) vanishedNode(d gpu.Device) string {
	here, host := s.config.Driver.Dev()
	path := driverroot.DeviceNode(d.Minor)
	if _, err := os.Stat(filepath.Join(here, path)); err == nil {
		s.known.deviceNodes.Store(path, true)
		return ""
	}
	if _, seen := s.known.deviceNodes.Load(path); !seen {
		return ""
	}
	return filepath.Join(host, path)
}
