// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// mpsGroup is the devices of a claim that share an MPS daemon: the whole GPUs with equal configurations, or one
// partition, because a CUDA process uses one partition only.
type mpsGroup struct {
	devices []gpu.Device
	rules   []*mpsRule // the one of each device
	client  MPSClient
	errs    []error // of each device
}

// mpsRule is one configuration and the devices that it rules, in the order of the claim. Devices with admin access are
// not among them.
type mpsRule struct {
	config  *api.MPS
	devices []gpu.Device
}

// mpsGroups returns the MPS groups of the results, in the order of the claim.
func mpsGroups(results []allocation.Result, inv inventory.Inventory) []mpsGroup {
	var groups []mpsGroup
	rules := map[*api.MPS]*mpsRule{}
	for _, r := range results {
		d, ok := inv.Find(r.Device)
		kind, config := kindOf(r, d), r.Config.Sharing.MPS
		if !ok || r.AdminAccess || config == nil || kind != whole && kind != partition {
			continue
		}
		i := slices.IndexFunc(groups, func(g mpsGroup) bool {
			return g.devices[0].Partition == nil && reflect.DeepEqual(g.rules[0].config, config)
		})
		if i < 0 || kind == partition {
			i, groups = len(groups), append(groups, mpsGroup{})
		}
		if rules[config] == nil {
			rules[config] = &mpsRule{config: config}
		}
		rules[config].devices = append(rules[config].devices, d)
		groups[i].devices = append(groups[i].devices, d)
		groups[i].rules = append(groups[i].rules, rules[config])
	}
	for i := range groups {
		groups[i].addClient()
	}
	return groups
}

// addClient sets client and errs.
func (g *mpsGroup) addClient() {
	config := g.rules[0].config
	g.client = MPSClient{Daemon: g.devices[0].Name, ThreadPercentage: config.ThreadPercentage,
		MultiUser: config.MultiUser}
	for i, d := range g.devices {
		limit, err := g.rules[i].memoryLimit(d)
		g.client.GPUs = append(g.client.GPUs, d.UUID)
		g.client.Memory = append(g.client.Memory, limit)
		g.errs = append(g.errs, err)
	}
}

// memoryLimit returns the limit of a client's memory on one of the devices. As in NVIDIA's driver, an index counts only
// the devices of this configuration; here in the order of the claim, because UUIDs are not known beforehand. Errors:
// ErrTooLarge, ErrRefused.
func (r mpsRule) memoryLimit(of gpu.Device) (uint64, error) {
	limit := r.config.Memory
	known := map[string]bool{}
	for i, d := range r.devices {
		for _, key := range []string{strconv.Itoa(i), string(d.UUID)} {
			known[key] = true
			if own, given := r.config.MemoryPerDevice[key]; given && d.Name == of.Name {
				limit = own
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.config.MemoryPerDevice)) {
		if !known[key] {
			return 0, refuseField(ErrRefused, "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["+key+"]", "",
				"the configuration is for %d devices; name them by index, from 0, or by UUID", len(r.devices))
		}
	}
	if limit > of.Memory {
		return 0, refuseField(ErrTooLarge, "sharing.mpsConfig", "",
			"a memory limit of %s is more than device %s has (%s)",
			quantity(limit), of.Name, quantity(of.Memory))
	}
	return limit, nil
}

// joinGroup makes the assignment a client of its group's daemon.
func (a *Assignment) joinGroup(groups []mpsGroup) error {
	for _, g := range groups {
		if i := slices.IndexFunc(g.devices, func(d gpu.Device) bool { return d.Name == a.Device }); i >= 0 {
			if g.devices[i].Guest != nil {
				return refuseField(ErrRefused, "sharing.strategy", "MPS", "it is a vGPU, and the driver uses no MPS "+
					"there, because NVIDIA does not say that it works; leave the strategy out")
			}
			client := g.client
			a.MPS = &client
			a.Unenforced = len(client.limits()) > 0 && !g.devices[i].Product.MPSLimits()
			if a.Partition == nil {
				a.Settings = gpu.Settings{Mode: gpu.ExclusiveProcess}
			}
			return g.errs[i]
		}
	}
	return nil
}
