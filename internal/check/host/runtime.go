// SPDX-License-Identifier: Apache-2.0

package host

import (
	"debug/buildinfo"
	"fmt"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	toml "github.com/pelletier/go-toml"
)

// Runtime is the container runtime of a node.
type Runtime struct {
	Name     string   `json:"name"`    // "containerd" or "cri-o"; "" when none was found
	Version  string   `json:"version"` // as far as known: "1.7.24", "2"
	Config   []string `json:"config"`  // its configuration files on the host
	CDI      string   `json:"cdi"`     // "on", "off", "unsupported" or "unknown"
	SpecDirs []string `json:"specDirs"`
}

// defaultSpecDirs are the default CDI spec directories of both runtimes.
var defaultSpecDirs = []string{"/etc/cdi", "/var/run/cdi"}

// installation is where a distribution installs its runtime.
type installation struct {
	name     string
	configs  []string // with drop-ins as patterns
	binaries []string
}

// installations are checked in this order. Those of distributions come first: a containerd beside them may be Docker's.
var installations = []installation{
	{"containerd", []string{"/var/lib/rancher/k3s/agent/etc/containerd/config.toml"},
		[]string{"/var/lib/rancher/k3s/data/current/bin/k3s"}},
	{"containerd", []string{"/var/lib/rancher/rke2/agent/etc/containerd/config.toml"},
		[]string{"/var/lib/rancher/rke2/bin/containerd"}},
	{"containerd", []string{"/run/k0s/containerd-cri.toml", "/etc/k0s/containerd.toml"},
		[]string{"/var/lib/k0s/bin/containerd"}},
	{"containerd", []string{"/var/snap/microk8s/current/args/containerd.toml"},
		[]string{"/snap/microk8s/current/bin/containerd"}},
	{"containerd", []string{"/etc/cri/containerd.toml", "/etc/cri/conf.d/*.toml"}, nil}, // Talos
	{"cri-o", []string{"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"},
		[]string{"/usr/bin/crio", "/usr/local/bin/crio", "/usr/libexec/crio/crio"}},
	{"containerd", []string{"/etc/containerd/config.toml"}, []string{"/usr/bin/containerd", "/usr/local/bin/containerd",
		"/opt/containerd/bin/containerd", "/bin/containerd"}},
}

// LookUpRuntime finds the container runtime and its CDI support. version is that of the Node object
// ("containerd://1.7.24"); "" if it is unknown. cdiDir is where the driver writes its specs. Without a root, the result
// is derived from the version.
func LookUpRuntime(root Root, version, cdiDir string) (Runtime, []Problem) {
	r := Runtime{CDI: "unknown"}
	if name, number, ok := strings.Cut(version, "://"); ok {
		r.Name, r.Version = name, number
	}
	var problems []Problem
	var settings []*toml.Tree
	if root != "" {
		settings, problems = r.find(root)
	}
	r.checkCDI(settings)
	return r, append(problems, r.problems(cdiDir)...)
}

// RuntimeProblems returns only the problems of LookUpRuntime. The plugin calls it at its start without a root.
func RuntimeProblems(root Root, version, cdiDir string) []Problem {
	_, problems := LookUpRuntime(root, version, cdiDir)
	return problems
}

// find finds the installation, its version and its settings; later settings override earlier ones.
func (r *Runtime) find(root Root) (settings []*toml.Tree, problems []Problem) {
	for _, in := range installations {
		if r.Name != "" && r.Name != in.name {
			continue
		}
		configs := in.find(root)
		binary := slices.IndexFunc(in.binaries, root.has)
		if len(configs) == 0 && binary < 0 {
			continue
		}
		all, problems := load(root, configs)
		if in.name == "containerd" && slices.ContainsFunc(all, withoutCRI) {
			continue // it is not the kubelet's
		}
		r.Name, r.Config = in.name, configs
		if r.Version == "" && binary >= 0 {
			if info, err := buildinfo.ReadFile(root.path(in.binaries[binary])); err == nil {
				r.Version = versionIn(info)
			}
		}
		return all, problems
	}
	return nil, nil
}

func (in installation) find(root Root) []string {
	var out []string
	for _, pattern := range in.configs {
		out = append(out, root.glob(pattern)...)
	}
	return out
}

// load reads the files and their imports.
func load(root Root, files []string) (all []*toml.Tree, problems []Problem) {
	for _, file := range files {
		text, err := root.read(file)
		var tree *toml.Tree
		if err == nil {
			tree, err = toml.LoadBytes(text)
		}
		if err != nil {
			problems = append(problems, RuntimeConfig.Found("%s cannot be read: %v", file, err))
			continue
		}
		all = append(all, tree)
		imports, _ := tree.Get("imports").([]any)
		for _, pattern := range imports {
			more, found := load(root, root.glob(absolute(fmt.Sprint(pattern), file)))
			all, problems = append(all, more...), append(problems, found...)
		}
	}
	return all, problems
}

// absolute resolves a pattern that is relative to the directory of the file.
func absolute(pattern, file string) string {
	if path.IsAbs(pattern) {
		return pattern
	}
	return path.Join(path.Dir(file), pattern)
}

// criSections are the sections of containerd's CRI plugin, of containerd 1 and of containerd 2.
var criSections = [][]string{{"plugins", "io.containerd.grpc.v1.cri"}, {"plugins", "io.containerd.cri.v1.runtime"},
	{"plugins", "cri"}}

// withoutCRI reports whether the CRI plugin is disabled, as in Docker's packages.
func withoutCRI(t *toml.Tree) bool {
	disabled, _ := t.Get("disabled_plugins").([]any)
	return slices.ContainsFunc(disabled, func(name any) bool {
		return name == "cri" || name == "io.containerd.grpc.v1.cri"
	})
}

// checkCDI sets the CDI support of the runtime.
func (r *Runtime) checkCDI(settings []*toml.Tree) {
	r.SpecDirs = defaultSpecDirs
	switch r.Name {
	case "cri-o": // always on
		r.CDI = "on"
		r.setDirs(settings, []string{"crio", "runtime", "cdi_spec_dirs"})
		return
	case "docker":
		r.CDI = "unsupported"
		return
	case "containerd":
	default:
		return
	}
	major, minor := r.numbers()
	for _, t := range settings {
		if n, ok := t.Get("version").(int64); ok && n >= 3 && major == 0 {
			major = 2 // the format of containerd 2
		}
	}
	switch {
	case major >= 2:
		r.CDI = "on"
	case major == 1 && minor >= 0 && minor < 7:
		r.CDI = "unsupported"
		return
	case major == 1:
		r.CDI = "off"
	}
	for _, t := range settings {
		for _, section := range criSections {
			if on, ok := t.GetPath(append(slices.Clone(section), "enable_cdi")).(bool); ok {
				r.CDI = map[bool]string{true: "on", false: "off"}[on]
			}
			r.setDirs([]*toml.Tree{t}, append(slices.Clone(section), "cdi_spec_dirs"))
		}
	}
}

func (r *Runtime) setDirs(settings []*toml.Tree, key []string) {
	for _, t := range settings {
		dirs, ok := t.GetPath(key).([]any)
		if !ok || len(dirs) == 0 {
			continue
		}
		r.SpecDirs = nil
		for _, d := range dirs {
			r.SpecDirs = append(r.SpecDirs, fmt.Sprint(d))
		}
	}
}

var versionNumbers = regexp.MustCompile(`^v?([0-9]+)(?:\.([0-9]+))?`)

// numbers returns major and minor version; 0 and -1 if unknown.
func (r *Runtime) numbers() (major, minor int) {
	found := versionNumbers.FindStringSubmatch(r.Version)
	if found == nil {
		return 0, -1
	}
	major, _ = strconv.Atoi(found[1]) //nolint:errcheck // digits
	minor = -1
	if found[2] != "" {
		minor, _ = strconv.Atoi(found[2]) //nolint:errcheck // digits
	}
	return major, minor
}

func (r *Runtime) problems(cdiDir string) []Problem {
	var out []Problem
	name := strings.TrimSpace(r.Name + " " + r.Version)
	switch r.CDI {
	case "off":
		out = append(out, CDIOff.Found("%s has CDI switched off: containers start without their GPUs", name))
	case "unsupported":
		does := "knows no CDI"
		if r.Name == "docker" {
			does = "gets no CDI devices from cri-dockerd, unless that has its change #522"
		}
		out = append(out, CDIUnsupported.Found("%s %s: containers start without their GPUs", name, does))
	case "unknown":
		switch r.Name {
		case "":
			name = "the container runtime was not found"
		case "containerd":
			name += ": its version is not known, and its configuration does not say whether CDI is on"
		default:
			name += ": it is not known whether this runtime uses CDI"
		}
		return append(out, RuntimeUnknown.Found("%s", name))
	}
	if !slices.ContainsFunc(r.SpecDirs, func(dir string) bool { return canonical(dir) == canonical(cdiDir) }) {
		out = append(out, CDIDirUnread.Found("%s reads CDI specs from %s and not from %s", name,
			strings.Join(r.SpecDirs, ", "), cdiDir))
	}
	return out
}

// canonical replaces /var/run, which is a link on every host.
func canonical(dir string) string {
	dir = path.Clean(dir)
	if rest, ok := strings.CutPrefix(dir, "/var/run/"); ok {
		return "/run/" + rest
	}
	return dir
}

var linkedVersion = regexp.MustCompile(`/version\.Version=v?([0-9][0-9A-Za-z.+-]*)`)

// versionIn returns the version of containerd or CRI-O from the build info of a Go program, so that no program of the
// host is run.
func versionIn(info *debug.BuildInfo) string {
	for _, s := range info.Settings {
		if found := linkedVersion.FindStringSubmatch(s.Value); s.Key == "-ldflags" && found != nil {
			return found[1]
		}
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if !strings.HasPrefix(m.Path, "github.com/containerd/containerd") &&
			!strings.HasPrefix(m.Path, "github.com/k3s-io/containerd") {
			continue
		}
		if m.Path != "github.com/containerd/containerd" && !strings.HasSuffix(m.Path, "/containerd/v2") {
			continue // a module beside it, such as its API
		}
		if versionNumbers.MatchString(m.Version) {
			return strings.TrimPrefix(m.Version, "v")
		}
		if strings.HasSuffix(m.Path, "/v2") {
			return "2"
		}
		return "1"
	}
	return ""
}
