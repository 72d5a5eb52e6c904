// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// useWhole gives the whole GPU: the claim itself says how its containers share it.
func (a *Assignment) useWhole(s api.Sharing, groups []mpsGroup) error {
	switch {
	case s.TimeSlicing != nil:
		a.Settings = timeSlices(*s.TimeSlicing)
	case s.MPS != nil:
		return a.joinGroup(groups)
	}
	return nil
}

// usePartition gives a partition: hardware walls keep it apart from the others, and the claim itself says how its containers share it.
func (a *Assignment) usePartition(s api.Sharing, groups []mpsGroup) error {
	switch {
	case s.TimeSlicing != nil:
		a.Unsliced = true
	case s.MPS != nil:
		return a.joinGroup(groups)
	}
	return nil
}

// useFraction gives as much as was asked for, kept apart from the others as the administrator wants. The claim may do without.
func (a *Assignment) useFraction(r allocation.Result, d gpu.Device) error {
	if d.Use.Sharing != gpu.Fractional {
		return fmt.Errorf("was allocated as a share, and is %s by now; delete the pod, so that it is scheduled anew: %w", d.Use, ErrRefused)
	}
	a.Share = &Share{Memory: r.Consumed.Memory, Cores: r.Consumed.Cores}
	s := r.Config.Sharing
	switch {
	case s.TimeSlicing != nil:
		a.Settings = timeSlices(*s.TimeSlicing)
		a.Unenforced = true
		return nil
	case s.MPS != nil && d.Use.Isolation != gpu.IsolationMPS:
		return fmt.Errorf("sharing.strategy MPS: the administrator has chosen isolation %s for shares of this GPU: %w", d.Use.Isolation, ErrRefused)
	case s.MPS != nil && s.MPS.Limits():
		return fmt.Errorf("sharing.mpsConfig: the limits of a share are what its request asks for in capacity.requests; leave the default limits out: %w", ErrRefused)
	}
	l := limits{memory: r.Consumed.Memory, cores: r.Consumed.Cores}
	if l.memory >= inventory.Memory(d) {
		l.memory = 0
	}
	return a.enforce(l, d)
}

// useReplica gives an equal part, kept apart from the others as the administrator wants.
func (a *Assignment) useReplica(r allocation.Result, d gpu.Device) error {
	n, all := r.Consumed.Replicas, d.Use.Replicas
	if d.Use.Sharing != gpu.Replicated || all < 1 {
		return fmt.Errorf("was allocated as a replica, and is %s by now; delete the pod, so that it is scheduled anew: %w", d.Use, ErrRefused)
	}
	a.Share = &Share{Replicas: n}
	s := r.Config.Sharing
	if s.MPS != nil {
		return fmt.Errorf("sharing.strategy MPS: how the replicas of this GPU are kept apart is up to the administrator (isolation %s): %w", d.Use.Isolation, ErrRefused)
	}
	if s.TimeSlicing != nil && d.Use.Isolation != gpu.IsolationNone {
		return fmt.Errorf("sharing.strategy TimeSlicing: the administrator has chosen isolation %s for the replicas of this GPU: %w", d.Use.Isolation, ErrRefused)
	}
	if s.TimeSlicing != nil {
		a.Settings = timeSlices(*s.TimeSlicing)
		return nil
	}
	return a.enforce(replicas(n, d), d)
}

// replicas are the limits of n of the equal parts into which the device is divided.
func replicas(n int, d gpu.Device) limits {
	all := d.Use.Replicas
	return limits{
		memory: inventory.Memory(d) / uint64(all) * uint64(n) / mib * mib,
		cores:  max(1, 100*n/all),
	}
}

// allowsReplica refuses a second replica for a claim where the administrator allows one.
func (p Plan) allowsReplica(a Assignment, inv inventory.Inventory) error {
	d, _ := inv.Find(a.Device)
	replicas := func(a Assignment) bool { return a.Share != nil && a.Share.Replicas > 0 }
	if replicas(a) && d.Use.OnePerClaim && (a.Share.Replicas > 1 || slices.ContainsFunc(p.Assignments, replicas)) {
		return fmt.Errorf("device %s: the administrator allows one replica for a claim: %w", a.Device, ErrRefused)
	}
	return nil
}

const mib = 1 << 20

// limits are what a container may use of a GPU; 0: no limit.
type limits struct {
	memory uint64 // bytes
	cores  int    // percent
}

// enforce keeps the containers of a share within limits.
func (a *Assignment) enforce(l limits, d gpu.Device) error {
	switch d.Use.Isolation {
	case gpu.IsolationMPS:
		a.Settings = gpu.Settings{Mode: gpu.ExclusiveProcess}
		a.MPS = &Client{Daemon: d.Name, GPUs: []gpu.UUID{d.UUID}, ThreadPercentage: l.cores, Memory: []uint64{l.memory}, MultiUser: true}
	case gpu.IsolationHook:
		a.Hook = &Hook{Library: d.Use.Hook.Path, Memory: l.memory, Cores: l.cores}
	case gpu.IsolationCgroup:
		if l.cores != 0 {
			return fmt.Errorf("cores: isolation cgroup limits memory only; ask for memory alone: %w", ErrRefused)
		}
		a.Cgroup = &Cgroup{Memory: l.memory}
	case gpu.IsolationNone:
	}
	return nil
}

func timeSlices(t api.TimeSlicing) gpu.Settings {
	if t.Interval == api.DefaultInterval {
		return gpu.Settings{}
	}
	return gpu.Settings{Interval: gpu.Interval(t.Interval)}
}

// Hook keeps a container within limits by a library that intercepts its CUDA calls. Its variables are those of HAMi-core
// (github.com/Project-HAMi/HAMi-core, README).
type Hook struct {
	Library string `json:"library"`          // on the host
	Memory  uint64 `json:"memory,omitempty"` // bytes; 0: no limit
	Cores   int    `json:"cores,omitempty"`  // percent; 0: no limit
}

// Env are the variables of the limits.
func (h Hook) Env() []string {
	var env []string
	if h.Memory != 0 {
		env = append(env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dm", h.Memory/mib))
	}
	if h.Cores != 0 {
		env = append(env, fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", h.Cores))
	}
	return env
}

// Cgroup keeps a container within limits by the driver itself (R615 and newer, cgroup v2), which NVIDIA's hook
// apply-cuda-memory-limits tells by a variable.
type Cgroup struct {
	Memory uint64 `json:"memory,omitempty"` // bytes; 0: no limit
}

// Env is the variable of the limit.
func (c Cgroup) Env() []string {
	if c.Memory == 0 {
		return nil
	}
	return []string{fmt.Sprintf("NVIDIA_GPU_MEMORY_LIMIT=%d", c.Memory/mib)}
}
