// SPDX-License-Identifier: Apache-2.0

// Package components builds the programs of a cluster and caches them outside the repository. One Go module per
// component in test/cluster/components pins the versions; the table in this file says how to build them.
package components

import (
	"cmp"
	"fmt"
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

// Component describes how to build a group of programs from one Go module.
type Component struct {
	Name     string
	Folder   string   // in test/cluster/components, with go.mod; empty: it is called as the component
	Module   string   // the module that provides the version
	Packages []string // the commands to build
	Binaries []string // their file names, in the same order
	Tags     string
	LDFlags  string // {version} and {minor} are filled in
	Cgo      bool
	Debian   []Package // what building it needs beyond Go
}

var all = []Component{
	{
		Name:     Etcd,
		Module:   "go.etcd.io/etcd/server/v3",
		Packages: []string{"go.etcd.io/etcd/server/v3"},
		Binaries: []string{"etcd"},
	},
	{
		Name:   CNI,
		Module: "github.com/containernetworking/plugins",
		Packages: []string{
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/main/ptp",
			"github.com/containernetworking/plugins/plugins/meta/portmap",
		},
		Binaries: []string{"host-local", "loopback", "ptp", "portmap"},
	},
	{
		Name:     Runc,
		Module:   "github.com/opencontainers/runc",
		Packages: []string{"github.com/opencontainers/runc"},
		Binaries: []string{"runc"},
		Tags:     "seccomp",
		LDFlags:  "-X main.version={version}",
		Cgo:      true,
		Debian:   []Package{compiler, pkgConfig, seccompHeaders},
	},
	{
		Name:   Containerd,
		Module: "github.com/containerd/containerd/v2",
		Packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
		Binaries: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		Tags:     "no_btrfs no_zfs no_aufs no_devmapper",
		LDFlags:  "-X github.com/containerd/containerd/v2/version.Version={version}",
	},
	{
		Name:   Kubernetes,
		Module: "k8s.io/kubernetes",
		Packages: []string{
			"k8s.io/kubernetes/cmd/kube-apiserver",
			"k8s.io/kubernetes/cmd/kube-controller-manager",
			"k8s.io/kubernetes/cmd/kube-scheduler",
			"k8s.io/kubernetes/cmd/kubelet",
			"k8s.io/kubernetes/cmd/kubectl",
			"k8s.io/kubernetes/cmd/kube-proxy",
		},
		Binaries: []string{
			"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy",
		},
		LDFlags: "-X k8s.io/component-base/version.gitVersion={version}" +
			" -X k8s.io/component-base/version.gitMajor=1" +
			" -X k8s.io/component-base/version.gitMinor={minor}" +
			" -X k8s.io/component-base/version.gitTreeState=clean" +
			" -X k8s.io/client-go/pkg/version.gitVersion={version}",
	},
	{
		Name:     Helm,
		Module:   "helm.sh/helm/v4",
		Packages: []string{"helm.sh/helm/v4/cmd/helm"},
		Binaries: []string{"helm"},
		LDFlags:  "-X helm.sh/helm/v4/internal/version.version={version}",
	},
}

// All returns every component, the fastest builds first.
func All() []Component { return all }

// running returns the components that a cluster runs; the others are for its users.
func running(kubernetes Component) []Component {
	return append(named(Etcd, CNI, Runc, Containerd), kubernetes)
}

// folder returns the name of the folder with the component's go.mod.
func (c Component) folder() string { return cmp.Or(c.Folder, c.Name) }

func named(names ...string) []Component {
	var found []Component
	for _, c := range all {
		for _, name := range names {
			if c.Name == name {
				found = append(found, c)
			}
		}
	}
	return found
}

// linkerFlags returns the value of -ldflags for the version.
func (c Component) linkerFlags(version string) string {
	flags := "-s -w"
	if c.LDFlags != "" {
		flags += " " + c.LDFlags
	}
	minor := ""
	if parts := strings.Split(version, "."); len(parts) > 1 {
		minor = parts[1]
	}
	return strings.NewReplacer("{version}", version, "{minor}", minor).Replace(flags)
}

// versionIn returns the version of the component's module in the text of a go.mod file.
func (c Component) versionIn(gomod string) (string, error) {
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == c.Module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("find version of %s: go.mod does not require %s", c.Name, c.Module)
}
