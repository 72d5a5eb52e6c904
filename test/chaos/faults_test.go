// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	sim "github.com/gpudra/gpu-dra-driver/simulator/node"
)

// A fault of a GPU waits while virtual machines have all GPUs of the node.
func TestFaultsWaitForAGPU(t *testing.T) {
	profile, err := sim.BuiltIn("a16-x4")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	node, err := sim.Open(filepath.Join(dir, "node-3", "disk", sim.DefaultDir), profile)
	if err != nil {
		t.Fatal(err)
	}
	first, err := node.View()
	if err != nil {
		t.Fatal(err)
	}
	sysfs := func(verb string, gpu sim.GPU) {
		if err := node.WriteSysfs("bus/pci/drivers/nvidia/"+verb, gpu.PCI.Address.String()); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range first.GPUs {
		sysfs("unbind", g)
	}
	l := &lab{options: options{kubeconfig: filepath.Join(dir, "kubeconfig")}, hits: map[string]int{}}
	fault := faultPlan{node: "node-3", pick: 1382819756}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := xid(ctx, l, fault); !errors.Is(err, context.Canceled) {
		t.Errorf("no GPU has NVIDIA's driver: got %v, want a wait until the end of the context", err)
	}
	back := first.GPUs[2]
	sysfs("bind", back)
	if err := xid(t.Context(), l, fault); err != nil {
		t.Error(err)
	}
	if l.hits["node-3 "+back.Name] != 1 {
		t.Errorf("got %v, want one fault of %s", l.hits, back.Name)
	}
}
