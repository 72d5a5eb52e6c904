// SPDX-License-Identifier: Apache-2.0

// Package check judges what is seen of a cluster while it is broken on purpose. It knows the driver from outside only:
// the API, CDI specs, containers and the simulated hardware. It shares no code with the driver.
package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Driver is the name of the driver.
const Driver = "gpu.nvidia.com"

// World is what one look sees. The containers of each node were read last, after everything else.
type World struct {
	Pods   []corev1.Pod
	Claims []resourceapi.ResourceClaim
	Slices []resourceapi.ResourceSlice
	Taints []string        // of nodes and devices, "node-1 key=value:effect"
	Nodes  map[string]Node // those that could be read
}

// Node is what one look sees of a node.
type Node struct {
	GPUs       []GPU
	Machine    []string             // the simulated hardware as text
	Specs      map[types.UID]string // CDI specs by claim
	Left       []string             // files and processes that exist for claims
	Containers []Container          // that run
}

// GPU is a GPU of the simulated hardware.
type GPU struct {
	Name       string
	Minor      int // N of /dev/nvidiaN
	Group      int // of the IOMMU; 0: none
	Partitions []Partition
	VGPUs      []VGPU
}

// Partition is a MIG partition that exists.
type Partition struct {
	Profile      string // "1g.10gb"
	Start        int    // first memory slice
	Capabilities [2]int // N of /dev/nvidia-caps/nvidia-capN
}

// VGPU is a mediated device that exists.
type VGPU struct {
	Type  string // "A16-4Q"
	Group int    // of the IOMMU
}

// Container is a container that runs.
type Container struct {
	ID      string
	Pod     types.UID
	Name    string
	Devices []string // device nodes of GPUs, relative to /dev
}

// Violation is a broken promise.
type Violation struct {
	Rule string
	What string
}

func (v Violation) String() string { return v.Rule + ": " + v.What }

// The rules.
const (
	Capacity = "a device is used beyond its capacity"
	Sees     = "a container sees other devices than it was given"
	Spec     = "the CDI spec of a running pod is wrong"
	Left     = "something is left of pods that are gone"
	Stuck    = "something waits for too long"
)

// common are the device nodes that say nothing about a GPU.
var common = []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "vfio/vfio"}

// deviceNodes returns the device nodes of each device that the node's hardware has now, and those of all vGPUs of one
// type on a GPU: which of them a device is, depends on its claim.
func (n Node) deviceNodes() map[string][]string {
	out := map[string][]string{}
	for _, g := range n.GPUs {
		own := fmt.Sprintf("nvidia%d", g.Minor)
		out[g.Name] = []string{own}
		if g.Group != 0 {
			out[g.Name+"-vfio"] = []string{fmt.Sprintf("vfio/%d", g.Group)}
		}
		for _, p := range g.Partitions {
			nodes := []string{own}
			for _, c := range p.Capabilities {
				nodes = append(nodes, fmt.Sprintf("nvidia-caps/nvidia-cap%d", c))
			}
			out[g.Name+p.suffix()] = nodes
		}
		for _, v := range g.VGPUs {
			kind := g.Name + vgpuMark + strings.ToLower(v.Type)
			out[kind] = append(out[kind], fmt.Sprintf("vfio/%d", v.Group))
		}
	}
	return out
}

// vgpuMark is in the names of vGPUs: "gpu-40-00-0-vgpu-a16-4q-0".
const vgpuMark = "-vgpu-"

// vgpuKind returns the name without the number at its end; empty: it is no vGPU.
func vgpuKind(device string) string {
	if !strings.Contains(device, vgpuMark) {
		return ""
	}
	return device[:strings.LastIndexByte(device, '-')]
}

// suffix is what the name of the partition's device adds to that of its GPU.
func (p Partition) suffix() string {
	return fmt.Sprintf("-mig-%s-%d", strings.ReplaceAll(p.Profile, ".", ""), p.Start)
}

// vgpus returns those of the device nodes that are vGPUs.
func (n Node) vgpus(nodes []string) []string {
	var out []string
	for _, g := range n.GPUs {
		for _, v := range g.VGPUs {
			if node := fmt.Sprintf("vfio/%d", v.Group); slices.Contains(nodes, node) {
				out = append(out, node)
			}
		}
	}
	return out
}

// compare says how the device nodes differ from those of the devices; empty: they are the same. The nodes of a
// partition that no longer exists are neither wanted nor refused.
func (n Node) compare(nodes, devices []string) string {
	of := n.deviceNodes()
	allowed := slices.Clone(common)
	var differences []string
	for _, d := range devices {
		for _, want := range of[d] {
			if !slices.Contains(nodes, want) {
				differences = append(differences, fmt.Sprintf("lacks /dev/%s of %s", want, d))
			}
		}
		if ones := of[vgpuKind(d)]; len(ones) > 0 {
			if !slices.ContainsFunc(ones, func(one string) bool { return slices.Contains(nodes, one) }) {
				differences = append(differences, fmt.Sprintf("lacks a device node of %s", d))
			}
			allowed = append(allowed, ones...)
		}
		allowed = append(allowed, of[d]...)
		if gpu, _, ok := strings.Cut(d, "-mig-"); ok {
			allowed = append(allowed, of[gpu]...)
		}
	}
	for _, node := range nodes {
		if slices.Contains(allowed, node) {
			continue
		}
		for _, g := range slices.Sorted(maps.Keys(of)) {
			if slices.Contains(of[g], node) {
				differences = append(differences, fmt.Sprintf("has /dev/%s of %s", node, g))
				break
			}
		}
	}
	return strings.Join(differences, ", ")
}
