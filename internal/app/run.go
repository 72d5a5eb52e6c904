// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
	"github.com/gpudra/gpu-dra-driver/internal/check/host"
	"github.com/gpudra/gpu-dra-driver/internal/plugin"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/kubelet"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/toolkit"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/tmpfs"
)

// preloadDir has files that make containers load a hook library, below the plugin's directory.
const preloadDir = "preload"

// bootIDFile has a new content after each boot (proc(5)).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// run builds the plugin and runs it until ctx ends.
func run(ctx context.Context, o options, p Platform) error {
	api, err := apiserver.Config(o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return err
	}
	instance, err := plugin.Enter(o.pluginDir)
	if err != nil {
		return err
	}
	hooks, err := installHooks(ctx, o)
	if err != nil {
		return err
	}
	records, err := checkpoint.Open(o.pluginDir)
	if err != nil {
		return fmt.Errorf("open the records of claims: %w", err)
	}
	specs, err := cdi.NewSpecs(o.driverName, o.cdiDir)
	if err != nil {
		return err
	}
	bootID, err := os.ReadFile(bootIDFile)
	if err != nil {
		return err
	}
	defer instance.Leave(ctx, records, func() error {
		return errors.Join(specs.RemoveDriver(), removeHooks(o), records.Remove(),
			os.RemoveAll(filepath.Join(o.pluginDir, preloadDir)))
	})
	machine, err := p.Open(ctx, client, o.nodeName)
	if err != nil {
		return err
	}
	machine.Timeout, machine.ContainersOnly = o.gpuTimeout, !o.virtualMachines
	machine.CgroupV1 = host.CgroupVersion("/sys/fs/cgroup") != 2
	gpus := nvml.New(machine.MachineConfig)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var requests types.NamespacedName
	requests.Namespace, requests.Name, _ = strings.Cut(o.partitionRequests, "/")
	node := plugin.Plugin{
		Sockets: kubelet.Sockets{
			DriverName:  o.driverName,
			NodeName:    o.nodeName,
			PodUID:      types.UID(o.podUID),
			PluginDir:   o.pluginDir,
			RegistryDir: o.registryDir,
			CDIDir:      o.cdiDir,
			Client:      client,
		},
		PodResources: o.podResources,
		HTTPAddress:  o.httpAddress,
		SweepPeriod:  o.sweepPeriod,
		NodeConfigs:  o.nodeConfigs,
		Preparer: claims.Preparer{
			BootID:      strings.TrimSpace(string(bootID)),
			Hardware:    gpus,
			Passthrough: gpus,
			Toolkit: &toolkit.Toolkit{NVML: gpus, Driver: machine.Driver, Proc: machine.Proc, HookPath: hooks.each,
				CombinedHookPath: hooks.combined},
			Specs:        specs,
			Records:      records,
			Daemons:      mps.Below(o.pluginDir),
			DaemonMemory: uint64(o.daemonMemory.Value()),
			LocalIPC: claims.LocalIPC{Dir: filepath.Join(o.pluginDir, plugin.LocalIPCDir),
				Size: uint64(o.localIPC.Value()), Mount: tmpfs.Mount, Unmount: tmpfs.Unmount},
			PreloadDir: filepath.Join(o.pluginDir, preloadDir),
		},
		Observers: machine.Observers,

		Machine:           restarting{gpus, end},
		ContainerUsage:    o.metricsContainerUsage,
		VirtualMachines:   o.virtualMachines,
		WithoutMonitor:    !o.monitorDevice,
		PartitionRequests: requests,
		RuntimeProblems:   func(version string) []string { return runtimeProblems(version, o.cdiDir) },
		GPUManagerNames:   o.metricsGPUManagerNames,
		Proc:              "/proc",
		IdleAfter:         o.idleAfter,
		IdleBelow:         o.idleBelow,
	}
	if machine.SharedMemory != "" {
		node.Preparer.SharedMemory = filepath.Join(machine.SharedMemory, o.driverName)
	}
	return node.Run(ctx)
}

// restarting are GPUs that end the plugin when the driver was replaced: the kubelet starts the container again.
type restarting struct {
	*nvml.Machine
	end context.CancelCauseFunc
}

// Discover implements node.Machine.
func (r restarting) Discover(ctx context.Context) (gpu.Discovery, error) {
	found, err := r.Machine.Discover(ctx)
	if errors.Is(err, nvml.ErrDriverReplaced) {
		r.end(err)
	}
	return found, err
}

// runtimeProblems returns the problems of a container runtime that follow from its version.
func runtimeProblems(version, cdiDir string) []string {
	var all []string
	for _, p := range host.RuntimeProblems("", version, cdiDir) {
		what := p.What
		if p.ID == host.CDIOff.ID { // its configuration is not known here
			what = version + " has CDI off unless its configuration says otherwise"
		}
		all = append(all, what+": "+p.Remedy)
	}
	return all
}
