// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/app"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

const (
	// profileLabel is the node label that names the profile of the simulated GPUs.
	profileLabel = "gpu.nvidia.com/sim-profile"
	// rackLabel is the node label that names the rack whose NVLink fabric the simulated GPUs are in.
	rackLabel = "gpu.nvidia.com/sim-rack"
	// nvidiaSMI and mpsControl are the simulated programs of NVIDIA's driver in the image.
	nvidiaSMI  = "/usr/bin/sim-nvidia-smi"
	mpsControl = "/usr/bin/sim-nvidia-cuda-mps-control"
)

// simulation is the platform of simulated GPUs.
type simulation struct {
	dir, profile, profilesDir string // for the plugin
	localDir                  string // for check and record
}

var _ app.Platform = &simulation{}

// Flags define where the simulated GPUs are and their profile.
func (s *simulation) Flags() (plugin, tools *pflag.FlagSet) {
	plugin, tools = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	plugin.StringVar(&s.dir, "simulate-dir", simulator.DefaultDir,
		"directory of the simulated GPUs, the same path on the host")
	plugin.StringVar(&s.profile, "simulate-profile", "",
		"profile of a node without the label "+profileLabel+": a name, or the path of a YAML file")
	plugin.StringVar(&s.profilesDir, "simulate-profiles-dir", "", "directory with further profiles, NAME.yaml")
	tools.StringVar(&s.localDir, "simulate-dir", simulator.DefaultDir, "directory of the simulated GPUs")
	return plugin, tools
}

// Open creates the simulated machine unless it exists.
func (s *simulation) Open(ctx context.Context, client kubernetes.Interface, node string) (app.Machine, error) {
	machine, err := s.machine(ctx, client, node)
	if err != nil {
		return app.Machine{}, err
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // of a node of test/cluster, too
	if err == nil {
		err = machine.Boot(strings.TrimSpace(string(bootID)))
	}
	if err != nil {
		return app.Machine{}, err
	}
	if err := machine.LayOut(simulator.Programs{NvidiaSMI: nvidiaSMI, MPSControl: mpsControl}); err != nil {
		return app.Machine{}, err
	}
	return app.Machine{MachineConfig: config(machine), Observers: []steps.Observer{machine.Crashes()}}, nil
}

// machine returns the simulated machine of the node's profile. While the API server does not answer, an existing
// machine stays as it is: real GPUs do not need the API server, either.
func (s *simulation) machine(ctx context.Context, client kubernetes.Interface, node string) (*simulator.Node, error) {
	profile, err := s.nodeProfile(ctx, client, node)
	if errors.Is(err, errNoAnswer) {
		if machine, missing := simulator.Attach(s.dir); missing == nil {
			klog.FromContext(ctx).Info("The simulated GPUs stay as they are", "cause", err)
			return machine, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return simulator.Open(s.dir, profile)
}

// Attach returns the simulated machine in the directory.
func (s *simulation) Attach() (nvml.MachineConfig, error) {
	machine, err := simulator.Attach(s.localDir)
	if err != nil {
		return nvml.MachineConfig{}, err
	}
	return config(machine), nil
}

func config(machine *simulator.Node) nvml.MachineConfig {
	root := machine.DriverRoot()
	return nvml.MachineConfig{Library: machine.NVML(), Sysfs: filepath.Join(root, "sys"),
		WriteSysfs: machine.WriteSysfs, Dev: filepath.Join(root, "dev"), Proc: machine.Proc(),
		Driver: driverroot.Root{Host: root, Here: root}}
}

// errNoAnswer means that the API server did not answer.
var errNoAnswer = errors.New("no answer of the API server")

// nodeProfile returns the profile in the label of this node, otherwise the default one, in the rack of the other label.
// Error: errNoAnswer.
func (s *simulation) nodeProfile(ctx context.Context, client kubernetes.Interface, nodeName string) (hwprofile.Profile,
	error) {
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if err != nil {
		return hwprofile.Profile{}, fmt.Errorf("read the label %s of this node: %w", profileLabel, err)
	}
	name := node.Labels[profileLabel]
	if name == "" {
		name = s.profile
	}
	if name == "" {
		return hwprofile.Profile{}, fmt.Errorf("which GPUs should be simulated? Label node %s with %s=PROFILE, or "+
			"give --simulate-profile; profiles: %s",
			nodeName, profileLabel, strings.Join(simulator.Profiles(), ", "))
	}
	profile, err := simulator.FindProfile(name, s.profilesDir)
	if rack := node.Labels[rackLabel]; rack != "" && err == nil {
		if profile, err = profile.InRack(rack); err != nil {
			return hwprofile.Profile{}, fmt.Errorf("label %s=%s of node %s: %w", rackLabel, rack, nodeName, err)
		}
	}
	return profile, err
}
