// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
)

// Paths and names of the driver as `make bench` installs it.
const (
	driver          = "gpu.nvidia.com"
	namespace       = "gpu-dra-driver"
	pluginLabel     = "app.kubernetes.io/component=kubelet-plugin"
	supervisorLabel = "app.kubernetes.io/component=mps-supervisor"
	pluginDir       = "/var/lib/kubelet/plugins/" + driver
	daemonsDir      = pluginDir + "/mps" // of MPS
	cdiDir          = "/var/run/cdi"
	driverRoot      = "/var/lib/gpu-dra-driver/sim/root" // of the simulated NVIDIA driver

	request = "gpu" // in every claim
)

// bench is a cluster with one plugin, and the results measured so far.
type bench struct {
	client     kubernetes.Interface                  // as administrator
	config     *rest.Config                          // of it
	kubeconfig string                                // likewise
	claims     resourceclient.ResourceClaimInterface // in the bench's own namespace
	ns         string                                // the namespace
	node       string
	gpus       []string // devices
	image      string   // of pods
	results    map[string][]float64
	// comparisons with the floors, in the order of their table.
	comparisons []*comparison

	// Of the plugin that runs; attach renews them after a restart.
	process process
	kubelet drapb.DRAPluginClient
	plugin  kubernetes.Interface
	hangUp  func()
}

func newBench(ctx context.Context, kubeconfig string) (*bench, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{} // converted pods have some
	b := &bench{config: config, kubeconfig: kubeconfig, results: map[string][]float64{}}
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	version, err := os.ReadFile("VERSION")
	if err != nil {
		return nil, fmt.Errorf("run this in the repository root: %w", err)
	}
	b.image = "localhost/gpu-dra-demo:" + strings.TrimSpace(string(version))
	if err := b.findGPUs(ctx); err != nil {
		return nil, err
	}
	if len(b.gpus) != 8 {
		return nil, fmt.Errorf("got %d GPUs, want a node with 8", len(b.gpus))
	}
	if err := b.attach(ctx); err != nil {
		return nil, err
	}
	ns, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "bench-", Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}},
		metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	b.ns, b.claims = ns.Name, b.client.ResourceV1().ResourceClaims(ns.Name)
	return b, nil
}

// findGPUs reads the devices from the slices, of the bench's node if it has one. Otherwise all are on one node.
func (b *bench) findGPUs(ctx context.Context) error {
	slices, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: b.ownSlices()})
	if err != nil {
		return err
	}
	b.gpus = nil
	for _, slice := range slices.Items {
		node := ptr.Deref(slice.Spec.NodeName, "")
		if b.node != "" && b.node != node {
			return fmt.Errorf("GPUs on %s and on %s: want one node", b.node, node)
		}
		b.node = node
		for _, device := range slice.Spec.Devices {
			if kind := device.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
				b.gpus = append(b.gpus, device.Name)
			}
		}
	}
	return nil
}

// ownSlices selects the driver's slices, of the bench's node if it has one.
func (b *bench) ownSlices() string {
	selector := "spec.driver=" + driver
	if b.node != "" {
		selector += ",spec.nodeName=" + b.node
	}
	return selector
}

// attach connects to the current plugin process.
func (b *bench) attach(ctx context.Context) error {
	var err error
	if b.process, err = findProcess(ctx, b.client, pluginLabel, program); err != nil {
		return err
	}
	if b.hangUp != nil {
		b.hangUp()
	}
	if b.kubelet, b.hangUp, err = b.process.dial(); err != nil {
		return err
	}
	b.plugin, err = b.process.client()
	return err
}

func (b *bench) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(b.deleteClaims(ctx), b.client.CoreV1().Namespaces().Delete(ctx, b.ns, metav1.DeleteOptions{}))
}

// scratch creates a directory beside the plugin's own, on the same file system.
func (b *bench) scratch() (string, error) {
	return os.MkdirTemp(filepath.Dir(b.process.path(pluginDir)), "bench-")
}

// samples are measured times.
type samples []time.Duration

// at returns the quantile q in milliseconds.
func (s samples) at(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	index := min(int(q*float64(len(sorted))), len(sorted)-1)
	return ms(sorted[index])
}

func (s samples) p50() float64 { return s.at(0.50) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
