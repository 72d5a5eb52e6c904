// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// This file finds what a user cannot have meant: names and values that nothing has, and amounts that are valid and of
// no use. Whatever depends on what is published now is a warning, with what was likely meant.

// leastMemory is the amount of memory below which a share is of no use: the CUDA context of a program needs as much.
var leastMemory = resource.MustParse("256Mi")

// whole reports whether the quantity is a whole number.
func whole(q resource.Quantity) bool {
	rounded := q.DeepCopy()
	return rounded.RoundUp(0)
}

// fractionHint says what a fraction was likely meant to be. Cores are percent: 0.3 would be rounded up to 1 %.
func fractionHint(name resourceapi.QualifiedName, value resource.Quantity) string {
	if name != "cores" {
		return ""
	}
	text := " of percent"
	if percent := value.AsApproximateFloat64() * 100; percent <= 100 {
		text += fmt.Sprintf("; did you mean %.0f?", percent)
	}
	return text
}

// memoryText prints an amount of memory. One without a unit is in bytes.
func memoryText(q resource.Quantity) string {
	text := q.String()
	if strings.Trim(text, "0123456789") == "" {
		return text + " bytes"
	}
	return text
}

// coresAlone warns about a request for some of the cores that gets all of the memory, and so a whole GPU.
func (c Checker) coresAlone(a alternative, v *Verdict) {
	cores, asks := a.Asked()["cores"]
	_, memory := a.Asked()["memory"]
	if !asks || memory || cores.Cmp(hundred) >= 0 {
		return
	}
	if slices.ContainsFunc(a.kinds, func(k *cluster.DeviceKind) bool {
		of := k.Device.Capacity["memory"]
		return k.Type() == gpu.TypeGPU && of.RequestPolicy != nil && of.RequestPolicy.Default != nil &&
			!of.Value.IsZero() && of.RequestPolicy.Default.Cmp(of.Value) == 0
	}) {
		v.warn("%s: without memory, the claim gets all memory of a GPU, and no other claim shares it: write "+
			"memory, too",
			a.path.Child("capacity", "requests"))
	}
}

// otherDriver has configurations of the same API group: NVIDIA's driver for compute domains.
const otherDriver = "compute-domain.nvidia.com"

// forNobody warns about a configuration in the format of this driver that names another driver: no driver reads it.
func (c Checker) forNobody(config *resourceapi.OpaqueDeviceConfiguration, path *field.Path, v *Verdict) {
	var meta struct {
		APIVersion string `json:"apiVersion"`
	}
	if config.Driver == otherDriver || json.Unmarshal(config.Parameters.Raw, &meta) != nil {
		return
	}
	group, _, _ := strings.Cut(api.GroupVersion, "/")
	of, _, _ := strings.Cut(meta.APIVersion, "/")
	if of == group || nearest.Name(config.Driver, []string{c.View.Driver()}) != "" && meta.APIVersion == "" {
		v.warn("%s: this configuration is for the driver %s, so the driver %s ignores it; did you mean %s?",
			path.Child("driver"), config.Driver, c.View.Driver(), c.View.Driver())
	}
}

// missingClass warns about a class that does not exist.
func (c Checker) missingClass(ctx context.Context, a alternative, v *Verdict) {
	v.warn("%s: the class %s does not exist%s", a.path.Child("deviceClassName"), *a.Class,
		c.classHint(ctx, *a.Class))
}

// emptyClass warns about a class of this driver that no published device is of. A list may well have an alternative for
// devices that are not there.
func (c Checker) emptyClass(ctx context.Context, a alternative, v *Verdict) {
	if len(c.View.Kinds()) == 0 || a.Alternative >= 0 || ctx.Err() != nil {
		return
	}
	v.warn("%s: no device that is published now is of the class %s%s", a.path.Child("deviceClassName"),
		*a.Class, c.classHint(ctx, *a.Class))
}

// classHint returns a question about the class that was likely meant: of partitions, the nearest that is offered.
func (c Checker) classHint(ctx context.Context, name string) string {
	classes := c.View.ClassNames()
	if !nearest.Profile(name) {
		if _, exists := c.View.Class(name); exists {
			return ""
		}
		return nearest.Hint(name, classes)
	}
	for _, near := range nearest.Profiles(name, classes) {
		class, ok := c.View.Class(near)
		if ok && slices.ContainsFunc(c.View.Kinds(), func(k *cluster.DeviceKind) bool {
			return c.accepts(ctx, k, class.Spec.Selectors, nil, nil)
		}) {
			return fmt.Sprintf("; the nearest that is offered is %s", near)
		}
	}
	return ""
}

// explain warns about each of the selectors that no kind meets. It reports whether there are any.
func (c Checker) explain(ctx context.Context, kinds []*cluster.DeviceKind, all []resourceapi.DeviceSelector,
	path *field.Path, failures selectorErrors, of selectors.Explained, v *Verdict) (explained bool) {
	var words *selectors.Vocabulary
	for i, s := range all {
		at := path.Index(i).Child("cel", "expression")
		if s.CEL == nil || ctx.Err() != nil {
			continue
		}
		if words == nil {
			words = c.vocabulary(kinds)
		}
		unmet := words.Unmet(s.CEL.Expression, of, c.anyMeets(ctx, kinds))
		failed := len(unmet) > 0 && failures.drop(at)
		for _, text := range unmet {
			explained = true
			if failed {
				text += " (the selector fails on devices of the class, and then the scheduler gives up on the pod)"
			}
			v.warn("%s: %s", at, text)
		}
	}
	return explained
}

// anyMeets returns a function that reports whether any of the kinds meets an expression. When the time is over, it says
// yes.
func (c Checker) anyMeets(ctx context.Context, kinds []*cluster.DeviceKind) func(string) bool {
	return func(expression string) bool {
		s := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
		return slices.ContainsFunc(kinds, func(k *cluster.DeviceKind) bool {
			ok, err := c.View.Accepts(ctx, k, s)
			return ok && err == nil || ctx.Err() != nil
		})
	}
}

// vocabulary returns what selectors of these kinds can name.
func (c Checker) vocabulary(kinds []*cluster.DeviceKind) *selectors.Vocabulary {
	words := selectors.NewVocabulary()
	for _, k := range kinds {
		words.Add(c.View.Driver(), &k.Device)
	}
	return words
}

// checkTogether validates what concerns several requests: constraints, and how many devices they ask for.
func (c Checker) checkTogether(ctx context.Context, spec *resourceapi.ResourceClaimSpec, all []alternative,
	devices *field.Path, v *Verdict) {
	for i, constraint := range spec.Devices.Constraints {
		c.constraint(constraint, all, devices.Child("constraints").Index(i), v)
	}
	for _, a := range all {
		if *a.Count < 2 || *a.Count > resourceapi.AllocationResultsMaxSize || len(a.kinds) == 0 || ctx.Err() != nil {
			continue
		}
		if most := c.mostOnNode(a); most > 0 && most < *a.Count {
			v.warn("%s: the devices of a request are of one node, and no node has more than %d for this one",
				a.path.Child("count"), most)
		}
	}
	if len(all) > 0 && !slices.ContainsFunc(all, func(a alternative) bool { return a.class != nil }) {
		c.configOfNone(spec, all, devices, v)
	}
}

// configOfNone warns about configurations of this driver in a claim that has no request for its devices.
func (c Checker) configOfNone(spec *resourceapi.ResourceClaimSpec, all []alternative, devices *field.Path, v *Verdict) {
	if slices.ContainsFunc(all, func(a alternative) bool {
		_, exists := c.View.Class(*a.Class)
		return !exists // its class may be of this driver when it exists
	}) {
		return
	}
	for i, config := range spec.Devices.Config {
		if config.Opaque != nil && config.Opaque.Driver == c.View.Driver() {
			v.warn("%s: no request of this claim names a class of the driver %s, so the configuration is for no device",
				devices.Child("config").Index(i).Child("opaque"), c.View.Driver())
		}
	}
}

// constraint warns about an attribute that no device of the requests has. Such a constraint is never met.
func (c Checker) constraint(constraint resourceapi.DeviceConstraint, all []alternative, path *field.Path, v *Verdict) {
	var kinds []*cluster.DeviceKind
	for _, a := range all {
		if len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, a.request) &&
			!slices.Contains(constraint.Requests, a.Name) {
			continue
		}
		if a.class == nil {
			return // devices of other drivers may have it
		}
		kinds = append(kinds, a.kinds...)
	}
	if len(kinds) == 0 {
		return
	}
	words := c.vocabulary(kinds)
	for _, of := range []struct {
		field     string
		attribute *resourceapi.FullyQualifiedName
	}{{"matchAttribute", constraint.MatchAttribute}, {"distinctAttribute", constraint.DistinctAttribute}} {
		if of.attribute == nil {
			continue
		}
		if text := words.Attribute(*of.attribute); text != "" {
			v.warn("%s: %s", path.Child(of.field), text)
		}
	}
}

// mostOnNode returns how many devices the alternative gets of a node, while nothing of that is held or tainted: at most
// as many as it asks for.
func (c Checker) mostOnNode(a alternative) (most int64) {
	of := fit.Alternative{Takes: map[*cluster.DeviceKind][]int64{},
		Tolerations: []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}}
	for _, k := range a.kinds {
		of.Takes[k] = k.Takes(a.Asked())
	}
	var node fit.Node
	c.View.Nodes(c.View.DifferentNodes(), func(_ int, devices *cluster.NodeDevices) {
		for fits := true; fits && most < *a.Count; {
			of.Count = most + 1
			node.Empty(devices)
			if _, fits = node.Estimate(&fit.Demand{Requests: []fit.Request{{of}}}); fits {
				most++
			}
		}
	})
	return most
}
