// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// element is an element of nvidia-smi -q -x.
type element struct {
	name  string
	text  string
	parts []element
}

// printXML is nvidia-smi -q -x: the parts of the real document that describe the GPU, in the same order and with the
// same names.
func printXML(out io.Writer, v *node.View, gpus []gpu, now time.Time) {
	fmt.Fprint(out, "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n")
	log := element{name: "nvidia_smi_log", parts: []element{
		{name: "timestamp", text: now.Format("Mon Jan _2 15:04:05 2006")},
		{name: "driver_version", text: v.Profile.Driver()},
		{name: "cuda_version", text: cudaVersion(v)},
		{name: "attached_gpus", text: strconv.Itoa(len(gpus))},
	}}
	for _, g := range gpus {
		log.parts = append(log.parts, xmlGPU(v, g))
	}
	log.print(out, "")
}

func (e element) print(out io.Writer, indent string) {
	name, attribute, _ := strings.Cut(e.name, " ")
	if attribute != "" {
		attribute = " " + attribute
	}
	if len(e.parts) == 0 {
		fmt.Fprintf(out, "%s<%s%s>", indent, name, attribute)
		_ = xml.EscapeText(out, []byte(e.text)) // the next write to out fails too
		fmt.Fprintf(out, "</%s>\n", name)
		return
	}
	fmt.Fprintf(out, "%s<%s%s>\n", indent, name, attribute)
	for _, p := range e.parts {
		p.print(out, indent+"\t")
	}
	fmt.Fprintf(out, "%s</%s>\n", indent, name)
}

func xmlGPU(v *node.View, g gpu) element {
	is := func(name, field, unit string) element { return element{name: name, text: fieldText(v, g, field, unit)} }
	at := g.PCI.Address
	return element{name: fmt.Sprintf("gpu id=%q", busID(g)), parts: []element{
		is("product_name", "name", ""),
		{name: "product_brand", text: named(g, "GetBrand", g.Calls.GetBrand, brands)},
		{name: "product_architecture", text: named(g, "GetArchitecture", g.Calls.GetArchitecture, architectures)},
		is("display_active", "display_active", ""),
		is("persistence_mode", "persistence_mode", ""),
		{name: "addressing_mode", text: named(g, "GetAddressingMode", g.Calls.GetAddressingMode, addressingModes)},
		{name: "mig_mode", parts: []element{is("current_mig", "mig.mode.current", ""),
			{name: "pending_mig", text: pendingMIG(g)}}},
		xmlPartitions(g),
		is("serial", "serial", ""),
		is("uuid", "uuid", ""),
		{name: "minor_number", text: named(g, "GetMinorNumber", g.Calls.GetMinorNumber.Or(g.Minor), nil)},
		is("vbios_version", "vbios_version", ""),
		{name: "pci", parts: []element{
			{name: "pci_bus", text: fmt.Sprintf("%02X", at.Bus)},
			{name: "pci_device", text: fmt.Sprintf("%02X", at.Device)},
			{name: "pci_domain", text: fmt.Sprintf("%04X", at.Domain)},
			{name: "pci_device_id", text: fmt.Sprintf("%08X", g.PCI.DeviceID<<16|hwprofile.Vendor)},
			{name: "pci_bus_id", text: busID(g)},
			{name: "pci_sub_system_id", text: fmt.Sprintf("%08X", g.PCI.Subsystem)},
		}},
		{name: "fb_memory_usage", parts: []element{is("total", "memory.total", "MiB"), is("reserved", "memory.reserved",
			"MiB"),
			is("used", "memory.used", "MiB"), is("free", "memory.free", "MiB")}},
		is("compute_mode", "compute_mode", ""),
		{name: "max_clocks", parts: []element{is("sm_clock", "clocks.max.sm", "MHz"), is("mem_clock", "clocks.max.mem",
			"MHz")}},
	}}
}

// xmlPartitions returns the partitions that the program can reach.
func xmlPartitions(g gpu) element {
	out := element{name: "mig_devices", text: "None"}
	for _, p := range g.partitions {
		out.parts = append(out.parts, element{name: "mig_device", parts: []element{
			{name: "index", text: strconv.Itoa(p.Index)},
			{name: "gpu_instance_id", text: strconv.Itoa(p.Instance.ID)},
			{name: "compute_instance_id", text: strconv.Itoa(p.Compute.ID)},
			{name: "fb_memory_usage", parts: []element{{name: "total",
				text: fmt.Sprintf("%d MiB", p.Memory().Total>>20)}}},
		}})
	}
	return out
}

// fieldText formats a field of --query-gpu for the document.
func fieldText(v *node.View, g gpu, name, unit string) string {
	for _, f := range fields {
		if f.name != name {
			continue
		}
		text := strings.Trim(f.value(v, g), "[]")
		if _, err := strconv.Atoi(text); err == nil && unit != "" {
			text += " " + unit
		}
		return text
	}
	panic("no field " + name)
}

// named formats an answer for the document. names maps its numbers to text; nil prints the number.
func named[T ~int](g gpu, call string, a hwprofile.Answer[T], names map[T]string) string {
	v, e := ask(g, call, a)
	switch {
	case e != "":
		return describe(e)
	case names == nil:
		return strconv.Itoa(int(v))
	case names[v] == "":
		return "Unknown"
	}
	return names[v]
}

func pendingMIG(g gpu) string {
	m, e := ask(g, "GetMigMode", g.MigMode())
	if e != "" {
		return describe(e)
	}
	return enabled(hwprofile.Switch(m.Pending))
}

// Names of NVML's constants in the real program.
var (
	brands = map[hwprofile.Brand]string{1: "Quadro", 2: "Tesla", 3: "NVS", 4: "GRID", 5: "GeForce", 6: "Titan",
		10: "NVIDIA RTX Virtual Workstation", 12: "Quadro RTX", 13: "NVIDIA RTX",
		14: "NVIDIA", 15: "GeForce RTX", 16: "Titan RTX"}
	architectures = map[hwprofile.Architecture]string{2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing",
		7: "Ampere", 8: "Ada Lovelace",
		9: "Hopper", 10: "Blackwell"}
	addressingModes = map[hwprofile.AddressingMode]string{0: "None", 1: "HMM", 2: "ATS"}
)
