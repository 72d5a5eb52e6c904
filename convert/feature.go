// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// nameHelp is the help of the flag with the names of resources.
const nameHelp = "OWN=KNOWN: a name that an administrator of an older system gave to a resource, and its usual name, " +
	"such as nvidia.com/vgpu=nvidia.com/gpu; may be repeated"

// AddTo adds the conversion to the program of the controller: its flags, the command convert, and the feature.
func AddTo(program *cobra.Command, features *[]feature.Feature) {
	var c converter
	f := program.Flags()
	f.StringSliceVar(&c.Families, "convert-families", nil, "older systems whose pods are converted to claims: "+
		strings.Join(Names(), ", ")+"; empty: none")
	f.Var((*models)(&c.Models), "convert-model", "MEMORY/TFLOPS of a GPU that a pod may get a part of, besides "+
		"those that are published, such as 15Gi/65; may be repeated")
	addMemoryUnit(f, &c.MemoryUnit)
	f.StringToStringVar((*map[string]string)(&c.Names), "convert-name", nil, nameHelp)
	program.AddCommand(newCommand())
	*features = append(*features, feature.Feature{
		Cached: cachedObjects(),
		Check:  func() error { return c.checkFlags("convert-families", "convert-name") },
		Add: func(to *feature.Controller) error {
			if len(c.Families) == 0 {
				return nil
			}
			if err := c.add(to); err != nil {
				return fmt.Errorf("convert pods: %w", err)
			}
			return nil
		},
	})
}

// cachedObjects are the objects that the controller keeps: converted pods and their templates. They are read only if
// pods are converted.
func cachedObjects() map[client.Object]cache.ByObject {
	label := labels.NewSelector()
	if r, err := labels.NewRequirement(FamilyLabel, selection.Exists, nil); err == nil {
		label = label.Add(*r)
	}
	return map[client.Object]cache.ByObject{
		&corev1.Pod{}:                        {Transform: strip, Label: label},
		&resourceapi.ResourceClaimTemplate{}: {Label: label},
	}
}

// checkFlags checks the families and the names, which are the values of these flags.
func (c converter) checkFlags(families, names string) error {
	known := Names()
	if slices.ContainsFunc(c.Families, func(name string) bool { return !slices.Contains(known, name) }) {
		return fmt.Errorf("--%s %s: want some of %s", families, strings.Join(c.Families, ","),
			strings.Join(known, ", "))
	}
	if err := c.Names.check(); err != nil {
		return fmt.Errorf("--%s: %w", names, err)
	}
	return nil
}

// models is a flag with a model of GPU.
type models []model

// Set adds a model.
func (m *models) Set(text string) error {
	amount, rate, _ := strings.Cut(text, "/")
	memory, err := resource.ParseQuantity(amount)
	tflops, invalid := strconv.ParseInt(rate, 10, 64)
	if err != nil || invalid != nil || memory.Value() < 1<<20 || tflops < 1 {
		return fmt.Errorf("%q: want MEMORY/TFLOPS, such as 15Gi/65", text)
	}
	*m = append(*m, model{Memory: memory.Value(), PeakCompute: tflops})
	return nil
}

// String returns the models as they are written.
func (m *models) String() string {
	var all []string
	for _, one := range *m {
		all = append(all, fmt.Sprintf("%s/%d", resource.NewQuantity(one.Memory, resource.BinarySI), one.PeakCompute))
	}
	return strings.Join(all, ",")
}

// Type describes the value in the help text.
func (m *models) Type() string { return "model" }

// memoryUnits are the sizes of one aliyun.com/gpu-mem, by their names in gpushare's device plugin.
var memoryUnits = map[string]int64{"GiB": 1 << 30, "MiB": 1 << 20}

// memoryUnit is a flag with one of memoryUnits, in bytes.
type memoryUnit int64

func addMemoryUnit(f *pflag.FlagSet, unit *int64) {
	*unit = memoryUnits["GiB"]
	f.Var((*memoryUnit)(unit), "gpushare-memory-unit", "what aliyun.com/gpu-mem counts: GiB or MiB, as the flag "+
		"--memory-unit of gpushare's device plugin")
}

// Set sets the unit.
func (m *memoryUnit) Set(text string) error {
	unit, ok := memoryUnits[text]
	if !ok {
		return fmt.Errorf("%q: want GiB or MiB", text)
	}
	*m = memoryUnit(unit)
	return nil
}

// String returns the unit as it is written.
func (m *memoryUnit) String() string {
	for text, unit := range memoryUnits {
		if int64(*m) == unit {
			return text
		}
	}
	return ""
}

// Type describes the value in the help text.
func (m *memoryUnit) Type() string { return "unit" }
