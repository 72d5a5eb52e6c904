// SPDX-License-Identifier: Apache-2.0

// Package docs_test keeps the pages true. The tables of the pages below reference are made from the code:
// go test ./docs -update
package docs_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/convert"
	"github.com/gpudra/gpu-dra-driver/internal/controller/eviction"
	"github.com/gpudra/gpu-dra-driver/internal/controller/explain"
	"github.com/gpudra/gpu-dra-driver/internal/controller/extender"
	"github.com/gpudra/gpu-dra-driver/internal/controller/idle"
	"github.com/gpudra/gpu-dra-driver/internal/controller/network"
	"github.com/gpudra/gpu-dra-driver/internal/controller/preempt"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
	"github.com/gpudra/gpu-dra-driver/test/clustermetrics"
	"github.com/gpudra/gpu-dra-driver/test/nodemetrics"
)

var update = flag.Bool("update", false, "write the tables that are made from the code")

// example is the profile whose devices are the examples.
const example = "dgx-h100"

// section is a table in the page, between two comments that nobody sees.
var section = regexp.MustCompile(`(?s)<!-- generated: (\w+) -->\n(.*?)<!-- end -->`)

func TestReference(t *testing.T) {
	comparePage(t, "reference/devices.md", map[string]func(*testing.T) string{
		"types": types, "attributes": attributes, "standard": standard, "capacities": capacities, "taints": taints,
		"products": products, "classes": classes,
	})
	comparePage(t, "reference/configuration.md", map[string]func(*testing.T) string{"kinds": kinds})
	comparePage(t, "reference/events-and-metrics.md", map[string]func(*testing.T) string{
		"metrics": metrics, "cluster": cluster, "steps": stepsTable,
		"events": func(t *testing.T) string { return events(t, report.Events) },
		"controllerEvents": func(t *testing.T) string {
			return events(t, explain.Events, convert.Events, extender.Events, idle.Events, network.Events,
				preempt.Events,
				struct{ NotAllocated, Evicted event.Kind }{explain.NotAllocated, eviction.Evicted})
		},
	})
}

// comparePage compares the tables of a page with those made from the code, or writes them.
func comparePage(t *testing.T, file string, tables map[string]func(*testing.T) string) {
	t.Helper()
	page := read(t, file)
	want := section.ReplaceAllStringFunc(page, func(found string) string {
		name := section.FindStringSubmatch(found)[1]
		table, ok := tables[name]
		if !ok {
			t.Fatalf("%s: nothing makes a table %q, or it is there twice", file, name)
		}
		delete(tables, name)
		return "<!-- generated: " + name + " -->\n" + table(t) + "<!-- end -->"
	})
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t.Errorf("%s has no place for the table %q", file, name)
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, wanted := strings.Split(page, "\n"), strings.Split(want, "\n")
	for i := range min(len(got), len(wanted)) {
		if got[i] != wanted[i] {
			t.Fatalf("%s line %d is out of date (go test ./docs -update)\ngot  %s\nwant %s", file, i+1, got[i],
				wanted[i])
		}
	}
	if len(got) != len(wanted) {
		t.Fatalf("%s is out of date (go test ./docs -update): got %d lines, want %d", file, len(got), len(wanted))
	}
}

// table writes rows of cells. An empty cell is something that its code does not describe.
func table(t *testing.T, head []string, rows [][]string) string {
	t.Helper()
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	fmt.Fprintln(&b, "|"+strings.Repeat("---|", len(head)))
	for _, row := range rows {
		if i := slices.Index(row, ""); i >= 0 {
			t.Errorf("no %q of %v: describe it where it is defined", head[i], row)
		}
		line(row)
	}
	return b.String()
}

func types(t *testing.T) string {
	names := map[string][]string{}
	for _, d := range published(t, example) {
		of := *d.Attributes["type"].StringValue
		names[of] = append(names[of], d.Name)
	}
	var rows [][]string
	for _, known := range inventory.AllTypes {
		name := string(known.Name)
		if len(names[name]) == 0 {
			t.Fatalf("profile %s has no device of type %s", example, name)
		}
		rows = append(rows, []string{code(name), code(names[name][0]), known.Meaning})
		delete(names, name)
	}
	for name := range names {
		t.Errorf("type %s is published and not in inventory.AllTypes", name)
	}
	return table(t, []string{"type", "for example", "is"}, rows)
}

func attributes(t *testing.T) string { return attributesOf(t, false) }
func standard(t *testing.T) string   { return attributesOf(t, true) }

func attributesOf(t *testing.T, standard bool) string {
	devices := append(published(t, example), published(t, "vgpu-guest")...)
	known := map[resourceapi.QualifiedName]bool{}
	var rows [][]string
	for _, a := range inventory.AllAttributes {
		known[a.Name] = true
		if strings.Contains(string(a.Name), "/") != standard {
			continue
		}
		var kind, value string
		for _, d := range devices { // the first device that has something to say is the example
			if k, v := describe(d.Attributes[a.Name]); value == "" || value == `""` {
				kind, value = k, v
			}
		}
		rows = append(rows, []string{code(string(a.Name)), kind, code(value), a.Meaning})
	}
	for _, d := range devices {
		for name := range d.Attributes {
			if !known[name] {
				t.Errorf("attribute %s is published and not in inventory.AllAttributes", name)
			}
		}
	}
	return table(t, []string{"attribute", "type", "for example", "means"}, rows)
}

var uuid = regexp.MustCompile(`GPU-[0-9a-f-]{36}`)

// describe says of which type a value is, and which. UUIDs are different in every run.
func describe(a resourceapi.DeviceAttribute) (kind, value string) {
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		name, isValue := strings.CutSuffix(v.Type().Field(i).Name, "Value")
		if field := v.Field(i); isValue && field.Kind() == reflect.Pointer && !field.IsNil() {
			value := uuid.ReplaceAllString(fmt.Sprint(field.Elem().Interface()), "GPU-…")
			if value == "" {
				value = `""`
			}
			return strings.ToLower(name), value
		}
	}
	return "", ""
}

func capacities(t *testing.T) string {
	var rows [][]string
	for _, c := range inventory.AllCapacities {
		var seen []string
		for _, d := range append(published(t, example), replicated(t)...) {
			of := *d.Attributes["type"].StringValue
			published, ok := d.Capacity[c.Name]
			if !ok || slices.Contains(seen, of) {
				continue
			}
			seen = append(seen, of)
			rows = append(rows, []string{code(string(c.Name)), code(of), c.Unit, code(published.Value.String()),
				policy(published.RequestPolicy), c.Meaning})
		}
	}
	return table(t, []string{"capacity", "of a", "unit", "for example", "an allocation takes", "means"}, rows)
}

// policy says what an allocation consumes of a capacity.
func policy(p *resourceapi.CapacityRequestPolicy) string {
	if p == nil {
		return "all"
	}
	var parts []string
	if p.Default != nil {
		parts = append(parts, code(p.Default.String())+" unless it asks")
	}
	if r := p.ValidRange; r != nil {
		parts = append(parts, "at least "+code(r.Min.String()))
		if r.Max != nil {
			parts = append(parts, "at most "+code(r.Max.String()))
		}
		if r.Step != nil {
			parts = append(parts, "in steps of "+code(r.Step.String()))
		}
	}
	for _, v := range p.ValidValues {
		parts = append(parts, code(v.String()))
	}
	return strings.Join(parts, ", ")
}

func taints(t *testing.T) string {
	var rows [][]string
	for _, taint := range inventory.AllTaints {
		rows = append(rows, []string{code(taint.Key), code(string(taint.Effect)), taint.Meaning})
	}
	return table(t, []string{"taint", "effect", "means"}, rows)
}

// products are the models of all built-in profiles, strongest first.
func products(t *testing.T) string {
	profiles := map[gpu.Product][]string{}
	sizes := map[gpu.Product]gpu.Device{}
	for _, profile := range simulator.Profiles() {
		for _, d := range simtest.Discover(t, profile) {
			if !slices.Contains(profiles[d.Product], code(profile)) {
				profiles[d.Product] = append(profiles[d.Product], code(profile))
			}
			sizes[d.Product] = d
		}
	}
	var rows [][]string
	for _, d := range inventory.New(slices.SortedFunc(maps.Values(sizes),
		func(a, b gpu.Device) int { return strings.Compare(a.Product.Name, b.Product.Name) })) {
		p := d.Product
		mig := "no"
		if d.MIG.Capable {
			mig = "yes"
		}
		rows = append(rows, []string{code(p.Name), p.Architecture, fmt.Sprintf("%d.%d", p.ComputeCapability.Major,
			p.ComputeCapability.Minor),
			fmt.Sprintf("%dMi", d.Memory>>20), fmt.Sprint(p.MemoryBandwidth), fmt.Sprint(p.Multiprocessors),
			fmt.Sprint(p.PeakCompute), mig,
			strings.Join(profiles[p], ", ")})
	}
	return table(t, []string{"`productName`", "`architecture`", "compute capability", "`memory`", "`memoryBandwidth`",
		"`multiprocessors`", "`peakCompute`", "`migCapable`", "profiles"}, rows)
}

// ofProfile says whether a class is for one profile of partitions; there are many, all alike.
func ofProfile(class string) bool { return strings.HasPrefix(class, "`mig-") }

// classes are those of the rendered chart, which the tests of the chart keep current.
func classes(t *testing.T) string {
	var rows [][]string
	for _, document := range strings.Split(read(t, "../deployments/helm/testdata/default.golden.yaml"), "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(document), &class); err != nil {
			t.Fatal(err)
		}
		if class.Kind != "DeviceClass" {
			continue
		}
		var selectors []string
		for _, s := range class.Spec.Selectors {
			selectors = append(selectors, code(s.CEL.Expression))
		}
		extended := "none"
		if name := class.Spec.ExtendedResourceName; name != nil {
			extended = code(*name)
		}
		rows = append(rows, []string{code(class.Name), strings.Join(selectors, ", "), extended})
		if len(rows) > 1 && ofProfile(rows[len(rows)-1][0]) && ofProfile(rows[len(rows)-2][0]) {
			rows = rows[:len(rows)-1] // one of them is enough
		}
	}
	return table(t, []string{"class", "selects", "extended resource"}, rows)
}

var fqName = regexp.MustCompile(`fqName: "(\w+)"`)

func metrics(t *testing.T) string { return metricsOf(t, nodemetrics.Example(t)) }

func cluster(t *testing.T) string { return metricsOf(t, clustermetrics.Example()) }

func metricsOf(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	gathered := map[string]bool{}
	for _, family := range families {
		gathered[family.GetName()] = true
		if !strings.HasPrefix(family.GetName(), "gpu_dra_") {
			continue
		}
		values := map[string][]string{}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if !slices.Contains(values[label.GetName()], label.GetValue()) {
					values[label.GetName()] = append(values[label.GetName()], label.GetValue())
				}
			}
		}
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if name == "step" {
				labels = append(labels, code(name)+": see below")
				continue
			}
			if slices.Equal(values[name], []string{""}) { // it may have any value
				labels = append(labels, code(name))
				continue
			}
			labels = append(labels, code(name)+": "+strings.Join(values[name], ", "))
		}
		if len(labels) == 0 {
			labels = []string{"–"}
		}
		rows = append(rows, []string{code(family.GetName()), strings.ToLower(family.GetType().String()),
			strings.Join(labels, "; "), family.GetHelp()})
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		registry.Describe(descs)
	}()
	for desc := range descs { // a vector without values is registered and not gathered
		if name := fqName.FindStringSubmatch(desc.String()); (name == nil || !gathered[name[1]]) &&
			strings.Contains(desc.String(), "gpu_dra_") {
			t.Errorf("%s has no values: let metrics.zero make some", desc)
		}
	}
	return table(t, []string{"metric", "type", "labels", "counts"}, rows)
}

func stepsTable(t *testing.T) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(steps.Meanings)) {
		rows = append(rows, []string{code(name), steps.Meanings[name]})
	}
	return table(t, []string{"step", "what it does"}, rows)
}

// events are all fields of a struct of events.
func events(t *testing.T, of ...any) string {
	var rows [][]string
	for _, one := range of {
		all := reflect.ValueOf(one)
		for i := range all.NumField() {
			e := all.Field(i).Interface().(event.Kind)
			rows = append(rows, []string{code(e.Reason), e.Type, e.About, e.Meaning})
		}
	}
	return table(t, []string{"reason", "type", "about a", "means"}, rows)
}

func kinds(t *testing.T) string {
	var rows [][]string
	for _, kind := range slices.Sorted(maps.Keys(api.Kinds)) {
		for _, field := range fields(reflect.TypeOf(api.Kinds[kind]), "") {
			rows = append(rows, append([]string{code(kind)}, field...))
		}
	}
	return table(t, []string{"kind", "field", "type", "means"}, rows)
}

// fields are path, type and meaning of everything that may be written below a type.
func fields(in reflect.Type, path string) [][]string {
	var rows [][]string
	for i := range in.NumField() {
		field := in.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		of := field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		rows = append(rows, []string{code(path + name), typeName(of), field.Tag.Get("doc")})
		if typeName(of) == "object" && of.Kind() == reflect.Struct {
			rows = append(rows, fields(of, path+name+".")...)
		}
	}
	return rows
}

func typeName(of reflect.Type) string {
	switch {
	case reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()):
		return strings.TrimSuffix(strings.ToLower(of.Name()), "json") // a quantity that is not parsed yet
	case of.Kind() == reflect.Struct, of.Kind() == reflect.Map && of.Elem().Kind() == reflect.Interface:
		return "object"
	case of.Kind() == reflect.Map:
		return "map of " + typeName(of.Elem())
	case of.Kind() == reflect.Slice:
		return "list of " + typeName(of.Elem())
	}
	return of.Kind().String()
}

// published is what a node with that profile publishes where its GPUs may be partitioned and given to virtual machines,
// also as vGPUs.
func published(t *testing.T, profile string) []resourceapi.Device {
	t.Helper()
	gpus := inventory.New(simtest.Discover(t, profile))
	for i := range gpus {
		gpus[i].MIG.Switchable, gpus[i].MIG.Profiles, gpus[i].Use.Partitions = true, migProfiles(t),
			gpu.PartitionsDynamic
		gpus[i].Use.OnDemand = true
		gpus[i].VFIO = &gpu.VFIO{Group: 27 + i, Vendor: "10de", Device: "2330",
			Functions: []gpu.PCIFunction{{PCI: gpus[i].PCI, Driver: "nvidia"}}}
	}
	kind := gpu.VGPUType{Name: "H100XM-40C", Memory: 40 << 30, Max: 2}
	gpus[1].VGPUs = &gpu.VGPUs{Types: []gpu.VGPUType{kind}, Existing: []gpu.VGPU{{Parent: gpus[1].UUID, Type: kind,
		Function: gpus[1].PCI, Group: 60, MDev: "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10"}}}
	return publishedOf(gpus)
}

// replicated returns the devices of a machine whose GPUs have four replicas each.
func replicated(t *testing.T) []resourceapi.Device {
	t.Helper()
	gpus := inventory.New(simtest.Discover(t, "t4-x2"))
	for i := range gpus {
		gpus[i].Use.Sharing, gpus[i].Use.Replicas = gpu.Replicated, 4
	}
	return publishedOf(gpus)
}

func publishedOf(gpus inventory.Inventory) []resourceapi.Device {
	var devices []resourceapi.Device
	pools := gpus.WithPartitions(func(gpu.Placement) bool { return true }).Pools("node-1")
	for _, slice := range inventory.Slices("gpu.nvidia.com", "node-1", pools) {
		devices = append(devices, slice.Spec.Devices...)
	}
	return devices
}

// migProfiles are those of the example's GPUs, which the simulation does not have.
func migProfiles(t *testing.T) []gpu.Profile {
	t.Helper()
	var tables map[string][]gpu.Profile
	if err := yaml.Unmarshal([]byte(read(t, "../pkg/inventory/testdata/mig/tables.yaml")), &tables); err != nil {
		t.Fatal(err)
	}
	return tables["H100-80GB"]
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(s, "|", `\|`) + "`"
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
