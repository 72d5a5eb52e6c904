// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	_ "embed"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

//go:embed testdata/functions-r470.txt
var functionsOfR470 string

// hasR470 reports whether R470 has the function, or a version of it: go-nvml looks for those of many functions.
func hasR470(function string) bool {
	return slices.ContainsFunc(strings.Fields(functionsOfR470), func(has string) bool {
		rest, ok := strings.CutPrefix(has, function)
		return ok && (rest == "" || strings.HasPrefix(rest, "_v"))
	})
}

// olderExtensions are those of R470.
type olderExtensions struct{ nvmllib.ExtendedInterface }

func (e olderExtensions) LookupSymbol(function string) error {
	if !hasR470(function) {
		return errors.New("undefined symbol: " + function)
	}
	return e.ExtendedInterface.LookupSymbol(function)
}

// olderGPU returns the GPU as R470 has it: a call of a function that it lacks ends the program.
func olderGPU(d nvmllib.Device) nvmllib.Device {
	older := &mock.Device{}
	fields := reflect.ValueOf(older).Elem()
	for i := range fields.NumField() {
		call, ok := strings.CutSuffix(fields.Type().Field(i).Name, "Func")
		if ok && hasR470("nvmlDevice"+call) {
			fields.Field(i).Set(reflect.ValueOf(d).MethodByName(call))
		}
	}
	return older
}

// With R470, everything works, and what it cannot tell is unknown.
func TestOlderLibrary(t *testing.T) {
	m, n, l := with(t, "dgx-h100", "", "")
	change, err := node.ParseHealth([]string{"fabric=unhealthy", "slowdown=thermal"})
	must(t, err)
	must(t, m.ChangeHealth("0", change))
	for _, l.older = range []bool{false, true} {
		n := nvml.New(n.MachineConfig)
		look, err := n.Discover(t.Context())
		must(t, err)
		d := look.Devices[0]
		is, p := look.Health[d.UUID], d.Product
		if got, want := fmt.Sprint(is.Fabric != "", is.Slowdown != "", p.MemoryBandwidth > 0, d.Addresses != ""),
			fmt.Sprint(!l.older, !l.older, !l.older, !l.older); got != want {
			t.Errorf("older %t: got a fabric, a slowdown, a bandwidth, an addressing mode: %s, want %s", l.older,
				got, want)
		}
		if p.Multiprocessors != 132 || p.PeakCompute == 0 || d.Topology.FabricDomain != string(d.UUID) {
			t.Errorf("older %t: got %+v", l.older, d)
		}
		must(t, n.Set(t.Context(), d.UUID, gpu.DesiredState{MIG: gpu.MIGOn}))
		at := gpu.Placement{Parent: d.UUID, Profile: "1g.10gb", Start: 0, Size: 1}
		id, err := n.CreatePartition(t.Context(), at, "")
		must(t, err)
		look, err = n.Discover(t.Context())
		must(t, err)
		if got := look.Devices[0].MIG.Instances; len(got) != 1 || got[0].UUID != id {
			t.Errorf("older %t: got partitions %v, want %s", l.older, got, id)
		}
		must(t, n.DestroyPartition(t.Context(), at, id))
		must(t, n.Set(t.Context(), d.UUID, gpu.DesiredState{MIG: gpu.MIGOff}))
		_, err = toolkitOf(n).Access(t.Context(), d)
		must(t, err)
		_, err = n.Processes(t.Context(), d)
		must(t, err)
		_, err = n.Users(t.Context(), d)
		must(t, err)
	}
}

// What only the number of cores tells is unknown.
func TestOlderLibraryWithoutMIG(t *testing.T) {
	_, n, l := with(t, "t4-x2", "", "")
	l.older = true
	look, err := n.Discover(t.Context())
	must(t, err)
	if p := look.Devices[0].Product; p.Multiprocessors != 0 || p.MemoryBandwidth != 0 || p.Name != "Tesla T4" {
		t.Errorf("got %+v", p)
	}
}

// A driver that may lack functions is refused, because a call of one that it lacks would end the program.
func TestTooOldDriver(t *testing.T) {
	for version, want := range map[string]string{
		"460.106.00": "driver 460.106.00: NVIDIA's driver is too old: R470 is the oldest that works",
		"470.42.01":  "<nil>",
		"unknown":    "<nil>",
	} {
		_, n, l := with(t, "t4-x2", "", "")
		l.version = version
		if _, err := n.Discover(t.Context()); fmt.Sprint(err) != want {
			t.Errorf("%s: got %v, want %s", version, err, want)
		}
	}
}

// kinds are the interfaces of go-nvml, by the prefix of their functions in NVML.
var kinds = map[string]reflect.Type{
	"nvml":                reflect.TypeFor[nvmllib.Interface](),
	"nvmlDevice":          reflect.TypeFor[nvmllib.Device](),
	"nvmlGpuInstance":     reflect.TypeFor[nvmllib.GpuInstance](),
	"nvmlComputeInstance": reflect.TypeFor[nvmllib.ComputeInstance](),
	"nvmlEventSet":        reflect.TypeFor[nvmllib.EventSet](),
	"nvmlVgpuInstance":    reflect.TypeFor[nvmllib.VgpuInstance](),
	"nvmlVgpuType":        reflect.TypeFor[nvmllib.VgpuTypeId](),
}

// isNewer reports whether a method of go-nvml has this name, and R470 has no function of it.
func isNewer(method string) bool {
	any := false
	for prefix, kind := range kinds {
		if _, ok := kind.MethodByName(method); ok {
			if hasR470(prefix + method) {
				return false
			}
			any = true
		}
	}
	return any && method != "Extensions" // which is none of NVML
}

// A function that R470 does not have is called where its name is asked for: session.has, and has of a recording.
// internal/archtest knows the packages that use go-nvml.
func TestNewerFunctionsAreAskedFor(t *testing.T) {
	newer := 0
	for _, dir := range []string{".", "../toolkit", "../../hwprofile/record", "../../../internal/app"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			must(t, err)
			for _, function := range file.Decls {
				used, texts := words(function)
				for _, method := range slices.DeleteFunc(used, func(m string) bool { return !isNewer(m) }) {
					newer++
					if !slices.Contains(texts, method) && !slices.Contains(texts, "nvmlDevice"+method) {
						t.Errorf("%s: a driver of R470 has no %s: ask for it before the call", name, method)
					}
				}
			}
		}
	}
	if newer == 0 {
		t.Error("got no call of a newer function")
	}
}

// words returns the methods that a part of a program uses, or fields that it does not set, and its texts.
func words(part ast.Node) (methods, texts []string) {
	selectors, fields := map[string]string{}, map[string]bool{}
	ast.Inspect(part, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			selectors[types.ExprString(n)] = n.Sel.Name
		case *ast.AssignStmt:
			for _, set := range n.Lhs {
				fields[types.ExprString(set)] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	for expression, name := range selectors {
		if !fields[expression] {
			methods = append(methods, name)
		}
	}
	return methods, texts
}
