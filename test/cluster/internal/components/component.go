// SPDX-License-Identifier: Apache-2.0

// Package components builds the programs of a cluster and caches them outside the repository. Go modules in
// test/cluster/components pin the versions; the table in this file says how to build them.
package components

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Names of the components.
const (
	Kubernetes = "kubernetes"
	Etcd       = "etcd"
	Containerd = "containerd"
	Runc       = "runc"
	CNI        = "cni"
	Helm       = "helm"
	Pause      = "pause"
)

// programs is the module of the newest Kubernetes and of what is used with every one. It is one module so that all have
// the same versions of the packages that they share, and the Go toolchain compiles each once. The driver's go.mod has
// these versions too.
const programs = "programs"

// sharedFlags are for all programs here, and for those of the driver that are built with these: the Go toolchain only
// shares what is compiled with the same flags. The linker leaves out debug information anyway, so the compiler need not
// make it. The tags make a program with cgo use the same packages net and os/user as one without.
var sharedFlags = []string{"-trimpath", "-gcflags=all=-dwarf=false"}

const sharedTags = "netgo osusergo"

// Component describes how to build a group of programs from one Go module.
type Component struct {
	Name     string
	Parts    []string // the components of which these are the programs; empty: the one of this name
	Folder   string   // in test/cluster/components, with go.mod; empty: it is called as the component
	Module   string   // the module that provides the version
	Packages []string // the commands to build
	Binaries []string // their file names, in the same order
	Tags     string   // beside sharedTags
	LDFlags  string   // {version} and {minor} are filled in, and {MODULE} with the version of that module
	Cgo      bool
	Debian   []Package // what building it needs beyond Go
}

// kubernetesPrograms are the programs of every Kubernetes.
var kubernetesPrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet",
	"kube-proxy"}

const kubernetesVersion = "-X k8s.io/component-base/version.gitVersion={version}" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor={minor}" +
	" -X k8s.io/component-base/version.gitTreeState=clean" +
	" -X k8s.io/client-go/pkg/version.gitVersion={version}"

var all = []Component{
	{
		Name:   Runc,
		Folder: programs,
		Module: "github.com/opencontainers/runc", Packages: []string{"github.com/opencontainers/runc"},
		Binaries: []string{"runc"},
		Tags:     "seccomp",
		LDFlags:  "-X main.version={version}",
		Cgo:      true,
		Debian:   []Package{compiler, pkgConfig, seccompHeaders},
	},
	{
		Name:   programs,
		Parts:  []string{Kubernetes, Etcd, CNI, Containerd, Helm},
		Module: "k8s.io/kubernetes",
		Packages: append(commands("k8s.io/kubernetes/cmd/", append(slices.Clone(kubernetesPrograms), "kubectl")...),
			"go.etcd.io/etcd/server/v3",
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/main/ptp",
			"github.com/containernetworking/plugins/plugins/meta/portmap",
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
			"helm.sh/helm/v4/cmd/helm",
		),
		Binaries: append(slices.Clone(kubernetesPrograms), "kubectl", "etcd", "host-local", "loopback", "ptp",
			"portmap", "containerd", "containerd-shim-runc-v2", "ctr", "helm"),
		Tags: "no_btrfs no_zfs no_aufs no_devmapper",
		LDFlags: kubernetesVersion +
			" -X github.com/containerd/containerd/v2/version.Version={github.com/containerd/containerd/v2}" +
			" -X helm.sh/helm/v4/internal/version.version={helm.sh/helm/v4}",
	},
}

// kubernetesIn returns the component of an older Kubernetes, which a folder pins. It has no kubectl, because the newest
// is for users of all of them.
func kubernetesIn(folder string) Component {
	return Component{Name: Kubernetes, Folder: folder, Module: "k8s.io/kubernetes",
		Packages: commands("k8s.io/kubernetes/cmd/", kubernetesPrograms...), Binaries: kubernetesPrograms,
		LDFlags: kubernetesVersion}
}

func commands(prefix string, names ...string) []string {
	var packages []string
	for _, name := range names {
		packages = append(packages, prefix+name)
	}
	return packages
}

// All returns every component, the fastest builds first.
func All() []Component { return slices.Clone(all) }

// running returns the components that a cluster of this Kubernetes runs. The later ones replace parts of the earlier.
func running(kubernetes Component) []Component {
	if kubernetes.Name == programs {
		return All()
	}
	return append(All(), kubernetes)
}

// parts returns the names by which Dirs has the component's folder.
func (c Component) parts() []string {
	if len(c.Parts) == 0 {
		return []string{c.Name}
	}
	return c.Parts
}

// title names the component in a line of output.
func (c Component) title(version string) string {
	if len(c.Parts) == 0 {
		return c.Name + " " + version
	}
	return c.Parts[0] + " " + version + " with " + strings.Join(c.Parts[1:], ", ")
}

// folder returns the name of the folder with the component's go.mod.
func (c Component) folder() string { return cmp.Or(c.Folder, c.Name) }

// newest returns the component with the newest Kubernetes.
func newest() Component {
	return all[slices.IndexFunc(all, func(c Component) bool { return c.Name == programs })]
}

// flags returns the arguments of go build, but for those of the linker.
func (c Component) flags() []string {
	return append(slices.Clone(sharedFlags), "-tags", strings.TrimSpace(sharedTags+" "+c.Tags))
}

// cgo returns the setting of cgo in the environment.
func (c Component) cgo() string {
	if c.Cgo {
		return "CGO_ENABLED=1"
	}
	return "CGO_ENABLED=0"
}

// placeholder is a word of LDFlags in braces.
var placeholder = regexp.MustCompile(`\{[^}]+\}`)

// linkerFlags returns the value of -ldflags for the versions in the text of a go.mod file.
func (c Component) linkerFlags(gomod string) (string, error) {
	version, err := c.versionIn(gomod)
	if err != nil {
		return "", err
	}
	values := map[string]string{"{version}": version, "{minor}": ""}
	if parts := strings.Split(version, "."); len(parts) > 1 {
		values["{minor}"] = parts[1]
	}
	for _, word := range placeholder.FindAllString(c.LDFlags, -1) {
		if _, known := values[word]; known {
			continue
		}
		if values[word], err = versionOf(gomod, strings.Trim(word, "{}")); err != nil {
			return "", err
		}
	}
	flags := placeholder.ReplaceAllStringFunc(c.LDFlags, func(word string) string { return values[word] })
	return strings.TrimSpace("-s -w " + flags), nil
}

// versionIn returns the version of the component's module in the text of a go.mod file.
func (c Component) versionIn(gomod string) (string, error) {
	version, err := versionOf(gomod, c.Module)
	if err != nil {
		return "", fmt.Errorf("find version of %s: %w", c.Name, err)
	}
	return version, nil
}

func versionOf(gomod, module string) (string, error) {
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("go.mod does not require %s", module)
}
