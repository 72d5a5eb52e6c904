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
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// writeSpecs writes CDI specs with what the containers of the claim need now. It returns the names of the CDI devices
// for each assignment.
func (p *Preparer) writeSpecs(ctx context.Context, inv inventory.Inventory, rec checkpoint.Record) (names [][]string,
	err error) {
	var devices []cdi.Device
	for _, a := range rec.Plan.Assignments {
		access, err := p.render(ctx, inv, a)
		if err != nil {
			return nil, err
		}
		devices = append(devices, cdi.Device{Name: cdiName(rec.Claim.UID, a), Access: access})
	}
	var common gpu.Access
	if err := steps.Do(ctx, steps.FindDriverFiles, func(ctx context.Context) (err error) {
		common, err = p.Toolkit.DriverAccess(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	var driver string
	if err := steps.Do(ctx, steps.WriteDriverSpec, func(context.Context) (err error) {
		driver, err = p.Specs.WriteDriver(common)
		return err
	}); err != nil {
		return nil, err
	}
	err = steps.Do(ctx, steps.WriteClaimSpec, func(context.Context) error {
		own, err := p.Specs.WriteClaim(rec.Claim.UID, devices)
		for _, name := range own {
			names = append(names, []string{driver, name})
		}
		return err
	})
	return names, err
}

// render returns what a container needs to use the assigned device within its limits.
func (p *Preparer) render(ctx context.Context, inv inventory.Inventory, a sharing.Assignment) (gpu.Access, error) {
	access, err := p.access(ctx, inv, a)
	if err != nil {
		return gpu.Access{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
		access.Env = append(access.Env, name+"="+a.Environment[name])
	}
	limits, err := a.Isolation.Access(sharing.Host{Daemons: p.Daemons, SharedMemory: p.SharedMemory,
		PreloadDir: p.PreloadDir,
		MemoryLimit: func() (gpu.Access, error) {
			device, _ := inv.Find(a.Device)
			return p.Toolkit.MemoryLimit(device)
		}})
	if err != nil {
		return gpu.Access{}, fmt.Errorf("device %s: %w", a.Device, err)
	}
	access.Append(limits)
	return access, writeFiles(access.Files)
}

// access returns what a container needs for the assigned device, or for every GPU if it is the monitor device.
func (p *Preparer) access(ctx context.Context, inv inventory.Inventory, a sharing.Assignment) (gpu.Access, error) {
	devices, err := assigned(inv, a)
	if err != nil {
		return gpu.Access{}, err
	}
	var all gpu.Access
	for _, d := range devices {
		if err := steps.Do(ctx, steps.FindDeviceFiles, func(ctx context.Context) error {
			access, err := p.Toolkit.Access(ctx, d)
			all.Append(access)
			return err
		}); err != nil {
			return gpu.Access{}, err
		}
	}
	return all, nil
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
