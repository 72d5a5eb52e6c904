// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// mpsGroup is the devices of a claim that share an MPS daemon: the whole GPUs with the same configuration, or one
// partition, because a CUDA process uses one partition only.
type mpsGroup struct {
	config  api.MPS
	devices []gpu.Device
	client  MPSClient
	err     error
}

// mpsGroups returns the MPS groups of the results, in the order of the claim.
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

// newClient applies the limits of the configuration to the devices. Errors: ErrTooLarge, ErrRefused.
func (g mpsGroup) newClient() (MPSClient, error) {
	c := MPSClient{Daemon: g.devices[0].Name, ThreadPercentage: g.config.ThreadPercentage,
		MultiUser: g.config.MultiUser}
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
			return MPSClient{}, refuseField(ErrTooLarge, "sharing.mpsConfig", "",
				"a memory limit of %s is more than device %s has (%s)",
				quantity(limit), d.Name, quantity(d.Memory))
		}
		c.GPUs = append(c.GPUs, d.UUID)
		c.Memory = append(c.Memory, limit)
	}
	for _, key := range slices.Sorted(maps.Keys(g.config.MemoryPerDevice)) {
		if !known[key] {
			return MPSClient{}, refuseField(ErrRefused, "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["+key+"]",
				"",
				"the configuration is for %d devices; name them by index, from 0, or by UUID", len(g.devices))
		}
	}
	return c, nil
}

// joinGroup makes the assignment a client of its group's daemon.
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
