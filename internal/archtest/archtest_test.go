// SPDX-License-Identifier: Apache-2.0

// Package archtest keeps the imports of the driver going one way.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpudra/gpu-dra-driver/"

// allowed are the packages of ours that a package may import; "/..." stands for all below a folder. A package without a row is an
// error: think about where it belongs, then add it.
var allowed = map[string][]string{
	"pkg/gpu":                   {},
	"pkg/api":                   {},
	"pkg/gpu/nvml":              {"pkg/gpu"},
	"pkg/gpu/sim":               {"pkg/gpu", "pkg/gpu/sim/node"},
	"pkg/gpu/sim/node":          {"pkg/gpu"},
	"pkg/gpu/sim/record":        {"pkg/gpu", "pkg/gpu/nvml", "pkg/gpu/sim/node"},
	"pkg/gpu/sim/smi":           {"pkg/gpu", "pkg/gpu/sim/node"},
	"pkg/gpu/sim/simctl":        {"pkg/gpu", "pkg/gpu/sim", "pkg/gpu/sim/node"},
	"pkg/gpu/sim/mps":           {"pkg/gpu/sim/node"},
	"pkg/gpu/sim/cuda":          {"pkg/gpu/sim/mps", "pkg/gpu/sim/node"},
	"pkg/cdi":                   {"pkg/gpu"},
	"pkg/inventory":             {"pkg/gpu"},
	"pkg/nodeconfig":            {"pkg/gpu"},
	"pkg/allocation":            {"pkg/api"},
	"pkg/sharing":               {"pkg/gpu", "pkg/api", "pkg/allocation", "pkg/inventory", "pkg/sharing/mps"},
	"pkg/sharing/mps":           {"pkg/gpu"},
	"pkg/checkpoint":            {"pkg/gpu", "pkg/sharing"},
	"pkg/claims":                {"pkg/allocation", "pkg/inventory", "pkg/sharing", "pkg/sharing/mps", "pkg/checkpoint", "pkg/cdi", "pkg/gpu"},
	"pkg/sharing/mps/supervise": {"pkg/gpu", "pkg/sharing/mps"},
	// Beside claims and inventory, what their interfaces speak of: the metrics wrap them.
	"internal/plugin":                 {"pkg/claims", "pkg/inventory", "pkg/checkpoint", "pkg/sharing", "pkg/sharing/mps", "pkg/nodeconfig", "pkg/cdi", "pkg/gpu"},
	"internal/doctor/host":            {},
	"internal/doctor":                 {"internal/doctor/host", "pkg/cdi", "pkg/inventory", "pkg/gpu", "pkg/gpu/nvml", "pkg/gpu/sim/node", "pkg/gpu/sim/record"},
	"internal/controller/certificate": {},
	"internal/controller/view":        {"pkg/gpu"},
	"internal/controller/viewtest":    {"internal/controller/view", "pkg/inventory", "pkg/gpu", "pkg/gpu/nvml", "pkg/gpu/sim"},
	"internal/controller/metrics":     {"internal/controller/view"},
	"internal/controller/strongest":   {"internal/controller/view", "pkg/gpu"},
	"internal/controller/sweep":       {},
	// It lets the node's own code decide about claims, on devices that it makes up.
	"internal/controller/admission":   {"internal/controller/view", "pkg/api", "pkg/allocation", "pkg/inventory", "pkg/sharing", "pkg/gpu"},
	"internal/controller":             {"internal/controller/..."},
	"cmd/dra-controller":              {"internal/controller"},
	"cmd/dra-kubelet-plugin":          {"internal/...", "pkg/..."},
	"cmd/mps-supervisor":              {"pkg/sharing/mps", "pkg/sharing/mps/supervise"},
	"cmd/sim-nvidia-smi":              {"pkg/gpu/sim/smi"},
	"cmd/sim-nvidia-cuda-mps-control": {"pkg/gpu/sim/mps"},
	// Its allocation is that of a CUDA program, where the GPUs are simulated.
	"cmd/gpu-demo": {"pkg/gpu/sim/cuda", "pkg/gpu/sim/mps", "pkg/gpu/sim/smi"},
}

// tools are the folders of programs that belong to the project and not to the driver: nothing of the driver may import them.
var tools = []string{"deployments/", "test/", "hack/", "demo/", "docs/"}

// onlyIn are modules that stay behind a seam: everything else sees our types.
var onlyIn = map[string][]string{
	"github.com/NVIDIA/":        {"pkg/gpu/nvml", "pkg/gpu/sim", "pkg/gpu/sim/record", "cmd/dra-kubelet-plugin"},
	"tags.cncf.io/":             {"pkg/cdi", "pkg/gpu/nvml", "internal/doctor"},
	"k8s.io/client-go/":         {"internal/plugin", "cmd/dra-kubelet-plugin", "internal/controller", "internal/controller/certificate", "cmd/dra-controller"},
	"k8s.io/kubelet/":           {"internal/plugin", "cmd/gpu-demo"}, // the demo plays the driver of a NIC
	"k8s.io/kubernetes/":        {},
	"github.com/opencontainers": {},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestImports(t *testing.T) {
	packages := list(t)
	if len(packages) < len(allowed) {
		t.Fatalf("found %d packages, fewer than the %d that have a row", len(packages), len(allowed))
	}
	for _, p := range packages {
		name := strings.TrimPrefix(p.ImportPath, module)
		if isTool(name) || name == "internal/archtest" {
			continue
		}
		row, ok := allowed[name]
		if !ok {
			t.Errorf("%s has no row in archtest", name)
		}
		for _, imported := range p.Imports {
			if own, ok := strings.CutPrefix(imported, module); ok {
				if !matches(own, row) {
					t.Errorf("%s imports %s; it may import %v", name, own, row)
				}
				continue
			}
			for prefix, users := range onlyIn {
				if strings.HasPrefix(imported, prefix) && !slices.Contains(users, name) {
					t.Errorf("%s imports %s, which is for %v alone", name, imported, users)
				}
			}
			if standard := !strings.Contains(strings.Split(imported, "/")[0], "."); name == "pkg/gpu" && !standard {
				t.Errorf("%s imports %s; it may import the standard library only", name, imported)
			}
		}
	}
}

func isTool(name string) bool {
	return slices.ContainsFunc(tools, func(folder string) bool { return strings.HasPrefix(name+"/", folder) })
}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if folder, ok := strings.CutSuffix(pattern, "/..."); ok {
			return strings.HasPrefix(name, folder+"/")
		}
		return name == pattern
	})
}

// list is every package of the module, with what its files other than tests import.
func list(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", path.Join(module, "..."))
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
