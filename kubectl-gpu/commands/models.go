// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// Model is a model of GPUs of the cluster.
type Model struct {
	Name              string `json:"name"`
	Driver            string `json:"driver"`
	Memory            int64  `json:"memory"` // bytes
	ComputeCapability string `json:"computeCapability,omitempty"`
	Tally
	// Profiles are the partitions that claims can ask for.
	Profiles []string `json:"profiles,omitempty"`
	// Partitions are the device classes that accept a partition of each profile.
	Partitions map[string][]string `json:"partitions,omitempty"`
	// Classes are the device classes that accept a whole GPU of the model.
	Classes []string `json:"classes,omitempty"`
	// Selector is a CEL expression that accepts the model and no other.
	Selector string `json:"selector,omitempty"`

	parts   map[string]*resourceapi.Device // one of each profile
	devices []*resourceapi.Device          // one of each sharing mode; none if only partitions are published
}

func modelsCommand(p *plugin) *cobra.Command {
	var f filter
	var o output
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the models of GPUs of the cluster, and how to ask for each.",
		Long: "List the models of GPUs of the cluster: how many there are and how many are free, and the device " +
			"classes that ask for one, and with -o wide the CEL expression for its selector and the classes that ask " +
			"for each of its partitions.",
		Example: "  kubectl gpu models\n  kubectl gpu models --model h100 -o wide",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.models(cmd.Context(), f, o) },
	}
	f.addDriver(cmd)
	f.addModel(p, cmd)
	o.addFlags(p, cmd, wide, names)
	return cmd
}

func (p *plugin) models(ctx context.Context, f filter, o output) error {
	gpus, s, err := p.gpus(ctx, f, cluster.Classes)
	if err != nil {
		return err
	}
	all := modelsOf(ctx, gpus, s)
	err = printList(p, o, "ModelList", all, func(m *Model) string { return m.Name }, f.nothing(), modelTable(all, s))
	return errors.Join(err, s.Err())
}

// modelsOf counts the GPUs by model and memory, sorted by name.
func modelsOf(ctx context.Context, gpus []*GPU, s *cluster.Snapshot) []*Model {
	var all []*Model
	for _, g := range gpus {
		i := slices.IndexFunc(all, func(m *Model) bool {
			return m.Driver == g.Driver && m.Name == g.Model && m.Memory == g.Memory.Total &&
				m.ComputeCapability == g.ComputeCapability
		})
		if i < 0 {
			i, all = len(all), append(all, &Model{Name: g.Model, Driver: g.Driver, Memory: g.Memory.Total,
				ComputeCapability: g.ComputeCapability, Selector: selector(g), parts: map[string]*resourceapi.Device{}})
		}
		m := all[i]
		alike := func(d *resourceapi.Device) bool { return sharedAlike(d, g.device) }
		if g.device != nil && !slices.ContainsFunc(m.devices, alike) {
			m.devices = append(m.devices, g.device)
		}
		for _, d := range g.parts {
			m.parts[text(d, "profile")] = d
		}
		m.count(g)
	}
	for _, m := range all {
		m.Profiles, m.Classes = slices.Sorted(maps.Keys(m.parts)), classesOf(ctx, m, s.Classes, m.devices...)
		m.Partitions = map[string][]string{}
		for _, profile := range m.Profiles {
			m.Partitions[profile] = classesOf(ctx, m, s.Classes, m.parts[profile])
		}
	}
	slices.SortFunc(all, func(a, b *Model) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Driver, b.Driver))
	})
	return all
}

// sharedAlike reports whether the devices have the same sharing mode. Classes accept GPUs of some modes only.
func sharedAlike(a, b *resourceapi.Device) bool {
	sharedOnly := func(d *resourceapi.Device) bool { return ptr.Deref(d.Attributes["sharedOnly"].BoolValue, false) }
	return text(a, "sharing") == text(b, "sharing") && sharedOnly(a) == sharedOnly(b)
}

// selector returns an expression that accepts GPUs of the model, with the attribute that names the model.
func selector(g *GPU) string {
	if g.Model == "" {
		return ""
	}
	return fmt.Sprintf("device.driver == %s && device.attributes[%s].%s == %s", quote(g.Driver), quote(g.Driver),
		g.modelAttribute, quote(g.Model))
}

// quote returns a CEL string.
func quote(s string) string {
	if strings.ContainsAny(s, `'\`) {
		return strconv.Quote(s)
	}
	return "'" + s + "'"
}

// classesOf returns the classes whose selectors all accept one of the devices of the model. A class without selectors
// accepts every device and is not listed.
func classesOf(ctx context.Context, m *Model, all []*resourceapi.DeviceClass, of ...*resourceapi.Device) []string {
	var accept []string
	for _, class := range all {
		accepts := func(d *resourceapi.Device) bool { return schedule.ClassAccepts(ctx, class, m.Driver, d) }
		if len(class.Spec.Selectors) > 0 && slices.ContainsFunc(of, accepts) {
			accept = append(accept, class.Name)
		}
	}
	slices.Sort(accept)
	return accept
}

func modelTable(all []*Model, s *cluster.Snapshot) table {
	t := table{header: []string{"MODEL", "MEMORY", "COMPUTE", "GPUS", "FREE", "PARTITIONS", "CLASSES", "SELECTOR",
		"CLASSES OF PARTITIONS"}, wide: []string{"SELECTOR", "CLASSES OF PARTITIONS"},
		optional: []string{"COMPUTE", "PARTITIONS"}}
	for _, m := range all {
		classes := joined(m.Classes)
		if s.Unread[cluster.Classes] != nil {
			classes = unknown
		}
		var parts []string
		for _, profile := range m.Profiles {
			parts = append(parts, profile+": "+cmp.Or(strings.Join(m.Partitions[profile], " or "), none))
		}
		t.add(cmp.Or(m.Name, none), size(m.Memory), cmp.Or(m.ComputeCapability, none), strconv.Itoa(m.GPUs),
			known(m.Free, decimal), joined(m.Profiles), classes, cmp.Or(m.Selector, none), joined(parts))
	}
	return t
}
