// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	watchtools "k8s.io/client-go/tools/watch"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpudra/gpu-dra-driver/simulator"
	simnode "github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/controlplane"
)

// side is a plugin that is compared, as a process of this machine, on a node of its own whose GPUs are simulated.
type side struct {
	subject
	name     string
	bench    *bench // of its node
	plane    *controlplane.Plane
	env      []string
	args     []string // its command line
	socket   string   // on which the kubelet calls it
	running  *controlplane.Process
	hangUp   func()
	standing []*drapb.Claim
}

// open starts the control plane and prepares both sides. What they sync is in the folder disk, CDI files in memory, as
// on nodes.
func (c *contest) open(ctx context.Context, peer, disk, memory string) error {
	disk, err := filepath.Abs(disk)
	if err != nil {
		return err
	}
	if err := c.plane.Open(ctx); err != nil {
		return err
	}
	kubeconfig, err := c.plane.Kubeconfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.plane.REST())
	if err != nil {
		return err
	}
	const ns = "bench"
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns,
		Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, name := range []string{"ours", "peer"} {
		_, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
		s := &side{subject: subject{driver: driver}, name: name, plane: c.plane, bench: &bench{client: client,
			plugin: client, claims: client.ResourceV1().ResourceClaims(ns), node: name}}
		dir := filepath.Join(disk, name)
		root, err := simulate(filepath.Join(dir, "node"))
		if err != nil {
			return err
		}
		s.env = []string{"SIMULATE_DIR=" + filepath.Join(dir, "node")}
		cdi, registry, plugins := filepath.Join(memory, name+"-cdi"), filepath.Join(dir, "r"), filepath.Join(dir, "p")
		if err := errors.Join(os.MkdirAll(cdi, 0o755), os.MkdirAll(registry, 0o755)); err != nil {
			return err
		}
		const hook = bin + "/nvidia-cdi-hook"
		s.socket = filepath.Join(plugins, driver, "dra.sock")
		if name == "ours" { // as the chart starts it
			s.args = []string{bin + "/dra-kubelet-plugin", "--plugin-dir=" + filepath.Join(plugins, driver),
				"--registry-dir=" + registry, "--cdi-dir=" + cdi, "--driver-root=" + root,
				"--driver-root-mount=" + root, "--cdi-hook=" + hook, "--combined-cdi-hook=" + bin + "/cdi-hooks",
				"--http-address=127.0.0.1:0", "--pod-resources=" + filepath.Join(dir, "none"),
				"--metrics-container-usage", "--idle-after=30m", "-v=2"}
		} else { // as its chart does, but without its limit of requests
			s.args = []string{peer, "--kubelet-plugins-directory-path=" + plugins,
				"--kubelet-registrar-directory-path=" + registry, "--cdi-root=" + cdi, "--nvidia-driver-root=" + root,
				"--container-driver-root=" + root, "--nvidia-cdi-hook-path=" + hook, "--http-endpoint=127.0.0.1:0",
				"--image-name=none", "--v=4", "--kube-api-qps=1000", "--kube-api-burst=1000"}
		}
		s.args = append(s.args, "--node-name="+name, "--kubeconfig="+kubeconfig)
		c.sides = append(c.sides, s)
	}
	return nil
}

// simulate creates a node with 8 simulated GPUs in the folder and returns its driver root, which has the simulated
// NVML library and nvidia-smi.
func simulate(dir string) (root string, err error) {
	profile, err := simulator.BuiltIn("dgx-h100")
	if err != nil {
		return "", err
	}
	machine, err := simulator.Open(dir, profile)
	if err != nil {
		return "", err
	}
	if err := machine.LayOut(simulator.Programs{NvidiaSMI: bin + "/sim-nvidia-smi"}); err != nil {
		return "", err
	}
	library, err := os.ReadFile(bin + "/libnvidia-ml.so.1")
	if err != nil {
		return "", err
	}
	// The link leads to the state of the node, which is no library of C.
	link := filepath.Join(simnode.LibraryDir(dir), "libnvidia-ml.so.1")
	return machine.DriverRoot(), errors.Join(os.Remove(link), os.WriteFile(link, library, 0o755))
}

// bin is the folder of the programs.
const bin = "_output/bin"

// inNode shows a program the PCI devices of the simulated node.
const inNode = `mount --bind "$SIMULATE_DIR/root/sys/devices" /sys/devices
mount --bind "$SIMULATE_DIR/root/sys/bus/pci" /sys/bus/pci
exec "$@"`

// restart starts the plugin with further arguments, again if it runs, while its node has no slices. It returns how long
// it takes until a watch delivers the slice with all GPUs.
func (s *side) restart(ctx context.Context, args ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	s.running.Stop()
	of := s.bench.client.ResourceV1().ResourceSlices()
	selected := metav1.ListOptions{FieldSelector: s.bench.ownSlices()}
	if err := of.DeleteCollection(ctx, metav1.DeleteOptions{}, selected); err != nil {
		return 0, err
	}
	events, err := of.Watch(ctx, selected)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if s.running, err = s.plane.Start(s.name, s.env, slices.Concat([]string{"unshare", "--mount", "sh", "-ec", inNode,
		"sh"}, s.args, args)...); err != nil {
		return 0, err
	}
	_, err = watchtools.UntilWithoutRetry(ctx, events, func(e watch.Event) (bool, error) {
		slice, ok := e.Object.(*resourceapi.ResourceSlice)
		return ok && e.Type == watch.Added && len(slice.Spec.Devices) >= 8, nil
	})
	took := time.Since(begin)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("wait for its slice: %w", err), s.running.Ended())
	}
	if s.hangUp != nil {
		s.hangUp()
	}
	if s.kubelet, s.hangUp, err = dialPlugin(s.socket); err != nil {
		return 0, err
	}
	s.process = process{pid: s.running.PID()}
	return took, errors.Join(s.bench.findGPUs(ctx), until(ctx, "its socket", func() (bool, error) {
		_, err := prepareOn(ctx, s.kubelet)
		return err == nil, err
	}))
}
