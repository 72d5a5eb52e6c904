// SPDX-License-Identifier: Apache-2.0

// Package node decides what runs on a node and its configuration: kubelet, containerd, pod network, kube-proxy.
package node

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/network"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/pki"
)

const (
	kubeletConfig    = "/etc/kubernetes/kubelet.yaml"
	containerdConfig = "/etc/containerd/config.toml"
	networkConfig    = "/etc/cni/net.d/10-pods.conflist"
	containerSpec    = "/etc/containerd/container.json"
	cniPrograms      = "/opt/cni/bin"

	// ContainerdSocket is containerd's socket on every node.
	ContainerdSocket = "/run/containerd/containerd.sock"

	kube  = machine.Bin + "/" + components.Kubernetes + "/"
	ctr   = machine.Bin + "/" + components.Containerd + "/ctr"
	ready = controlplane.Server + "/readyz"
)

// Config holds the differences between nodes.
type Config struct {
	Index        int               // counted from one
	Cgroup       string            // the control group of the node's pods
	Labels       map[string]string // in addition to the kubelet's
	FeatureGates map[string]bool
	// ContainerSpec is the base spec of every container, see NewContainerSpec.
	ContainerSpec string
}

// Name returns the name of the i-th node, counted from one.
func Name(i int) string { return fmt.Sprintf("node-%d", i) }

// Spec returns the machine. dir is its own folder on the host's disk.
func Spec(dir string, programs components.Dirs, c Config) (machine.Spec, error) {
	kubelet, err := kubeletYAML(c)
	if err != nil {
		return machine.Spec{}, err
	}
	return machine.Spec{
		Name:       Name(c.Index),
		Dir:        dir,
		Components: programs,
		Overlays:   []string{"/etc", "/opt"},
		Fresh:      []string{"/var", "/tmp"},
		Mounts:     map[string]string{cniPrograms: components.CNI},
		Folders: []string{
			// Not the kubelet's: it makes them itself, closed to other users.
			"/etc/cdi", "/run/cdi", "/run/lock", "/run/netns", "/var/log/pods", "/var/log/containers",
			"/var/lib/containerd",
		},
		Files: map[string]string{
			kubeletConfig:    kubelet,
			containerdConfig: containerdTOML(),
			networkConfig:    networkJSON(c.Index),
			containerSpec:    c.ContainerSpec,
		},
		Pretend: kubeletSysctls,
		Set:     map[string]string{"net.ipv4.ip_forward": "1"},
		Steps:   steps(c),
	}, nil
}

func steps(c Config) []machine.Step {
	const containerdReady = "unix:" + ContainerdSocket
	return []machine.Step{
		{
			Name: "containerd",
			Command: []string{machine.Bin + "/" + components.Containerd + "/containerd", "--config=" +
				containerdConfig},
		},
		{
			Name:    "pause-image",
			Command: ImportCommand(machine.Bin + "/" + components.Pause + "/" + components.PauseArchive),
			After:   []string{containerdReady},
			Once:    true,
		},
		{
			Name:    "kubelet",
			Command: kubeletCommand(c),
			After:   []string{"step:pause-image", ready},
		},
		{
			Name: "kube-proxy",
			Command: []string{
				kube + "kube-proxy",
				"--kubeconfig=" + machine.PKI + "/kube-proxy.conf",
				"--hostname-override=" + Name(c.Index),
				"--cluster-cidr=" + network.PodCIDR,
				"--proxy-mode=nftables",
				"--conntrack-max-per-core=0", // would set a sysctl of the whole host
				"--healthz-bind-address=127.0.0.1:10256",
				"--metrics-bind-address=127.0.0.1:10249",
			},
			After: []string{ready},
		},
	}
}

// ImportCommand returns the command that imports the images of the archive on a node; "-" is stdin.
func ImportCommand(archive string) []string {
	return []string{ctr, "--address", ContainerdSocket, "--namespace", "k8s.io", "images", "import", archive}
}

func kubeletCommand(c Config) []string {
	command := []string{
		kube + "kubelet",
		"--config=" + kubeletConfig,
		"--kubeconfig=" + machine.PKI + "/kubelet.conf",
		"--hostname-override=" + Name(c.Index),
		"--node-ip=" + network.NodeIP(c.Index),
		"--root-dir=/var/lib/kubelet",
	}
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(c.Labels)) {
		labels = append(labels, name+"="+c.Labels[name])
	}
	if len(labels) > 0 {
		command = append(command, "--node-labels="+strings.Join(labels, ","))
	}
	return command
}

// WriteCredentials writes the certificates and kubeconfigs of the i-th node into the machine's folder.
func WriteCredentials(dir string, ca *pki.Authority, i int) error {
	w := pki.Writer{Dir: filepath.Join(dir, "pki"), CA: ca, Server: controlplane.Server}
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return fmt.Errorf("make folder for certificates: %w", err)
	}
	name := Name(i)
	user := pki.Subject{CommonName: "system:node:" + name, Organizations: []string{"system:nodes"}}
	server := user
	server.IPs, server.DNSNames = []net.IP{net.ParseIP(network.NodeIP(i))}, []string{name}
	w.Trust("ca", ca)
	w.Pair("kubelet", ca, server)
	w.Kubeconfig("kubelet", user)
	w.Kubeconfig("kube-proxy", pki.Subject{CommonName: "system:kube-proxy"})
	return w.Err
}
