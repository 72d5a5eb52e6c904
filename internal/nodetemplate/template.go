// SPDX-License-Identifier: Apache-2.0

// Package nodetemplate makes the ResourceSlices that a node of a kind would publish, for autoscalers that are about to
// add one: from the slices of a node that exists, or from the profile of a machine.
package nodetemplate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/offer"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

// Template is the slices of a node that does not exist.
type Template struct {
	Slices []*resourceapi.ResourceSlice
	// Warnings say what a new node may have otherwise, for people.
	Warnings []string
}

// YAML returns a document for each slice.
func (t Template) YAML() ([]byte, error) {
	var all []byte
	for _, s := range t.Slices {
		text, err := yaml.Marshal(s)
		if err != nil {
			return nil, err
		}
		all = append(append(all, "---\n"...), text...)
	}
	return all, nil
}

// Target is the node that a template is for.
type Target struct {
	Driver string // name of the driver
	Name   string // of the node and its pools
}

// Lister lists the ResourceSlices of the API server.
type Lister interface {
	List(ctx context.Context, o metav1.ListOptions) (*resourceapi.ResourceSliceList, error)
}

// namesInError is how many slices are read for the names in an error.
const namesInError = 100

// FromNode returns the template of nodes like the named one, from its slices in the API server. The error names the
// nodes that have slices, or the permission that is missing.
func FromNode(ctx context.Context, in Lister, name string, as Target) (Template, error) {
	found, err := list(ctx, in, metav1.ListOptions{FieldSelector: inventory.SelectSlices(as.Driver, name)})
	if err != nil {
		return Template{}, err
	}
	if len(found.Items) == 0 {
		return Template{}, noSlices(ctx, in, name, as.Driver)
	}
	var published []*resourceapi.ResourceSlice
	for i := range found.Items {
		published = append(published, &found.Items[i])
	}
	return sanitize(published, name, as)
}

// FromProfile returns the template of nodes like the machine of the profile, on a server with all features of slices.
// The error names the known profiles.
func FromProfile(profile string, config nodeconfig.Config, as Target) (Template, error) {
	gpus, err := devices(profile)
	if err != nil {
		return Template{}, err
	}
	published := inventory.Slices(as.Driver, as.Name, inventory.Unclaimed(gpus, config.For).Pools(as.Name))
	t, err := sanitize(published, as.Name, as)
	t.Warnings = slices.Concat(config.Warnings, config.Unmatched(gpus))
	return t, err
}

func list(ctx context.Context, in Lister, o metav1.ListOptions) (*resourceapi.ResourceSliceList, error) {
	found, err := in.List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("list resourceslices of the API group resource.k8s.io: %w", err)
	}
	return found, nil
}

// noSlices returns the error for a node without slices.
func noSlices(ctx context.Context, in Lister, node, driver string) error {
	of := resourceapi.ResourceSliceSelectorDriver + "=" + driver
	found, err := list(ctx, in, metav1.ListOptions{FieldSelector: of, Limit: namesInError})
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, s := range found.Items {
		names[ptr.Deref(s.Spec.NodeName, "")] = true
	}
	have := strings.Join(slices.Sorted(maps.Keys(names)), ", ")
	if found.Continue != "" {
		have += " and others"
	}
	return fmt.Errorf("node %q has no ResourceSlices of driver %s; nodes that have: %s", node, driver,
		cmp.Or(have, "none"))
}

// sanitize returns the slices of the node as those of a node with another name that has just started. It replaces UUIDs
// with numbers, and leaves out taints. Of a model of which the node publishes some possible partitions, it adds the
// others, because the node would publish them for a pod that waits.
func sanitize(of []*resourceapi.ResourceSlice, node string, as Target) (Template, error) {
	current, err := newest(offer.All(of, nil))
	if err != nil {
		return Template{}, err
	}
	var t Template
	pools := map[string]inventory.Pool{}
	for _, name := range slices.Sorted(maps.Keys(current)) {
		var pool inventory.Pool
		for _, s := range current[name] {
			for i := range s.Devices {
				t.Warnings = append(t.Warnings, untaint(&s.Devices[i])...)
				rename(s.Devices[i], inventory.MonitorID(node), inventory.MonitorID(as.Name))
			}
			pool.Slices = append(pool.Slices, inventory.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters})
		}
		pools[as.Name+strings.TrimPrefix(name, node)] = pool
	}
	t.Slices = inventory.Slices(as.Driver, as.Name, pools)
	for i, s := range t.Slices {
		s.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"}
		s.Name, s.GenerateName = fmt.Sprint(s.GenerateName, i), ""
	}
	return t, withoutUUIDs(&t.Slices)
}

// newest returns copies of the slices of each pool's newest generation, in the order of the driver. The error names a
// pool that lacks some of them.
func newest(of []*resourceapi.ResourceSlice) (map[string][]resourceapi.ResourceSliceSpec, error) {
	of = slices.SortedFunc(slices.Values(of), func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(b.Spec.Pool.Generation, a.Spec.Pool.Generation),
			cmp.Compare(a.Name, b.Name)) // it begins with the number of the slice
	})
	pools := map[string][]resourceapi.ResourceSliceSpec{}
	for _, s := range of {
		known := pools[s.Spec.Pool.Name]
		if len(known) == 0 || known[0].Pool.Generation == s.Spec.Pool.Generation {
			pools[s.Spec.Pool.Name] = append(known, *s.Spec.DeepCopy())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		if has, want := len(pools[name]), pools[name][0].Pool.ResourceSliceCount; int64(has) != want {
			return nil, fmt.Errorf("pool %s is being changed: it has %d of %d slices; try again", name, has, want)
		}
	}
	return pools, nil
}

// untaint removes the taints of the device, and returns a warning for each that keeps claims away.
func untaint(d *resourceapi.Device) []string {
	var left []string
	for _, t := range d.Taints {
		if t.Effect != resourceapi.DeviceTaintEffectNone {
			left = append(left, fmt.Sprintf("device %s has the taint %s, which the template leaves out", d.Name, t.Key))
		}
	}
	d.Taints = nil
	return left
}

// rename replaces string attributes of the device that equal from.
func rename(d resourceapi.Device, from, to string) {
	for name, a := range d.Attributes {
		if ptr.Deref(a.StringValue, "") == from {
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &to}
		}
	}
}

var uuid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// withoutUUIDs replaces each UUID in the value with a number in the format of a UUID, equal ones by the same. The order
// of the numbers is that of the fields in JSON.
func withoutUUIDs[T any](value *T) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	known := map[string]string{}
	text = uuid.ReplaceAllFunc(text, func(id []byte) []byte {
		if known[string(id)] == "" {
			known[string(id)] = fmt.Sprintf("00000000-0000-0000-0000-%012x", len(known))
		}
		return []byte(known[string(id)])
	})
	var replaced T
	if err := json.Unmarshal(text, &replaced); err != nil {
		return err
	}
	*value = replaced
	return nil
}
