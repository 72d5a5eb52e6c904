// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Client is how a container uses its GPUs through an MPS daemon, and within which limits.
type Client struct {
	Daemon           string     `json:"daemon"` // its ID
	GPUs             []gpu.UUID `json:"gpus"`   // of the daemon, in the order in which the client counts them
	ThreadPercentage int        `json:"threadPercentage,omitempty"`
	Memory           []uint64   `json:"memory,omitempty"` // bytes of each GPU; 0: no limit
	MultiUser        bool       `json:"multiUser,omitempty"`
}

// Env are the variables of the limits, by the index of the GPU among those of the daemon.
func (c Client) Env() []string {
	var env, memory []string
	if c.ThreadPercentage != 0 {
		env = append(env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", c.ThreadPercentage))
	}
	for i, bytes := range c.Memory {
		if bytes != 0 {
			memory = append(memory, fmt.Sprintf("%d=%dM", i, bytes/mib))
		}
	}
	if len(memory) > 0 {
		env = append(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+strings.Join(memory, ","))
	}
	return env
}

// DaemonIDs are the MPS daemons that the plan's containers use, sorted.
func (p Plan) DaemonIDs() []string {
	var ids []string
	for _, a := range p.Assignments {
		if a.MPS != nil {
			ids = append(ids, a.MPS.Daemon)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Daemons are those of the MPS daemons that any of the holders uses, as they have to be for all of them, sorted by ID: a client can
// lower the limits of its daemon and not raise them, so those are the highest of all clients.
func Daemons(ids []string, holders []Holder) []mps.Daemon {
	daemons := map[string]mps.Daemon{}
	for _, h := range holders {
		for _, a := range h.Plan.Assignments {
			if a.MPS != nil && slices.Contains(ids, a.MPS.Daemon) {
				daemons[a.MPS.Daemon] = merge(daemons[a.MPS.Daemon], *a.MPS)
			}
		}
	}
	return slices.SortedFunc(maps.Values(daemons), func(a, b mps.Daemon) int { return strings.Compare(a.ID, b.ID) })
}

// merge is the daemon with one client more.
func merge(d mps.Daemon, c Client) mps.Daemon {
	first := d.ID == ""
	out := mps.Daemon{ID: c.Daemon, GPUs: c.GPUs, MultiUser: d.MultiUser || c.MultiUser, Memory: map[gpu.UUID]uint64{}}
	if c.ThreadPercentage != 0 && (first || d.ThreadPercentage != 0) {
		out.ThreadPercentage = max(d.ThreadPercentage, c.ThreadPercentage)
	}
	for i, id := range c.GPUs {
		if i < len(c.Memory) && c.Memory[i] != 0 && (first || d.Memory[id] != 0) {
			out.Memory[id] = max(d.Memory[id], c.Memory[i])
		}
	}
	return out
}

// Settings are what each physical GPU of the plan has to be set to for all who hold a part of it: they agree, or NewPlan would have
// refused the last of them. A GPU that nobody holds any more is as it came from the factory.
func Settings(gpus []gpu.UUID, holders []Holder) map[gpu.UUID]gpu.Settings {
	out := map[gpu.UUID]gpu.Settings{}
	for _, id := range gpus {
		out[id] = gpu.Settings{}
	}
	for _, h := range holders {
		for _, a := range h.Plan.Assignments {
			if _, wanted := out[a.GPU]; wanted && a.sets() {
				out[a.GPU] = a.Settings
			}
		}
	}
	return out
}

// sets says whether the assignment decides how the physical GPU is shared in time. A partition does not: its GPU has no users.
func (a Assignment) sets() bool { return a.Partition == nil && a.ChangesHardware() }

// Changed are the physical GPUs whose settings the plan decides, sorted.
func (p Plan) Changed() []gpu.UUID {
	var ids []gpu.UUID
	for _, a := range p.Assignments {
		if a.sets() {
			ids = append(ids, a.GPU)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// mpsGroup is the whole GPUs of a claim that the same configuration puts under one MPS daemon, or one partition: a process of CUDA
// uses one partition only.
type mpsGroup struct {
	config  api.MPS
	devices []gpu.Device
	client  Client
	err     error
}

// mpsGroups finds them, in the order of the claim.
func mpsGroups(results []allocation.Result, inv inventory.Inventory) []mpsGroup {
	var groups []mpsGroup
	for _, r := range results {
		d, ok := inv.Find(r.Device)
		kind := kindOf(r, d)
		if !ok || r.AdminAccess || r.Config.Sharing.MPS == nil || kind != whole && kind != partition {
			continue
		}
		i := slices.IndexFunc(groups, func(g mpsGroup) bool {
			return g.devices[0].Partition == nil && reflect.DeepEqual(g.config, *r.Config.Sharing.MPS)
		})
		if i < 0 || kind == partition {
			i, groups = len(groups), append(groups, mpsGroup{config: *r.Config.Sharing.MPS})
		}
		groups[i].devices = append(groups[i].devices, d)
	}
	for i := range groups {
		groups[i].client, groups[i].err = groups[i].newClient()
	}
	return groups
}

// newClient applies the limits of the configuration to the devices. Error: ErrRefused.
func (g mpsGroup) newClient() (Client, error) {
	c := Client{Daemon: g.devices[0].Name, ThreadPercentage: g.config.ThreadPercentage, MultiUser: g.config.MultiUser}
	known := map[string]bool{}
	for i, d := range g.devices {
		limit := g.config.Memory
		for _, key := range []string{fmt.Sprint(i), string(d.UUID)} {
			known[key] = true
			if own, given := g.config.MemoryPerDevice[key]; given {
				limit = own
			}
		}
		if limit > d.Memory {
			return Client{}, fmt.Errorf("sharing.mpsConfig: a memory limit of %s is more than device %s has (%s): %w",
				quantity(limit), d.Name, quantity(d.Memory), ErrTooLarge)
		}
		c.GPUs = append(c.GPUs, d.UUID)
		c.Memory = append(c.Memory, limit)
	}
	for _, key := range slices.Sorted(maps.Keys(g.config.MemoryPerDevice)) {
		if !known[key] {
			return Client{}, fmt.Errorf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[%s]: the configuration is for %d devices; "+
				"name them by index, from 0, or by UUID: %w", key, len(g.devices), ErrRefused)
		}
	}
	return c, nil
}

// joinGroup makes the assignment one of its group.
func (a *Assignment) joinGroup(groups []mpsGroup) error {
	for _, g := range groups {
		if slices.ContainsFunc(g.devices, func(d gpu.Device) bool { return d.Name == a.Device }) {
			client := g.client
			a.MPS = &client
			if a.Partition == nil {
				a.Settings = gpu.Settings{Mode: gpu.ExclusiveProcess}
			}
			return g.err
		}
	}
	return nil
}
