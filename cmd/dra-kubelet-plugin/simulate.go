// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

const (
	// profileLabel is the label of a Node object that names the profile of its simulated GPUs.
	profileLabel = "gpu.nvidia.com/sim-profile"
	// simNvidiaSMI is the simulated nvidia-smi in the driver's image.
	simNvidiaSMI = "/usr/bin/sim-nvidia-smi"
	// simMPSControl is likewise the simulated nvidia-cuda-mps-control.
	simMPSControl = "/usr/bin/sim-nvidia-cuda-mps-control"
)

// simulate makes the simulated machine, unless it is there from before, and points c at it.
func simulate(ctx context.Context, client kubernetes.Interface, o options, c *nvml.Config) (*sim.Node, error) {
	profile, err := nodeProfile(ctx, client, o)
	if err != nil {
		return nil, err
	}
	machine, err := sim.Open(o.simulateDir, profile)
	if err != nil {
		return nil, err
	}
	if err := machine.LayOut(sim.Programs{NvidiaSMI: simNvidiaSMI, MPSControl: simMPSControl}); err != nil {
		return nil, err
	}
	c.Library = machine.NVML()
	c.Sysfs = filepath.Join(machine.DriverRoot(), "sys")
	c.Proc = machine.Proc()
	c.Driver = nvml.DriverRoot{Host: machine.DriverRoot(), Here: machine.DriverRoot()}
	return machine, nil
}

// nodeProfile is the profile that the label of this node names, or else the one for nodes without the label.
func nodeProfile(ctx context.Context, client kubernetes.Interface, o options) (sim.Profile, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, o.nodeName, metav1.GetOptions{})
	if err != nil {
		return sim.Profile{}, fmt.Errorf("read the label %s of this node: %w", profileLabel, err)
	}
	name := node.Labels[profileLabel]
	if name == "" {
		name = o.simulateProfile
	}
	if name == "" {
		return sim.Profile{}, fmt.Errorf("which GPUs should be simulated? Label node %s with %s=PROFILE, or give --simulate-profile; profiles: %s",
			o.nodeName, profileLabel, strings.Join(sim.Profiles(), ", "))
	}
	return findProfile(name, o.simulateProfilesDir)
}

// findProfile looks for a profile by path, then in the directory of further ones, then among the built-in ones.
func findProfile(name, dir string) (sim.Profile, error) {
	file := name
	if !strings.Contains(name, "/") {
		file = filepath.Join(dir, name+".yaml")
		if _, err := os.Stat(file); dir == "" || errors.Is(err, fs.ErrNotExist) {
			return sim.BuiltIn(name)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return sim.Profile{}, err
	}
	profile, err := sim.ParseProfile(text)
	if err != nil {
		return sim.Profile{}, fmt.Errorf("profile %s: %w", file, err)
	}
	return profile, nil
}
