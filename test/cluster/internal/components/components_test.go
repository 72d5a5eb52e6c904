// SPDX-License-Identifier: Apache-2.0

package components

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var sample = Component{
	Name: "thing", Module: "example.com/thing/v2", Packages: []string{"example.com/thing/v2/cmd/thing"},
	Binaries: []string{"thing"}, LDFlags: "-X v={version} -X m={minor}",
}

const sampleMod = "module x\n\nrequire (\n\texample.com/other v9.9.9\n\texample.com/thing/v2 v2.37.1 // indirect\n)\n"

func TestKey(t *testing.T) {
	base := Inputs{GoVersion: "go1.26.0", Platform: "linux/amd64", GoMod: sampleMod, GoSum: "sum"}
	key := func(c Component, in Inputs) string {
		t.Helper()
		k, err := c.Key(in)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(sample, base)
	if want := "thing-v2.37.1-"; !strings.HasPrefix(first, want) {
		t.Errorf("got %s, want it to begin with %s", first, want)
	}
	for _, row := range []struct {
		name   string
		change func(*Component, *Inputs)
		same   bool
	}{
		{"nothing changes", func(*Component, *Inputs) {}, true},
		{"another Go", func(_ *Component, in *Inputs) { in.GoVersion = "go1.26.1" }, false},
		{"another platform", func(_ *Component, in *Inputs) { in.Platform = "linux/arm64" }, false},
		{"another version", func(_ *Component, in *Inputs) {
			in.GoMod = strings.Replace(in.GoMod, "2.37.1", "2.37.2", 1)
		}, false},
		{"another dependency", func(_ *Component, in *Inputs) { in.GoSum = "other" }, false},
		{"other linker flags", func(c *Component, _ *Inputs) { c.LDFlags = "" }, false},
		{"other tags", func(c *Component, _ *Inputs) { c.Tags = "seccomp" }, false},
		{"cgo", func(c *Component, _ *Inputs) { c.Cgo = true }, false},
		{"another program", func(c *Component, _ *Inputs) { c.Packages = []string{"example.com/thing/v2/cmd/x"} },
			false},
		{"what it needs of Debian", func(c *Component, _ *Inputs) { c.Debian = []Package{compiler} }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, in := sample, base
			row.change(&c, &in)
			if got := key(c, in) == first; got != row.same {
				t.Errorf("got same=%v, want %v", got, row.same)
			}
		})
	}
}

func TestVersionIn(t *testing.T) {
	for _, row := range []struct{ name, mod, want string }{
		{"in a block", sampleMod, "v2.37.1"},
		{"on a line of its own", "require example.com/thing/v2 v2.0.0\n", "v2.0.0"},
		{"not there", "require example.com/thing v1.0.0\n", "find version of thing: go.mod does not require " +
			"example.com/thing/v2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := sample.versionIn(row.mod)
			if err != nil {
				got = err.Error()
			}
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestLinkerFlags(t *testing.T) {
	c := sample
	c.LDFlags += " -X o={example.com/other}"
	if got, err := c.linkerFlags(sampleMod); err != nil || got != "-s -w -X v=v2.37.1 -X m=37 -X o=v9.9.9" {
		t.Errorf("got %s, %v", got, err)
	}
	c.LDFlags = "-X a={example.com/absent}"
	if got, err := c.linkerFlags(sampleMod); err == nil {
		t.Errorf("got %s, want an error", got)
	}
}

func TestProgramOf(t *testing.T) {
	for pkg, want := range map[string]string{"helm.sh/helm/v4/cmd/helm": "helm", "go.etcd.io/etcd/server/v3": "server",
		"example.com/vet": "vet"} {
		if got := programOf(pkg); got != want {
			t.Errorf("%s: got %s, want %s", pkg, got, want)
		}
	}
}

// The programs of the newest Kubernetes and of the driver are compiled from the same packages: versions that differ
// make the first start take minutes more.
func TestVersionsAreTheDriver(t *testing.T) {
	source, err := findSource()
	if err != nil {
		t.Fatal(err)
	}
	ours, driver := requirements(t, filepath.Join(source, programs)), requirements(t, filepath.Join(source, "../../.."))
	if len(ours) < 100 || len(driver) < 50 {
		t.Fatalf("read %d and %d modules, want all", len(ours), len(driver))
	}
	for module, version := range driver {
		if has, ok := ours[module]; ok && has != version {
			t.Errorf("%s: the driver has %s, test/cluster/components/programs has %s: give both the newer one", module,
				version, has)
		}
	}
}

// requirements returns the versions in a go.mod.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) >= 2 && strings.HasPrefix(line, "\t") && strings.HasPrefix(fields[1], "v") {
			found[fields[0]] = fields[1]
		}
	}
	return found
}

// TestPinnedModules reads the real go.mod files.
func TestPinnedModules(t *testing.T) {
	source, err := findSource()
	if err != nil {
		t.Fatal(err)
	}
	older, err := Cache{Source: source}.pinned()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(All(), older[1:]...) {
		mod, err := os.ReadFile(filepath.Join(source, c.folder(), "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.versionIn(string(mod)); err != nil {
			t.Error(err)
		}
		for _, p := range c.Packages {
			if !strings.Contains(string(mod), p+"\n") {
				t.Errorf("%s: go.mod has no tool %s", c.Name, p)
			}
		}
		if len(c.Packages) != len(c.Binaries) {
			t.Errorf("%s: %d packages for %d programs", c.Name, len(c.Packages), len(c.Binaries))
		}
	}
}

func TestKubernetesVersions(t *testing.T) {
	source := t.TempDir()
	for folder, version := range map[string]string{"programs": "v1.37.1", "kubernetes-v1.36": "v1.36.10",
		"kubernetes-v1.36.0": "v1.36.0", "kubernetes-v1.34": "v1.34.4"} {
		if err := os.Mkdir(filepath.Join(source, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		mod := "require k8s.io/kubernetes " + version + "\n"
		if err := os.WriteFile(filepath.Join(source, folder, "go.mod"), []byte(mod), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cache := Cache{Source: source}
	const refused = `: want one of v1.37.1, v1.36.10, v1.36.0, v1.34.4, or its minor version`
	for _, row := range []struct{ version, want string }{
		{"", "programs with kubectl"}, {"v1.37", "programs with kubectl"}, {"v1.37.1", "programs with kubectl"},
		{"v1.34", "kubernetes-v1.34"}, {"v1.34.4", "kubernetes-v1.34"}, {"v1.36.10", "kubernetes-v1.36"},
		{"v1.36", "kubernetes-v1.36"}, {"v1.36.0", "kubernetes-v1.36.0"},
		{"v1.34.5", `kubernetes "v1.34.5"` + refused}, {"v1.3", `kubernetes "v1.3"` + refused},
		{"v1", `kubernetes "v1"` + refused}, {"1.34", `kubernetes "1.34"` + refused},
	} {
		t.Run(row.version, func(t *testing.T) {
			component, err := cache.Kubernetes(row.version)
			got := component.folder()
			if slices.Contains(component.Binaries, "kubectl") {
				got += " with kubectl"
			}
			if err != nil {
				got = err.Error()
			}
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestBuildThatFailsLeavesNothing(t *testing.T) {
	cache := Cache{Root: t.TempDir(), Out: io.Discard}
	broken := errors.New("broken")
	_, err := cache.fill(t.Context(), "key", "thing", func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if got := list(t, cache.Root); got != ".lock" {
		t.Errorf("got %s, want .lock", got)
	}
}

func TestBuildClearsWhatAKilledOneLeft(t *testing.T) {
	cache := Cache{Root: t.TempDir(), Out: io.Discard}
	if err := os.MkdirAll(filepath.Join(cache.Root, unfinished+"1", "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.fill(t.Context(), "key", "thing", func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := list(t, cache.Root); got != ".lock key" {
		t.Errorf("got %s, want .lock key", got)
	}
}

func TestBuildsAtOnceBuildOnce(t *testing.T) {
	cache := Cache{Root: t.TempDir(), Out: io.Discard}
	var builds atomic.Int32
	var wait sync.WaitGroup
	for range 5 {
		wait.Go(func() {
			if _, err := cache.fill(t.Context(), "key", "thing", func(string) error {
				builds.Add(1)
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if got := builds.Load(); got != 1 {
		t.Errorf("got %d builds, want 1", got)
	}
}

func TestEnsure(t *testing.T) {
	there := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(there, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("installed packages need nothing", func(t *testing.T) {
		var out strings.Builder
		if err := Ensure(t.Context(), &out, []Package{{"x", []string{"/missing/*", there}}}); err != nil ||
			out.Len() > 0 {
			t.Errorf("got %v, %q", err, out.String())
		}
	})
	t.Run("without apt-get the missing ones are named", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		err := Ensure(t.Context(), io.Discard, []Package{{"a", []string{"/missing/a"}}, {"b", nil},
			{"c", []string{there}}})
		const want = "missing packages: please install a b (names as in Debian), then run this again"
		if !errors.Is(err, ErrMissingPackages) || fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestBuildOutput(t *testing.T) {
	var packages []string
	out := &buildOutput{compiled: func(pkg string) { packages = append(packages, pkg) }}
	for _, piece := range []string{"k8s.io/api/core/v1\nk8s.io/", "apimachinery\n", "# k8s.io/x\n",
		"x.go:1: undefined: y\n", "fatal: no "} {
		_, _ = out.Write([]byte(piece))
	}
	const want = "# k8s.io/x\nx.go:1: undefined: y\nfatal: no"
	if got := out.messages(); got != want || len(packages) != 2 {
		t.Errorf("got %q and %q, want 2 packages and %q", packages, got, want)
	}
}

// One line is about all components together.
func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{sizes: map[string]int64{"a": 600, "b": 300, "c": 100}, all: 1000, of: 3, started: time.Now()}
		expect := func(want string) {
			t.Helper()
			if got := w.String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		expect("0 % of all: 0 of 3 packages compiled in 0s")
		time.Sleep(6 * time.Minute)
		w.compiled("a")
		w.compiled("a")               // by the build of another component
		w.compiled("not/in/the/list") // as of a test
		expect("60 % of all: 1 of 3 packages compiled in 6m0s")
		w.compiled("b")
		expect("90 % of all: 2 of 3 packages compiled in 6m0s")
		w.compiled("c")
		expect("100 % of all: 3 of 3 packages compiled in 6m0s, linking")
	})
}

// Packages that Go has in its own cache are no work.
func TestWorkOfAModule(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/thing\n\ngo 1.26\n",
		"main.go": "package main\n\nimport \"example.com/thing/a\"\n\nfunc main() { a.A() }\n",
		"a/a.go":  "package a\n\nfunc A() {}\n"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	thing := Component{Name: "thing", Packages: []string{"example.com/thing"}}
	w := &work{}
	if err := w.add(t.Context(), dir, thing); err != nil {
		t.Fatal(err)
	}
	if w.of < 2 || w.all < linked {
		t.Errorf("got %d packages, %d bytes, want a, the program, and its linking", w.of, w.all)
	}
	thing.Packages = []string{"example.com/absent"}
	if err := w.add(t.Context(), dir, thing); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("got %v, want that there is no package", err)
	}
}
