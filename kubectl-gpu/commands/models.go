// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Model is a model of GPUs of the cluster.
type Model struct {
	Name              string `json:"name"`
	Driver            string `json:"driver"`
	Memory            int64  `json:"memory"` // bytes
	ComputeCapability string `json:"computeCapability,omitempty"`
	GPUs              int    `json:"gpus"`
	// Free is how many GPUs nobody holds and new pods can get; nil if the user may not read all claims.
	Free *int `json:"free,omitempty"`
	// Profiles are the partitions that claims can ask for.
	Profiles []string `json:"profiles,omitempty"`
	// Classes are the device classes that accept a whole GPU of the model.
	Classes []string `json:"classes,omitempty"`
	// Selector is a CEL expression that accepts the model and no other.
	Selector string `json:"selector,omitempty"`

	devices []*resourceapi.Device // one of each sharing mode; none if only partitions are published
}

func modelsCommand(p *plugin) *cobra.Command {
	var f filter
	var o output
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the models of GPUs of the cluster, and how to ask for each.",
		Long: "List the models of GPUs of the cluster: how many there are and how many are free, and the device " +
			"classes that ask for one, and with -o wide the CEL expression for its selector.",
		Example: "  kubectl gpu models\n  kubectl gpu models --model h100 -o wide",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.models(cmd.Context(), f, o) },
	}
	f.addDriver(cmd)
	f.addModel(cmd)
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
	profiles := profilesOf(s.Slices)
	var all []*Model
	for _, g := range gpus {
		i := slices.IndexFunc(all, func(m *Model) bool {
			return m.Driver == g.Driver && m.Name == g.Model && m.Memory == g.Memory.Total &&
				m.ComputeCapability == g.ComputeCapability
		})
		if i < 0 {
			i, all = len(all), append(all, &Model{Name: g.Model, Driver: g.Driver, Memory: g.Memory.Total,
				ComputeCapability: g.ComputeCapability, Selector: selector(g),
				Profiles: sets.List(profiles[modelKey{g.Driver, g.Model}])})
		}
		m := all[i]
		alike := func(d *resourceapi.Device) bool { return sharedAlike(d, g.device) }
		if g.device != nil && !slices.ContainsFunc(m.devices, alike) {
			m.devices = append(m.devices, g.device)
		}
		m.GPUs++
		if g.Memory.Used != nil {
			if m.Free == nil {
				m.Free = new(int)
			}
			if g.Free() {
				*m.Free++
			}
		}
	}
	for _, m := range all {
		m.Classes = classesOf(ctx, m, s.Classes)
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

// modelKey identifies a model of one driver.
type modelKey struct{ driver, model string }

// profilesOf returns the profiles of the published partitions of each model.
func profilesOf(all []*resourceapi.ResourceSlice) map[modelKey]sets.Set[string] {
	found := map[modelKey]sets.Set[string]{}
	for _, s := range all {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if gpu.Type(text(d, "type")) != gpu.TypeMIG {
				continue
			}
			of := modelKey{s.Spec.Driver, text(d, productName)}
			if found[of] == nil {
				found[of] = sets.New[string]()
			}
			found[of].Insert(text(d, "profile"))
		}
	}
	return found
}

// classesOf returns the classes whose selectors all accept a whole GPU of the model. A class without selectors accepts
// every device and is not listed.
func classesOf(ctx context.Context, m *Model, classes []*resourceapi.DeviceClass) []string {
	var accept []string
	for _, class := range classes {
		accepts := func(d *resourceapi.Device) bool { return schedule.ClassAccepts(ctx, class, m.Driver, d) }
		if len(class.Spec.Selectors) > 0 && slices.ContainsFunc(m.devices, accepts) {
			accept = append(accept, class.Name)
		}
	}
	slices.Sort(accept)
	return accept
}

func modelTable(all []*Model, s *cluster.Snapshot) table {
	t := table{header: []string{"MODEL", "MEMORY", "COMPUTE", "GPUS", "FREE", "PARTITIONS", "CLASSES", "SELECTOR"},
		wide: []string{"SELECTOR"}, optional: []string{"COMPUTE", "PARTITIONS"}}
	for _, m := range all {
		free := unknown
		if m.Free != nil {
			free = strconv.Itoa(*m.Free)
		}
		classes := joined(m.Classes)
		if s.Unread[cluster.Classes] != nil {
			classes = unknown
		}
		t.add(cmp.Or(m.Name, none), size(m.Memory), cmp.Or(m.ComputeCapability, none), strconv.Itoa(m.GPUs), free,
			joined(m.Profiles), classes, cmp.Or(m.Selector, none))
	}
	return t
}
