// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// Health is what NVML reports to be wrong with a GPU. The zero value means nothing.
type Health struct {
	RecoveryAction int    `json:",omitempty"` // nvmlDeviceGpuRecoveryAction_t
	RemappedRows   string `json:",omitempty"` // "pending" until a reset, or "failed"
	RetiredPages   string `json:",omitempty"` // "pending" until a reset
	LinksDown      []int  `json:",omitempty"` // NVLinks, sorted
	Fabric         string `json:",omitempty"` // "unhealthy", or "not-started" without a fabric manager
	Slowdown       string `json:",omitempty"` // "thermal" or "power-brake": why the clocks are low
	// PCIe is the current link, "x8g3" for 8 lanes of generation 3; "": that of the profile.
	PCIe        string `json:",omitempty"`
	ECC         string `json:",omitempty"` // "off"; "": that of the profile
	Performance string `json:",omitempty"` // the performance state, "P0" to "P15"; "": that of the profile
}

// Values of Health.
const (
	none       = "none"
	Pending    = "pending"
	Failed     = "failed"
	Unhealthy  = "unhealthy"
	NotStarted = "not-started"
	healthy    = "healthy"
	Thermal    = "thermal"
	PowerBrake = "power-brake"
	off        = "off"
	profile    = "profile"
)

// recoveryActions are the names of the recovery actions by NVML's number.
var recoveryActions = []string{none, "reset", "reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain",
	"bus-reset", "system-reboot"}

// healthSettings describes the settings that ParseHealth accepts.
var healthSettings = "recovery-action=" + strings.Join(recoveryActions, "|") + ", remapped-rows=none|pending|failed, " +
	"retired-pages=none|pending, nvlink-down=none|LINK,..., fabric=healthy|unhealthy|not-started, " +
	"slowdown=none|thermal|power-brake, pcie=profile|xLANESgGENERATION, ecc=profile|off or performance=profile|P0..P15"

// ParseHealth parses settings NAME=VALUE and returns what they change.
func ParseHealth(settings []string) (func(*Health), error) {
	var changes []func(*Health)
	for _, setting := range settings {
		change, ok := parseHealth(setting)
		if !ok {
			return nil, fmt.Errorf("health %q: want %s", setting, healthSettings)
		}
		changes = append(changes, change)
	}
	return func(h *Health) {
		for _, change := range changes {
			change(h)
		}
	}, nil
}

func parseHealth(setting string) (change func(*Health), ok bool) {
	name, value, _ := strings.Cut(setting, "=")
	oneOf := func(good string, bad ...string) (string, bool) {
		if value == good {
			return "", true
		}
		return value, slices.Contains(bad, value)
	}
	switch name {
	case "recovery-action":
		action := slices.Index(recoveryActions, value)
		return func(h *Health) { h.RecoveryAction = action }, action >= 0
	case "remapped-rows":
		rows, ok := oneOf(none, Pending, Failed)
		return func(h *Health) { h.RemappedRows = rows }, ok
	case "retired-pages":
		pages, ok := oneOf(none, Pending)
		return func(h *Health) { h.RetiredPages = pages }, ok
	case "fabric":
		fabric, ok := oneOf(healthy, Unhealthy, NotStarted)
		return func(h *Health) { h.Fabric = fabric }, ok
	case "slowdown":
		slowdown, ok := oneOf(none, Thermal, PowerBrake)
		return func(h *Health) { h.Slowdown = slowdown }, ok
	case "pcie":
		_, _, valid := parseLink(value)
		return func(h *Health) { h.PCIe = strings.TrimPrefix(value, profile) }, valid || value == profile
	case "ecc":
		ecc, ok := oneOf(profile, off)
		return func(h *Health) { h.ECC = ecc }, ok
	case "performance":
		_, valid := parseState(value)
		return func(h *Health) { h.Performance = strings.TrimPrefix(value, profile) }, valid || value == profile
	case "nvlink-down":
		links, ok := parseLinks(value)
		return func(h *Health) { h.LinksDown = links }, ok
	}
	return nil, false
}

// parseLink parses a PCIe link, "x8g3".
func parseLink(text string) (width, generation int, ok bool) {
	n, err := fmt.Sscanf(text, "x%dg%d", &width, &generation)
	return width, generation, n == 2 && err == nil && text == fmt.Sprintf("x%dg%d", width, generation) &&
		width > 0 && generation > 0
}

// parseState parses a performance state, "P0".
func parseState(text string) (state hwprofile.Performance, ok bool) {
	number, err := strconv.Atoi(strings.TrimPrefix(text, "P"))
	return hwprofile.Performance(number), err == nil && number <= 15 && text == fmt.Sprintf("P%d", number)
}

func parseLinks(text string) (links []int, ok bool) {
	if text == none {
		return nil, true
	}
	for field := range strings.SplitSeq(text, ",") {
		link, err := strconv.Atoi(field)
		if err != nil || link < 0 {
			return nil, false
		}
		links = append(links, link)
	}
	slices.Sort(links)
	return slices.Compact(links), true
}

// String is the health as the node prints it, "" if nothing is wrong.
func (h Health) String() string {
	var out []string
	if h.RecoveryAction != 0 {
		out = append(out, "recovery-action="+recoveryActions[h.RecoveryAction])
	}
	if h.RemappedRows != "" {
		out = append(out, "remapped-rows="+h.RemappedRows)
	}
	if h.RetiredPages != "" {
		out = append(out, "retired-pages="+h.RetiredPages)
	}
	if len(h.LinksDown) > 0 {
		var links []string
		for _, link := range h.LinksDown {
			links = append(links, strconv.Itoa(link))
		}
		out = append(out, "nvlink-down="+strings.Join(links, ","))
	}
	if h.Fabric != "" {
		out = append(out, "fabric="+h.Fabric)
	}
	if h.Slowdown != "" {
		out = append(out, "slowdown="+h.Slowdown)
	}
	for _, set := range [][2]string{{"pcie", h.PCIe}, {"ecc", h.ECC}, {"performance", h.Performance}} {
		if set[1] != "" {
			out = append(out, set[0]+"="+set[1])
		}
	}
	return strings.Join(out, " ")
}

// CurrPcieLinkWidth is the current answer of GetCurrPcieLinkWidth.
func (c GPU) CurrPcieLinkWidth() hwprofile.Answer[int] {
	if width, _, ok := parseLink(c.Health().PCIe); ok {
		return hwprofile.Value(width)
	}
	return c.Calls.GetCurrPcieLinkWidth
}

// CurrPcieLinkGeneration is the current answer of GetCurrPcieLinkGeneration.
func (c GPU) CurrPcieLinkGeneration() hwprofile.Answer[int] {
	if _, generation, ok := parseLink(c.Health().PCIe); ok {
		return hwprofile.Value(generation)
	}
	return c.Calls.GetCurrPcieLinkGeneration
}

// EccMode is the current answer of GetEccMode.
func (c GPU) EccMode() hwprofile.Answer[hwprofile.ModeChange] {
	if c.Health().ECC == off {
		return hwprofile.Value(hwprofile.ModeChange{Current: hwprofile.Disabled, Pending: hwprofile.Disabled})
	}
	return c.Calls.GetEccMode
}

// PerformanceState is the current answer of GetPerformanceState.
func (c GPU) PerformanceState() hwprofile.Answer[hwprofile.Performance] {
	if state, ok := parseState(c.Health().Performance); ok {
		return hwprofile.Value(state)
	}
	return c.Calls.GetPerformanceState
}

// restarted is the health after a reset: what was pending is done.
func (h Health) restarted() Health {
	h.RecoveryAction, h.RetiredPages = 0, ""
	if h.RemappedRows == Pending {
		h.RemappedRows = ""
	}
	return h
}

// Health is the current health of the GPU.
func (c GPU) Health() Health {
	if c.State.Health != nil {
		return *c.State.Health
	}
	return Health{}
}

func (s *GPUState) setHealth(h Health) {
	s.Health = &h
	if reflect.DeepEqual(h, Health{}) {
		s.Health = nil
	}
}

// ChangeHealth changes the health of the GPU. It is an error if NVML cannot report the change for that GPU. A change
// of the recovery action is also an event.
func (n *Node) ChangeHealth(which string, change func(*Health)) error {
	var event *Event
	err := n.change(which, func(c GPU, s *GPUState) error {
		h := c.Health()
		event = nil
		change(&h)
		if err := c.reports(h); err != nil {
			return err
		}
		if h.RecoveryAction != c.Health().RecoveryAction {
			event = &Event{GPU: c.UUID, Type: EventRecoveryAction}
		}
		s.setHealth(h)
		return nil
	})
	if err != nil || event == nil {
		return err
	}
	return n.Emit(*event)
}

// reports returns an error if NVML cannot report the health for this GPU.
func (c GPU) reports(h Health) error {
	if h.RemappedRows != "" && !c.RemapsRows() {
		return refuse(hwprofile.NotSupported, "%s remaps no rows: that came with compute capability %d.0 and takes ECC",
			c.Name, remapsSince)
	}
	if h.RetiredPages != "" && !c.RetiresPages() {
		return refuse(hwprofile.NotSupported, "%s retires no pages: that takes ECC and a compute capability below %d.0",
			c.Name, remapsSince)
	}
	links, _ := c.Calls.GetNvLinkState.Get()
	for _, link := range h.LinksDown {
		if _, ok := links[link]; !ok {
			return refuse(hwprofile.NotSupported, "%s has no NVLink %d; it has %d", c.Name, link, len(links))
		}
	}
	if _, e := c.Calls.GetCurrPcieLinkWidth.Get(); h.PCIe != "" && e != "" {
		return refuse(e, "%s has no PCIe link of its own", c.Name)
	}
	if h.ECC != "" && !c.hasECC() {
		return refuse(hwprofile.NotSupported, "%s has no ECC", c.Name)
	}
	if _, e := c.Calls.GetGpuFabricInfo.Get(); h.Fabric != "" && e != "" {
		return refuse(e, "%s is in no NVLink fabric", c.Name)
	}
	return nil
}

// remapsSince is the first compute capability that remaps rows of memory; older GPUs retire pages (nvml.h).
const remapsSince = 8

// RemapsRows reports whether GetRemappedRows has values.
func (c GPU) RemapsRows() bool {
	capability, _ := c.Calls.GetCudaComputeCapability.Get()
	return c.hasECC() && capability.Major >= remapsSince
}

// RetiresPages reports whether GetRetiredPagesPendingStatus has a value.
func (c GPU) RetiresPages() bool { return c.hasECC() && !c.RemapsRows() }

func (c GPU) hasECC() bool {
	_, e := c.Calls.GetEccMode.Get()
	return e == ""
}

// fabricNotStarted is GPU_FABRIC_STATE_NOT_STARTED.
const fabricNotStarted hwprofile.FabricState = 1

// Fabric is the current answer of GetGpuFabricInfo.
func (c GPU) Fabric() hwprofile.Answer[hwprofile.Fabric] {
	if c.Health().Fabric == NotStarted {
		return hwprofile.Value(hwprofile.Fabric{State: fabricNotStarted})
	}
	return c.Calls.GetGpuFabricInfo
}

// NvLinkState is the current answer of GetNvLinkState.
func (c GPU) NvLinkState() hwprofile.Answer[hwprofile.Links[hwprofile.Switch]] {
	profile, e := c.Calls.GetNvLinkState.Get()
	down := c.Health().LinksDown
	if e != "" || len(down) == 0 {
		return c.Calls.GetNvLinkState
	}
	links := hwprofile.Links[hwprofile.Switch]{}
	for link, state := range profile {
		links[link] = state
		if slices.Contains(down, link) {
			links[link] = hwprofile.Disabled
		}
	}
	return hwprofile.Value(links)
}
