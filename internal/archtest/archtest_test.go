// SPDX-License-Identifier: Apache-2.0

// Package archtest checks the imports of packages, their lines, and which questions one function answers.
package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"iter"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpudra/gpu-dra-driver/"

// allowed lists the packages of this module that a package may import. A package without a row is an error: decide
// where it belongs, then add a row.
var allowed = map[string][]string{
	// Shared by node and controller.
	"pkg/gpu":            {},
	"pkg/api":            {"pkg/nearest"},
	"pkg/nearest":        {},
	"internal/event":     {},
	"internal/apiserver": {},
	"internal/guard":     {},
	"internal/remote":    {},
	"internal/placement": {},
	"pkg/steps":          {},
	"pkg/inventory":      {"pkg/gpu"},
	"pkg/health":         {"pkg/gpu"},
	"pkg/nodeconfig":     {"pkg/gpu", "pkg/health"},
	"pkg/allocation":     {"pkg/api", "pkg/gpu"},
	"pkg/sharing":        {"pkg/allocation", "pkg/api", "pkg/gpu", "pkg/inventory", "pkg/sharing/mps"},

	// Only for the node.
	"pkg/gpu/driverroot":        {},
	"pkg/gpu/nvml":              {"pkg/gpu", "pkg/gpu/driverroot", "pkg/gpu/passthrough", "pkg/steps"},
	"pkg/gpu/passthrough":       {"pkg/gpu"},
	"pkg/gpu/toolkit":           {"pkg/gpu", "pkg/gpu/driverroot"},
	"pkg/cdi":                   {"pkg/gpu"},
	"pkg/sharing/mps":           {"pkg/gpu"},
	"pkg/sharing/mps/supervise": {"pkg/gpu", "pkg/gpu/driverroot", "pkg/sharing/mps", "pkg/tmpfs"},
	"pkg/tmpfs":                 {},
	"pkg/checkpoint":            {"pkg/gpu", "pkg/sharing"},
	"pkg/claims/access":         {"pkg/cdi", "pkg/gpu", "pkg/inventory", "pkg/sharing", "pkg/steps"},
	"pkg/claims/change":         {"pkg/gpu", "pkg/sharing", "pkg/sharing/mps", "pkg/steps"},
	"pkg/claims": {"pkg/allocation", "pkg/api", "pkg/cdi", "pkg/checkpoint", "pkg/claims/access",
		"pkg/claims/change", "pkg/gpu", "pkg/inventory", "pkg/sharing", "pkg/sharing/mps", "pkg/steps"},

	// The kubelet plugin. Only the root package imports all of its packages; others import report and podresources.
	"internal/plugin/podresources": {},
	"internal/plugin/dirwatch":     {},
	"internal/plugin/uevent":       {},
	"internal/plugin/report": {"internal/event", "internal/plugin/dirwatch", "pkg/checkpoint", "pkg/gpu",
		"pkg/inventory", "pkg/sharing", "pkg/sharing/mps", "pkg/steps"},
	"internal/plugin/gpuhealth": {"internal/event", "internal/plugin/report", "pkg/checkpoint", "pkg/gpu", "pkg/health",
		"pkg/inventory"},
	"internal/plugin/publish": {"internal/plugin/report", "pkg/gpu", "pkg/inventory"},
	"internal/plugin/node": {"internal/event", "internal/plugin/dirwatch", "internal/plugin/gpuhealth",
		"internal/plugin/publish", "internal/plugin/report", "pkg/checkpoint", "pkg/claims", "pkg/gpu", "pkg/health",
		"pkg/inventory", "pkg/nodeconfig", "pkg/sharing"},
	"internal/plugin/kubelet": {"internal/guard", "internal/plugin/report", "pkg/checkpoint", "pkg/claims",
		"pkg/health", "pkg/inventory", "pkg/sharing", "pkg/steps"},
	"internal/plugin/containers": {"pkg/sharing"},
	"internal/plugin/usage": {"internal/plugin/containers", "internal/plugin/podresources", "internal/plugin/report",
		"pkg/checkpoint", "pkg/gpu", "pkg/inventory", "pkg/sharing"},
	"internal/plugin/idle":    {"internal/plugin/report", "internal/plugin/usage", "pkg/sharing"},
	"internal/plugin/cleanup": {"internal/plugin/podresources", "pkg/checkpoint", "pkg/inventory", "pkg/sharing"},
	"internal/plugin": {"internal/plugin/cleanup", "internal/plugin/containers", "internal/plugin/idle",
		"internal/plugin/kubelet", "internal/plugin/node", "internal/plugin/podresources",
		"internal/plugin/publish", "internal/plugin/report", "internal/plugin/uevent", "internal/plugin/usage",
		"pkg/checkpoint", "pkg/claims", "pkg/gpu", "pkg/health", "pkg/sharing/mps", "pkg/steps"},

	// The commands of the plugin's program: run, check, record.
	"pkg/hwprofile":        {"pkg/gpu"},
	"pkg/hwprofile/record": {"pkg/gpu", "pkg/gpu/nvml", "pkg/gpu/passthrough", "pkg/hwprofile"},
	"internal/check/host":  {},
	"internal/check": {"internal/check/host", "pkg/cdi", "pkg/gpu", "pkg/gpu/nvml", "pkg/gpu/passthrough",
		"pkg/gpu/toolkit", "pkg/health", "pkg/hwprofile", "pkg/hwprofile/record", "pkg/inventory", "pkg/sharing/mps"},
	"internal/app": {"internal/apiserver", "internal/check", "internal/check/host", "internal/plugin",
		"internal/plugin/kubelet", "pkg/cdi", "pkg/checkpoint", "pkg/claims", "pkg/gpu", "pkg/gpu/driverroot",
		"pkg/gpu/nvml", "pkg/gpu/toolkit", "pkg/health", "pkg/hwprofile/record", "pkg/sharing/mps", "pkg/steps",
		"pkg/tmpfs"},
	"cmd/dra-kubelet-plugin": {"internal/app"},
	"cmd/cdi-hooks":          {},
	"cmd/mps-supervisor":     {"pkg/sharing/mps", "pkg/sharing/mps/supervise"},

	// GPUs over the network: what is before the server of an engine, and the kubelet plugin of the clients' nodes.
	"internal/remote/serve": {"internal/remote"},
	"internal/remote/node":  {"internal/remote", "pkg/cdi", "pkg/gpu"},
	"cmd/gpu-remote": {"internal/apiserver", "internal/remote", "internal/remote/node",
		"internal/remote/serve"},

	// Of the controller and the plugin of kubectl. Templates of profiles are made with the node's own functions.
	"internal/nodetemplate": {"internal/cluster/offer", "pkg/gpu", "pkg/hwprofile", "pkg/inventory", "pkg/nodeconfig"},
	// What differs between versions of Kubernetes' allocator.
	"internal/allocator": {},
	// The model of the cluster, for the controller and for the plugin of kubectl. Only evict, read and waiting have a
	// client.
	"internal/cluster":           {"internal/allocator", "internal/remote", "pkg/gpu"},
	"internal/cluster/read":      {"internal/cluster"},
	"internal/cluster/selectors": {"internal/allocator", "pkg/inventory", "pkg/nearest"},
	"internal/cluster/evict":     {},
	"internal/cluster/waiting":   {"internal/cluster"},
	"internal/cluster/fit":       {"internal/cluster", "pkg/allocation", "pkg/gpu", "pkg/inventory", "pkg/sharing"},
	// It asks the node's own plan what a node would refuse. What is built on it is answers, advice and moves.
	"internal/cluster/offer": {"internal/cluster", "pkg/gpu", "pkg/inventory"},
	"internal/cluster/schedule": {"internal/allocator", "internal/cluster", "internal/cluster/fit",
		"internal/cluster/offer", "internal/cluster/read",
		"internal/cluster/selectors", "internal/remote", "pkg/nearest", "pkg/sharing"},
	"internal/cluster/advice": {"internal/allocator", "internal/cluster", "internal/cluster/fit",
		"internal/cluster/schedule", "internal/cluster/selectors", "pkg/nearest"},
	"internal/cluster/moves": {"internal/allocator", "internal/cluster", "internal/cluster/schedule",
		"internal/cluster/selectors", "internal/cluster/waiting", "pkg/gpu"},

	// The controller.
	"internal/controller/certificate": {},
	"internal/controller/bill":        {"internal/cluster", "internal/controller/feature", "pkg/gpu", "pkg/inventory"},
	"internal/controller/caller":      {"internal/controller/certificate", "internal/controller/metrics"},
	"internal/controller/metrics":     {"internal/cluster", "internal/guard"},
	"internal/controller/strongest":   {"internal/controller/feature", "internal/cluster", "pkg/gpu"},
	// What the features share.
	"internal/controller/feature": {"internal/controller/metrics", "internal/cluster", "internal/cluster/fit",
		"internal/cluster/waiting", "internal/event",
		"internal/guard"},
	// Admission runs the node's validation with simulated devices.
	// It explains a claim as the answers about waiting pods do.
	"internal/controller/admission": {"internal/controller/feature", "internal/controller/strongest",
		"internal/cluster", "internal/cluster/fit", "internal/cluster/selectors", "internal/remote",
		"pkg/allocation", "pkg/api",
		"pkg/gpu",
		"pkg/inventory", "pkg/nearest", "pkg/sharing"},
	"internal/controller/explain": {"internal/cluster", "internal/cluster/waiting", "internal/cluster/read",
		"internal/cluster/schedule",
		"internal/controller/admission",
		"internal/controller/feature", "internal/controller/metrics", "internal/controller/strongest",
		"internal/event", "internal/guard", "internal/why", "pkg/gpu"},
	"internal/controller/eviction": {"internal/controller/feature", "internal/controller/metrics", "internal/event",
		"internal/cluster", "internal/cluster/evict"},
	"internal/controller/extender": {"internal/controller/feature", "internal/cluster", "internal/cluster/fit",
		"internal/event", "internal/guard", "internal/placement"},
	"internal/controller/idle": {"internal/cluster", "internal/cluster/evict", "internal/controller/feature",
		"internal/controller/metrics",
		"internal/event"},
	"internal/controller/network": {"internal/cluster", "internal/controller/feature", "internal/controller/metrics",
		"internal/event", "internal/remote", "pkg/gpu", "pkg/inventory"},
	"internal/controller/preempt": {"internal/cluster", "internal/cluster/waiting", "internal/cluster/evict",
		"internal/cluster/read",
		"internal/controller/feature",
		"internal/controller/metrics", "internal/event", "internal/cluster/moves", "internal/cluster/schedule"},
	"internal/controller/quota": {"internal/cluster", "internal/controller/feature", "internal/controller/metrics"},
	"internal/controller/retry": {"internal/cluster", "internal/cluster/waiting", "internal/cluster/fit",
		"internal/controller/feature",
		"internal/controller/metrics"},
	"internal/controller/ondemand": {"internal/cluster", "internal/cluster/fit", "internal/cluster/waiting",
		"internal/controller/feature", "pkg/gpu", "pkg/inventory"},
	"internal/controller": {"internal/controller/admission", "internal/controller/bill", "internal/controller/caller",
		"internal/controller/certificate",
		"internal/controller/eviction", "internal/controller/explain", "internal/controller/extender",
		"internal/controller/feature", "internal/controller/idle", "internal/controller/metrics",
		"internal/controller/network", "internal/controller/ondemand",
		"internal/controller/preempt", "internal/controller/quota", "internal/controller/retry",
		"internal/controller/strongest", "internal/cluster", "internal/cluster/waiting"},
	"cmd/dra-controller": {"convert", "internal/apiserver", "internal/controller", "internal/controller/feature",
		"internal/controller/extender", "internal/controller/idle", "internal/controller/preempt",
		"internal/nodetemplate", "pkg/gpu", "pkg/nodeconfig"},

	// The conversion, a feature of the controller that stands beside the driver: see TestConversionCanBeRemoved.
	"convert": {"internal/apiserver", "internal/controller/feature", "internal/cluster", "internal/event",
		"pkg/api", "pkg/gpu", "pkg/sharing"},

	// The plugin of kubectl. It has no part in the driver's work and reads with the rights of the user.
	"internal/why": {"internal/cluster", "internal/cluster/advice", "internal/cluster/fit", "internal/cluster/schedule",
		"internal/cluster/selectors", "internal/remote", "pkg/gpu", "pkg/nearest", "pkg/sharing"},
	"kubectl-gpu/commands": {"internal/allocator", "internal/cluster", "internal/cluster/evict",
		"internal/cluster/moves", "internal/cluster/offer", "internal/cluster/read", "internal/cluster/schedule",
		"internal/guard", "internal/nodetemplate", "internal/placement", "internal/remote",
		"internal/why", "pkg/api", "pkg/gpu", "pkg/health", "pkg/inventory", "pkg/nearest",
		"pkg/nodeconfig"},
	"kubectl-gpu": {"kubectl-gpu/commands"},

	// The simulator. The driver's programs do not import it; clustertest and simtest are for tests.
	"simulator":             {"pkg/gpu", "pkg/hwprofile", "pkg/steps", "simulator/node"},
	"simulator/node":        {"pkg/hwprofile"},
	"simulator/smi":         {"pkg/hwprofile", "simulator/node"},
	"simulator/simctl":      {"pkg/hwprofile", "simulator", "simulator/node"},
	"simulator/clustertest": {"internal/cluster", "pkg/gpu", "pkg/inventory", "simulator/simtest"},
	"simulator/fleettest": {"internal/allocator", "internal/cluster", "internal/cluster/read",
		"internal/cluster/selectors", "pkg/gpu", "simulator/clustertest"},
	"simulator/simtest": {"pkg/gpu", "pkg/gpu/nvml", "simulator", "test/tmpfs"},
	"simulator/mps":     {"simulator/node"},
	"simulator/cuda":    {"simulator/mps", "simulator/node"},
	// The simulator behind NVML's C interface, for programs of others.
	"simulator/libnvml":         {"simulator", "simulator/libnvml/binding", "simulator/smi"},
	"simulator/libnvml/binding": {},
	"simulator/libnvml/build":   {},
	"simulator/cmd/dra-kubelet-plugin-sim": {"internal/app", "pkg/gpu/driverroot", "pkg/gpu/nvml", "pkg/hwprofile",
		"pkg/steps", "simulator", "simulator/simctl"},
	"simulator/cmd/sim-nvidia-smi":              {"simulator/smi"},
	"simulator/cmd/sim-nvidia-cuda-mps-control": {"simulator/mps"},
	// It allocates memory as a CUDA program on a simulated GPU.
	"simulator/cmd/gpu-demo": {"simulator/cuda", "simulator/mps", "simulator/smi"},
}

// tools are directories of the project's own programs, which the driver must not import.
var tools = []string{"deployments/", "test/", "hack/", "demo/", "docs/"}

// beside are the products beside the driver, with the packages of the driver that may import them. To remove one is to
// remove its folder, and its lines there.
var beside = map[string][]string{"kubectl-gpu": {}}

// onlyIn are modules that only a few packages may import: all others use our types.
var onlyIn = map[string][]string{
	"github.com/NVIDIA/": {"pkg/gpu/nvml", "pkg/gpu/toolkit", "pkg/hwprofile/record", "internal/app", "simulator",
		"simulator/cmd/dra-kubelet-plugin-sim", "simulator/libnvml", "simulator/libnvml/binding", "cmd/cdi-hooks"},
	"tags.cncf.io/": {"pkg/cdi", "pkg/gpu/toolkit", "internal/check"},
	"k8s.io/client-go/": {"internal/apiserver", "internal/app", "internal/plugin", "internal/plugin/cleanup",
		"internal/plugin/containers",
		"internal/plugin/kubelet", "internal/plugin/node", "internal/plugin/publish", "internal/plugin/report",
		"internal/plugin/usage", "internal/controller", "internal/controller/certificate",
		"internal/controller/eviction", "internal/controller/explain", "internal/controller/extender",
		"internal/controller/feature", "internal/controller/network", "internal/controller/ondemand",
		"internal/controller/preempt",
		"internal/controller/quota", "internal/controller/retry",
		"internal/cluster/evict", "internal/cluster/read", "internal/cluster/waiting", "internal/controller/idle",
		"internal/remote/node",
		"convert", "cmd/gpu-remote",
		"cmd/dra-controller", "kubectl-gpu", "kubectl-gpu/commands",
		"simulator/cmd/dra-kubelet-plugin-sim"},
	"k8s.io/kubelet/": {"internal/plugin/kubelet", "internal/plugin/podresources", "internal/plugin/report",
		"internal/plugin/usage",
		"simulator/cmd/gpu-demo"}, // the demo simulates the DRA driver of a NIC
	// One package asks Kubernetes' allocator.
	"k8s.io/dynamic-resource-allocation/structured": {"internal/allocator"},
	"k8s.io/kubernetes/":                            {},
	"github.com/opencontainers":                     {},
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
				if !slices.Contains(row, own) {
					t.Errorf("%s imports %s; it may import %v", name, own, row)
				}
				if folder, _, _ := strings.Cut(own, "/"); !strings.HasPrefix(name+"/", folder+"/") &&
					beside[folder] != nil && !slices.Contains(beside[folder], name) {
					t.Errorf("%s imports %s, which stands beside the driver", name, own)
				}
				continue
			}
			for prefix, users := range onlyIn {
				if strings.HasPrefix(imported, prefix) && !slices.Contains(users, name) {
					t.Errorf("%s imports %s; only %v may", name, imported, users)
				}
			}
			if standard := !strings.Contains(strings.Split(imported, "/")[0], "."); name == "pkg/gpu" && !standard {
				t.Errorf("%s imports %s; it may import the standard library only", name, imported)
			}
		}
		for _, own := range row {
			if !slices.Contains(p.Imports, module+own) {
				t.Errorf("%s has a row for %s and does not import it: remove that", name, own)
			}
		}
	}
}

// TestNoSimulatorInProduction: programs for real GPUs link nothing of the simulator.
func TestNoSimulatorInProduction(t *testing.T) {
	const simulation = module + "simulator"
	for _, program := range []string{"cmd/dra-kubelet-plugin", "cmd/dra-controller", "cmd/mps-supervisor",
		"kubectl-gpu"} {
		var found []string
		for _, p := range strings.Fields(goList(t, "-deps", module+program)) {
			if isIn(p, simulation) {
				found = append(found, p)
			}
		}
		if len(found) > 0 {
			t.Errorf("%s contains %v", program, found)
		}
	}
	deps := strings.Fields(goList(t, "-deps", simulation+"/cmd/dra-kubelet-plugin-sim"))
	if !slices.Contains(deps, simulation) {
		t.Errorf("dra-kubelet-plugin-sim does not contain %s: is this test looking for the right name?", simulation)
	}
}

// TestNoAPIClientBelowPkg: what touches GPUs links no client of the API server, not even by others.
func TestNoAPIClientBelowPkg(t *testing.T) {
	const client = "k8s.io/client-go"
	for _, p := range strings.Fields(goList(t, "-deps", module+"pkg/...")) {
		if isIn(p, client) {
			t.Errorf("a package below pkg links %s: go mod why %s", p, p)
		}
	}
	if !slices.ContainsFunc(strings.Fields(goList(t, "-deps", module+"internal/plugin")), func(p string) bool {
		return isIn(p, client)
	}) {
		t.Errorf("internal/plugin does not link %s: is this test looking for the right name?", client)
	}
}

// TestConversionCanBeRemoved: without the folder convert and its line in cmd/dra-controller, all programs build. Tests
// may import it.
func TestConversionCanBeRemoved(t *testing.T) {
	const conversion, program = module + "convert", module + "cmd/dra-controller"
	registered := false
	for _, p := range list(t) {
		imports := slices.ContainsFunc(p.Imports, func(name string) bool { return isIn(name, conversion) })
		switch {
		case p.ImportPath == program:
			registered = imports
		case imports && !isIn(p.ImportPath, conversion):
			t.Errorf("%s imports %s; only %s may", p.ImportPath, conversion, program)
		}
	}
	if !registered {
		t.Errorf("%s does not import %s: is this test looking for the right name?", program, conversion)
	}
}

// TestConformanceKnowsNoDriver: the conformance suite and its tests import nothing else of this module, and of others
// only what is of Kubernetes or of gRPC.
func TestConformanceKnowsNoDriver(t *testing.T) {
	const suite = module + "test/conformance"
	found := false
	for line := range strings.Lines(goList(t, "-test", "-f", "{{.ImportPath}}:{{join .Imports \",\"}}", suite+"/...")) {
		name, imports, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.HasSuffix(name, ".test") { // what go generates
			continue
		}
		for imported := range strings.SplitSeq(imports, ",") {
			imported, _, _ = strings.Cut(imported, " ") // which test it is for
			found = found || strings.HasPrefix(imported, "k8s.io/")
			standard := !strings.Contains(strings.Split(imported, "/")[0], ".")
			if !standard && !isIn(imported, suite) && !strings.HasPrefix(imported, "k8s.io/") &&
				!strings.HasPrefix(imported, "sigs.k8s.io/") && !strings.HasPrefix(imported, "google.golang.org/grpc") {
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
	if !found {
		t.Errorf("%s imports nothing of Kubernetes: is this test looking for the right name?", suite)
	}
}

// TestOnePlace: what one function of the product does, no other does, so that what it knows is known once.
func TestOnePlace(t *testing.T) {
	for _, row := range []struct {
		what, at string
		is       func(ast.Node) bool
	}{
		{"ranges over the alternatives of a request", "internal/cluster/requests.go Requests", func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			return ok && isNamed(loop.X, "FirstAvailable")
		}},
		{"makes an eviction", "internal/cluster/evict/evict.go Pod", func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			return ok && isNamed(literal.Type, "Eviction")
		}},
	} {
		var found []string
		for name, file := range sources(t) {
			found = append(found, functions(t, name, file, row.is)...)
		}
		if !slices.Equal(found, []string{row.at}) {
			t.Errorf("%s: got %v, want %s alone: use that", row.what, found, row.at)
		}
	}
}

// TestEvents: the events that a feature writes are in its events.go.
func TestEvents(t *testing.T) {
	kinds := 0
	for name, file := range sources(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(text), "event.Normal(") + strings.Count(string(text), "event.Warning(")
		if kinds += n; n > 0 && filepath.Base(file) != "events.go" {
			t.Errorf("%s of %s has %d kinds of events; events.go is their place", filepath.Base(file), name, n)
		}
	}
	if kinds < 40 {
		t.Errorf("found %d kinds of events: does this test look for the right functions?", kinds)
	}
}

// sources iterates over the files of the packages of the driver that are not tests, with the package.
func sources(t *testing.T) iter.Seq2[string, string] {
	return func(yield func(name, file string) bool) {
		t.Helper()
		for _, p := range list(t) {
			name := strings.TrimPrefix(p.ImportPath, module)
			files, err := filepath.Glob(filepath.Join("..", "..", name, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				if !isTool(name) && !strings.HasSuffix(file, "_test.go") && !yield(name, file) {
					return
				}
			}
		}
	}
}

// isNamed reports whether the expression is a selector of that name.
func isNamed(x ast.Expr, name string) bool {
	of, ok := x.(*ast.SelectorExpr)
	return ok && of.Sel.Name == name
}

// functions returns the functions of the file in which such a node is.
func functions(t *testing.T, name, file string, is func(ast.Node) bool) (all []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		ast.Inspect(d, func(n ast.Node) bool {
			if function, ok := d.(*ast.FuncDecl); ok && is(n) {
				all = append(all, fmt.Sprintf("%s %s", path.Join(name, filepath.Base(file)), function.Name.Name))
			}
			return true
		})
	}
	return all
}

// isIn reports whether the package is in the folder.
func isIn(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

func isTool(name string) bool {
	return slices.ContainsFunc(tools, func(folder string) bool { return strings.HasPrefix(name+"/", folder) })
}

// list returns every package of the module with its imports, without those of tests.
func list(t *testing.T) []goPackage {
	t.Helper()
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(goList(t, "-json=ImportPath,Imports",
		path.Join(module, "...")))); ; {
		var p goPackage
		if err := decoder.Decode(&p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func goList(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}
