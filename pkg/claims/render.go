// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// writeSpecs writes CDI specs with what the containers of the claim need now. It returns the plan with the names of the
// CDI devices.
func (t *tx) writeSpecs() (plan sharing.Plan, err error) {
	plan.Assignments = slices.Clone(t.record.Plan.Assignments)
	var devices []cdi.Device
	for _, a := range plan.Assignments {
		access, err := t.access(a)
		if err != nil {
			return plan, err
		}
		devices = append(devices, cdi.Device{Name: cdiName(t.claim.UID, a), Access: access})
	}
	common, err := step(t, steps.FindDriverFiles, t.Toolkit.DriverAccess)
	if err != nil {
		return plan, err
	}
	driver, err := step(t, steps.WriteDriverSpec, func(context.Context) (string, error) {
		return t.Specs.WriteDriver(common)
	})
	if err != nil {
		return plan, err
	}
	names, err := step(t, steps.WriteClaimSpec, func(context.Context) ([]string, error) {
		return t.Specs.WriteClaim(t.claim.UID, devices)
	})
	for i, name := range names {
		plan.Assignments[i].CDI = []string{driver, name}
	}
	return plan, err
}

// access returns what a container needs to use the assigned device within its limits, or every GPU if it is the monitor
// device. It writes the files for that.
func (t *tx) access(a sharing.Assignment) (all gpu.Access, err error) {
	devices, err := assigned(t.inventory, a)
	if err != nil {
		return all, err
	}
	for _, d := range devices {
		access, err := step(t, steps.FindDeviceFiles, func(ctx context.Context) (gpu.Access, error) {
			return t.Toolkit.Access(ctx, d)
		})
		if err != nil {
			return all, err
		}
		all.Append(access)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
		all.Env = append(all.Env, name+"="+a.Environment[name])
	}
	limits, err := a.Isolation.Access(sharing.Host{Daemons: t.Daemons, SharedMemory: t.SharedMemory,
		PreloadDir: t.PreloadDir, MemoryLimit: func() (gpu.Access, error) {
			device, _ := t.inventory.Find(a.Device)
			return t.Toolkit.MemoryLimit(device)
		}})
	if err != nil {
		return all, fmt.Errorf("device %s: %w", a.Device, err)
	}
	all.Append(limits)
	return all, writeFiles(all.Files)
}

// assigned returns the current devices of an assignment. Error: sharing.ErrGone.
func assigned(inv inventory.Inventory, a sharing.Assignment) ([]gpu.Device, error) {
	if a.IsMonitor() {
		present := inv.Present()
		if len(present) == 0 {
			return nil, fmt.Errorf("device %s: %w", a.Device, sharing.ErrGone)
		}
		if slices.ContainsFunc(present, func(d gpu.Device) bool { return d.MIG.Capable }) {
			// for the capabilities to see partitions
			present = append(present, gpu.Device{Name: inventory.Monitor, Type: gpu.TypeMonitor})
		}
		return present, nil
	}
	device, ok := inv.Find(a.Device)
	p := a.Partition
	switch {
	case p != nil && ok && device.Partition != nil && device.Partition.Parent == a.GPU:
		device.UUID = p.UUID                    // until it is created, UUID is its name
		ok = !device.Lost || a.MakesPartition() // it may have been created again since
	case p == nil && device.UUID == a.GPU:
		ok = !device.Lost
	default:
		ok = false
	}
	if !ok {
		return nil, fmt.Errorf("device %s (%s): %w", a.Device, a.GPU, sharing.ErrGone)
	}
	return []gpu.Device{device}, nil
}

// writeFiles writes the files that mounts need. A file with the same content is left alone, because containers have it
// mounted.
func writeFiles(files []gpu.File) error {
	for _, f := range files {
		if is, err := os.ReadFile(f.Path); err == nil && bytes.Equal(is, []byte(f.Content)) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := renameio.WriteFile(f.Path, []byte(f.Content), 0o644, renameio.IgnoreUmask()); err != nil {
			return err
		}
	}
	return nil
}

// cdiName returns the name of the CDI device. It is never used again, because runtimes cache names.
func cdiName(claim types.UID, a sharing.Assignment) string {
	name := string(claim) + "-" + a.Device
	if a.ShareID != "" {
		name += "-" + string(a.ShareID)
	}
	return name
}
