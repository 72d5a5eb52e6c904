// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	vmProfile = "l40s-x4" // of a node whose GPUs can be given to virtual machines
	vmCycles  = 10
	vmBeside  = 100 // claims for containers while a GPU is bound and returned
	vmRounds  = 2   // without and with it, in turn
)

// measureVirtualMachines gives the node other GPUs, and times binding one to vfio-pci and returning it; and claims for
// containers on other GPUs meanwhile, as a ratio to those without.
func measureVirtualMachines(ctx context.Context, b *bench) error {
	was, err := b.becomes(ctx, vmProfile)
	if err != nil {
		return err
	}
	measured := b.virtualMachines(ctx)
	_, err = b.becomes(ctx, was)
	return errors.Join(measured, err)
}

// becomes starts the plugin with the GPUs of another profile, and returns the profile of before.
func (b *bench) becomes(ctx context.Context, profile string) (was string, err error) {
	const label = "gpu.nvidia.com/sim-profile"
	if err := b.stopPlugin(ctx); err != nil {
		return "", err
	}
	nodes := b.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, b.node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %q}}}`, label, profile)
	if _, err := nodes.Patch(ctx, b.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return "", err
	}
	if err := b.selectNodes(ctx, `{"bench": null}`); err != nil {
		return "", err
	}
	if err := until(ctx, "the plugin", func() (bool, error) { return true, b.attach(ctx) }); err != nil {
		return "", err
	}
	return node.Labels[label], errors.Join(b.pluginReady(ctx), until(ctx, "the GPUs", func() (bool, error) {
		err := b.findGPUs(ctx)
		return len(b.gpus) > 0, err
	}))
}

func (b *bench) virtualMachines(ctx context.Context) error {
	passed := b.gpu(0)
	passed.Device = gpu.VFIOName(passed.Device)
	b.gpus = b.gpus[1:]
	claims, err := b.allocated(ctx, passed)
	if err != nil {
		return err
	}
	var bind, unbind samples
	for range vmCycles {
		if err := b.passGPU(ctx, claims[0], &bind, &unbind); err != nil {
			return err
		}
	}
	b.results["vfio"] = []float64{bind.p50(), unbind.p50()}
	dir, err := b.scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var alone, beside steps
	for range vmRounds {
		if err := b.cycle(ctx, dir, vmBeside, 0, &alone); err != nil {
			return err
		}
		if err := b.whilePassing(ctx, claims[0], func() error {
			return b.cycle(ctx, dir, vmBeside, 0, &beside)
		}); err != nil {
			return err
		}
	}
	const p99 = 0.99
	b.results["vfiobeside"] = []float64{
		beside.prepare.p50() / alone.prepare.p50(), beside.prepare.at(p99) / alone.prepare.at(p99)}
	b.results["vfiobesidems"] = []float64{beside.prepare.p50(), beside.prepare.at(p99)}
	return b.deleteClaims(ctx)
}

// passGPU prepares the claim of a virtual machine as soon as the plugin knows that the GPU is back, and releases it.
func (b *bench) passGPU(ctx context.Context, claim *drapb.Claim, bind, unbind *samples) error {
	err := until(ctx, "the GPU to be back", func() (bool, error) {
		took, err := b.prepare(ctx, claim)
		if err == nil {
			*bind = append(*bind, took)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	took, err := b.unprepare(ctx, claim)
	*unbind = append(*unbind, took)
	return err
}

// whilePassing calls do while a GPU is bound and returned all the time.
func (b *bench) whilePassing(ctx context.Context, claim *drapb.Claim, do func() error) error {
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := b.passGPU(ctx, claim, &samples{}, &samples{}); err != nil {
				ended <- fmt.Errorf("virtual machine: %w", err)
				return
			}
		}
	}()
	err := do()
	close(stop)
	return errors.Join(err, <-ended)
}
