// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// field is a field of --query-gpu.
type field struct {
	name  string
	unit  string
	value func(*node.View, gpu) string
}

// of returns a field of an answer.
func of[T any](name, unit, call string, pick func(node.GPU) hwprofile.Answer[T], text func(T) string) field {
	return field{name, unit, func(_ *node.View, g gpu) string {
		v, e := ask(g, call, pick(g.GPU))
		if e != "" {
			return "[" + describe(e) + "]"
		}
		return text(v)
	}}
}

func plain[T any](v T) string { return fmt.Sprint(v) }

func mebibytes(pick func(hwprofile.Memory) uint64) func(hwprofile.Memory) string {
	return func(m hwprofile.Memory) string { return fmt.Sprint(pick(m) >> 20) }
}

func watts(milliwatts uint32) string { return fmt.Sprintf("%.2f", float64(milliwatts)/1000) }

func enabled(s hwprofile.Switch) string {
	if s == 1 {
		return "Enabled"
	}
	return "Disabled"
}

func clockOf(clock hwprofile.Clock) func(map[hwprofile.Clock]uint32) string {
	return func(all map[hwprofile.Clock]uint32) string {
		if mhz, ok := all[clock]; ok {
			return fmt.Sprint(mhz)
		}
		return "[N/A]"
	}
}

// busID formats the address as nvidia-smi does.
func busID(g gpu) string {
	at := g.PCI.Address
	return fmt.Sprintf("%08X:%02X:%02X.%X", at.Domain, at.Bus, at.Device, at.Function)
}

// fields are in the order of nvidia-smi --help-query-gpu.
var fields = []field{
	{"driver_version", "", func(v *node.View, _ gpu) string { return v.Profile.Driver() }},
	{"name", "", of("", "", "GetName", func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetName },
		plain[string]).value},
	of("serial", "", "GetSerial", func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetSerial.Or(c.Serial) },
		plain[string]),
	of("uuid", "", "GetUUID", func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetUUID.Or(c.UUID) },
		plain[string]),
	{"pci.bus_id", "", func(_ *node.View, g gpu) string { return busID(g) }},
	{"pci.device_id", "", func(_ *node.View, g gpu) string {
		return fmt.Sprintf("%#08X", g.PCI.DeviceID<<16|hwprofile.Vendor)
	}},
	of("vbios_version", "", "GetVbiosVersion",
		func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetVbiosVersion }, plain[string]),
	{"index", "", func(_ *node.View, g gpu) string { return fmt.Sprint(g.Index) }},
	of("display_active", "", "GetDisplayActive",
		func(c node.GPU) hwprofile.Answer[hwprofile.Switch] { return c.Calls.GetDisplayActive }, enabled),
	of("persistence_mode", "", "GetPersistenceMode",
		func(c node.GPU) hwprofile.Answer[hwprofile.Switch] { return c.Persistence() }, enabled),
	of("pcie.link.gen.current", "", "GetCurrPcieLinkGeneration",
		func(c node.GPU) hwprofile.Answer[int] { return c.CurrPcieLinkGeneration() }, plain[int]),
	of("pcie.link.gen.max", "", "GetMaxPcieLinkGeneration",
		func(c node.GPU) hwprofile.Answer[int] { return c.Calls.GetMaxPcieLinkGeneration }, plain[int]),
	of("pcie.link.width.current", "", "GetCurrPcieLinkWidth",
		func(c node.GPU) hwprofile.Answer[int] { return c.CurrPcieLinkWidth() }, plain[int]),
	of("pcie.link.width.max", "", "GetMaxPcieLinkWidth",
		func(c node.GPU) hwprofile.Answer[int] { return c.Calls.GetMaxPcieLinkWidth }, plain[int]),
	of("fan.speed", "%", "GetFanSpeed", func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetFanSpeed },
		plain[uint32]),
	of("pstate", "", "GetPerformanceState",
		func(c node.GPU) hwprofile.Answer[hwprofile.Performance] { return c.PerformanceState() },
		func(p hwprofile.Performance) string { return fmt.Sprintf("P%d", p) }),
	of("memory.total", "MiB", "GetMemoryInfo", node.GPU.Memory,
		mebibytes(func(m hwprofile.Memory) uint64 { return m.Total })),
	of("memory.reserved", "MiB", "GetMemoryInfo", node.GPU.Memory,
		mebibytes(func(m hwprofile.Memory) uint64 { return m.Reserved })),
	of("memory.used", "MiB", "GetMemoryInfo", node.GPU.Memory,
		mebibytes(func(m hwprofile.Memory) uint64 { return m.Used })),
	of("memory.free", "MiB", "GetMemoryInfo", node.GPU.Memory,
		mebibytes(func(m hwprofile.Memory) uint64 { return m.Total - m.Reserved - m.Used })),
	of("compute_mode", "", "GetComputeMode", node.GPU.ComputeMode, hwprofile.ComputeMode.String),
	of("compute_cap", "", "GetCudaComputeCapability",
		func(c node.GPU) hwprofile.Answer[hwprofile.Capability] { return c.Calls.GetCudaComputeCapability },
		func(c hwprofile.Capability) string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }),
	of("utilization.gpu", "%", "GetUtilizationRates",
		func(c node.GPU) hwprofile.Answer[hwprofile.Utilization] { return c.Calls.GetUtilizationRates },
		func(u hwprofile.Utilization) string { return fmt.Sprint(u.GPU) }),
	of("utilization.memory", "%", "GetUtilizationRates",
		func(c node.GPU) hwprofile.Answer[hwprofile.Utilization] { return c.Calls.GetUtilizationRates },
		func(u hwprofile.Utilization) string { return fmt.Sprint(u.Memory) }),
	of("ecc.mode.current", "", "GetEccMode",
		func(c node.GPU) hwprofile.Answer[hwprofile.ModeChange] { return c.EccMode() },
		func(m hwprofile.ModeChange) string { return enabled(m.Current) }),
	of("temperature.gpu", "", "GetTemperature",
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Sensor]uint32] { return c.Calls.GetTemperature },
		func(t map[hwprofile.Sensor]uint32) string { return fmt.Sprint(t[0]) }),
	of("power.draw", "W", "GetPowerUsage", func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetPowerUsage },
		watts),
	of("power.limit", "W", "GetPowerManagementLimit",
		func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetPowerManagementLimit }, watts),
	of("clocks.sm", "MHz", "GetClockInfo",
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Clock]uint32] { return c.Calls.GetClockInfo },
		clockOf(hwprofile.ClockSM)),
	of("clocks.mem", "MHz", "GetClockInfo",
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Clock]uint32] { return c.Calls.GetClockInfo },
		clockOf(hwprofile.ClockMemory)),
	of("clocks.max.sm", "MHz", "GetMaxClockInfo",
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Clock]uint32] { return c.Calls.GetMaxClockInfo },
		clockOf(hwprofile.ClockSM)),
	of("clocks.max.mem", "MHz", "GetMaxClockInfo",
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Clock]uint32] { return c.Calls.GetMaxClockInfo },
		clockOf(hwprofile.ClockMemory)),
	of("mig.mode.current", "", "GetMigMode",
		func(c node.GPU) hwprofile.Answer[hwprofile.MigMode] { return c.MigMode() },
		func(m hwprofile.MigMode) string { return enabled(hwprofile.Switch(m.Current)) }),
}

// aliases are alternative names that the real program accepts.
var aliases = map[string]string{
	"gpu_name": "name", "gpu_uuid": "uuid", "gpu_serial": "serial", "gpu_bus_id": "pci.bus_id", "gpu_index": "index",
	"clocks.current.sm": "clocks.sm", "clocks.current.memory": "clocks.mem", "clocks.max.memory": "clocks.max.mem",
}

func fieldNames() []string {
	var out []string
	for _, f := range fields {
		out = append(out, f.name)
	}
	slices.Sort(out)
	return out
}

// csv is the output format of a query.
type csv struct{ noHeader, noUnits bool }

func parseQuery(o options) ([]field, csv, error) {
	var out []field
	var format csv
	for _, name := range strings.Split(o.query, ",") {
		name = strings.TrimSpace(name)
		if canonical, ok := aliases[name]; ok {
			name = canonical
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return nil, format, fmt.Errorf("Field \"%s\" is not a valid field to query.\nThe simulated nvidia-smi "+
				"knows %s", //nolint:revive,staticcheck // the real program's words
				name, strings.Join(fieldNames(), ", "))
		}
		out = append(out, fields[i])
	}
	words := strings.Split(o.format, ",")
	if words[0] != "csv" {
		return nil, format, errors.New("nvidia-smi: --query-gpu needs --format=csv[,noheader][,nounits]")
	}
	for _, word := range words[1:] {
		switch word {
		case "noheader":
			format.noHeader = true
		case "nounits":
			format.noUnits = true
		default:
			return nil, format, fmt.Errorf("nvidia-smi: --format: %q is not one of noheader, nounits", word)
		}
	}
	return out, format, nil
}

// printQuery is nvidia-smi --query-gpu.
func printQuery(out io.Writer, v *node.View, gpus []gpu, fields []field, format csv) {
	var head []string
	for _, f := range fields {
		if f.unit != "" && !format.noUnits {
			head = append(head, f.name+" ["+f.unit+"]")
		} else {
			head = append(head, f.name)
		}
	}
	if !format.noHeader {
		fmt.Fprintln(out, strings.Join(head, ", "))
	}
	for _, g := range gpus {
		var row []string
		for _, f := range fields {
			text := f.value(v, g)
			if f.unit != "" && !format.noUnits && !strings.HasPrefix(text, "[") {
				text += " " + f.unit
			}
			row = append(row, text)
		}
		fmt.Fprintln(out, strings.Join(row, ", "))
	}
}
