// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/passthrough"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// The methods in this file implement claims.Passthrough, which says what they do.

const (
	// closedLimit is how long NVML stays closed for writes to sysfs: other calls wait for it meanwhile. It is also how
	// long a call waits for such writes.
	closedLimit = 5 * time.Second
	// returnLimit is how long ReturnVFIO waits until NVML lists the GPU again.
	returnLimit = 10 * time.Second
	pollPeriod  = 20 * time.Millisecond
	// listPeriod and longestListPeriod are the first and the longest time between two looks whether NVML lists it.
	listPeriod, longestListPeriod = 50 * time.Millisecond, time.Second
)

// bus returns the PCI bus of the machine.
func (m *Machine) bus() passthrough.Bus {
	return passthrough.Bus{Sysfs: m.Sysfs, Dev: m.Dev, Write: m.WriteSysfs}
}

// withVFIO adds to GPUs how they are given to virtual machines. It returns the GPUs that NVML does not list separately.
// If the kernel has no vfio-pci, no GPU is offered, and the IOMMU groups are not looked at; see also ContainersOnly.
func (m *Machine) withVFIO(listed []gpu.Device) (devices, unlisted []gpu.Device) {
	passable := false
	defer func() { m.watch.passable.Store(passable && !m.ContainersOnly) }()
	if !m.bus().Registered() || m.ContainersOnly && !m.bus().InUse() {
		return listed, nil
	}
	gpus, err := m.bus().GPUs()
	if err != nil {
		klog.Background().Info("GPUs are not offered to virtual machines", "err", err)
	}
	devices = slices.Clone(listed)
	for _, g := range gpus {
		if g.Group == passthrough.NoGroup {
			continue
		}
		v := &gpu.VFIO{Group: g.Group, Vendor: g.Vendor, Device: g.Device, Refusal: g.Refusal,
			Bound: g.Driver == passthrough.Driver}
		passable = passable || v.Bound || v.Refusal == ""
		for _, f := range g.Own {
			if !v.Bound {
				v.Functions = append(v.Functions, gpu.PCIFunction{PCI: f.PCI, Driver: f.Driver})
			}
		}
		at := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.PCI == g.PCI })
		if at >= 0 {
			devices[at].VFIO = v
			continue
		}
		d := gpu.Device{Type: gpu.TypeGPU, Index: -1, Minor: -1, PCI: g.PCI, VFIO: v}
		place(&d, m.Sysfs)
		unlisted = append(unlisted, d)
	}
	return devices, unlisted
}

// aer returns the errors that the kernel counts of the GPUs: NVML says nothing about one that vfio-pci has.
func (m *Machine) aer(listed, unlisted []gpu.Device) map[gpu.PCIAddress]gpu.AER {
	all := map[gpu.PCIAddress]gpu.AER{}
	for _, d := range slices.Concat(listed, unlisted) {
		if errs, ok := m.bus().AER(d.PCI); ok {
			all[d.PCI] = errs
		}
	}
	return all
}

// place sets the name, root complex and NUMA node that follow from the PCI address.
func place(d *gpu.Device, sysfs string) {
	d.Name = d.PCI.DeviceName()
	root := deviceattribute.WithFSFromRoot(sysfs)
	if found, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(d.PCI.String(), root); err == nil {
		d.PCIeRoot = *found.Value.StringValue
	}
	d.NUMANode = gpu.NoNUMANode
	if node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(d.PCI.String(), deviceattribute.ScalarAttribute,
		root); err == nil {
		d.NUMANode = int(*node.Value.IntValue)
	}
}

// VFIONodes returns the device nodes of the other kind if the machine has only those.
func (m *Machine) VFIONodes(at gpu.PCIAddress, iommufd bool) ([]gpu.DeviceNode, error) {
	return m.vfioNodes(iommufd, func(iommufd bool) ([]gpu.DeviceNode, error) { return m.bus().Nodes(at, iommufd) })
}

func (m *Machine) vfioNodes(iommufd bool, find func(iommufd bool) ([]gpu.DeviceNode, error)) ([]gpu.DeviceNode, error) {
	has := m.bus().HasIOMMUFD()
	nodes, err := find(iommufd && has)
	if err != nil && has {
		if others, errOthers := find(!iommufd); errOthers == nil {
			nodes, err = others, nil
		}
	}
	for i, n := range nodes { // the host's /dev may be mounted elsewhere here
		if m.HostDev {
			nodes[i].HostPath = n.Path
		}
	}
	return nodes, err
}

// Persistent reads the present mode.
func (m *Machine) Persistent(ctx context.Context, id gpu.UUID) (bool, error) {
	return call(ctx, m, id, func(s *session) (bool, error) {
		handle, err := s.listed(id)
		if err != nil {
			return false, err
		}
		return persistent(handle), nil
	})
}

// listed is handle, with gpu.ErrBusy for a GPU that NVML does not list: one that has just been returned.
func (s *session) listed(id gpu.UUID) (nvmllib.Device, error) {
	handle, err := s.handle(id)
	if errors.Is(err, nvmllib.ERROR_NOT_FOUND) {
		return nil, fmt.Errorf("NVML does not list it: %w: %w", gpu.ErrBusy, err)
	}
	return handle, err
}

// BindVFIO closes NVML meanwhile, because an open session keeps the kernel from unbinding the GPU. While a write of an
// earlier call still blocks, NVML stays open: it was closed when that began.
func (m *Machine) BindVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction) error {
	isBound := func(f gpu.PCIFunction) bool { return m.bus().DriverOf(f.PCI) == passthrough.Driver }
	if !slices.ContainsFunc(functions, func(f gpu.PCIFunction) bool { return !isBound(f) }) {
		return nil
	}
	if err := m.limited(ctx, func(ctx context.Context) error { return m.bus().Settled(ctx, functions) }); err != nil {
		return err
	}
	if driver := m.bus().DriverOf(functions[0].PCI); driver != "" && driver != passthrough.Driver {
		if _, err := call(ctx, m, id, func(s *session) (none, error) { return none{}, s.vacate(ctx, id) }); err != nil {
			return err
		}
	}
	return m.whileClosed(ctx, func() error {
		return m.limited(ctx, func(ctx context.Context) error {
			for _, f := range functions {
				if err := steps.Do(ctx, steps.BindVFIO, func(ctx context.Context) error {
					return m.bus().Bind(ctx, f.PCI)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// limited calls do with a context for writes to sysfs, which may block for ever.
func (*Machine) limited(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, closedLimit)
	defer cancel()
	return do(ctx)
}

// vacate makes the GPU ready to be unbound: it checks that nobody uses it, and disables MIG and persistence modes.
func (s *session) vacate(ctx context.Context, id gpu.UUID) error {
	handle, err := s.listed(id)
	if err != nil {
		return err
	}
	now := func(path string) []int { return openers(s.config.Proc)[path] }
	users := s.clients(handle)
	if len(users) == 0 { // those of clients may be old
		users = s.processNames(s.openedBy(handle, now))
	}
	if len(users) > 0 {
		return fmt.Errorf("give it to a virtual machine: used by %s: %w", strings.Join(users, ", "), gpu.ErrBusy)
	}
	if err := s.setMIG(ctx, handle, id, gpu.MIGOff); err != nil {
		return err
	}
	if err := steps.Do(ctx, steps.DisablePersistence, func(context.Context) error {
		return setPersistence(handle, nvmllib.FEATURE_DISABLED)
	}); err != nil {
		return err
	}
	// NVIDIA's persistence daemon, too, keeps the kernel from unbinding a GPU that it has open.
	if open := s.allNames(s.openedBy(handle, now)); len(open) > 0 {
		return fmt.Errorf("give it to a virtual machine: held open by %s: %w", strings.Join(open, ", "), gpu.ErrBusy)
	}
	return nil
}

func setPersistence(handle nvmllib.Device, mode nvmllib.EnableState) error {
	if now, ret := handle.GetPersistenceMode(); ret == nvmllib.SUCCESS && now != mode { // some have none
		if ret := handle.SetPersistenceMode(mode); ret != nvmllib.SUCCESS {
			return fmt.Errorf("set persistence mode: %w", ret)
		}
	}
	return nil
}

// ReturnVFIO does not wait longer than returnLimit until NVML lists the GPU: its persistence mode is then logged as not
// restored.
func (m *Machine) ReturnVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction, //nolint:revive // a flag of the record
	persistent bool) error {
	failed := steps.Do(ctx, steps.ReturnVFIO, func(ctx context.Context) error {
		return m.limited(ctx, func(ctx context.Context) error { return m.bus().Return(ctx, functions) })
	})
	switch {
	case errors.Is(failed, passthrough.ErrGone):
		return nil
	case errors.Is(failed, gpu.ErrBusy), ctx.Err() != nil:
		return failed
	}
	// A session lists the GPUs that were there when it began. If it cannot be closed now, a later one finds the GPU.
	err := m.whileClosed(ctx, func() error { return nil })
	if err != nil && !errors.Is(err, gpu.ErrBusy) {
		return errors.Join(failed, err)
	}
	if failed != nil || !persistent { // the GPU may be back, and another function of its card not
		return failed
	}
	return steps.Do(ctx, steps.EnablePersistence, func(ctx context.Context) error {
		err := m.restorePersistence(ctx, id)
		if errors.Is(err, gpu.ErrBusy) {
			klog.FromContext(ctx).Info("GPU comes back from a virtual machine without its persistence mode", "uuid", id,
				"err", err)
			return nil
		}
		return err
	})
}

// restorePersistence waits until NVML lists the GPU. Error: gpu.ErrBusy.
func (m *Machine) restorePersistence(ctx context.Context, id gpu.UUID) error {
	pause := listPeriod
	for until := time.Now().Add(returnLimit); ; pause = min(2*pause, longestListPeriod) {
		_, err := call(ctx, m, id, func(s *session) (none, error) {
			handle, err := s.listed(id)
			if err != nil {
				return none{}, err
			}
			return none{}, setPersistence(handle, nvmllib.FEATURE_ENABLED)
		})
		if !errors.Is(err, gpu.ErrBusy) || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
		time.Sleep(pause)
		if err := m.whileClosed(ctx, func() error { return nil }); err != nil {
			return err
		}
	}
}

// whileClosed closes NVML for do, for closedLimit at most: do may go on after that. Other calls wait for it. Error:
// gpu.ErrBusy if a call of this program does not return, so that NVML stays open.
func (m *Machine) whileClosed(ctx context.Context, do func() error) error {
	done, err := m.close(ctx, do)
	if err != nil {
		return err
	}
	return <-done
}

// close closes NVML, begins do, and lets NVML be opened again when do has ended, or after closedLimit.
func (m *Machine) close(ctx context.Context, do func() error) (done chan error, err error) {
	if m.calls.anyHangs() {
		return nil, errStaysOpen
	}
	m.giving.Lock() // one after the other
	defer m.giving.Unlock()
	m.watch.stayOut(true)
	defer m.watch.stayOut(false)
	m.leaveWatch() // other calls go on until the watcher has left
	m.opening.Lock()
	defer m.opening.Unlock()
	if err := m.awaitClosed(ctx); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	done = make(chan error, 1)
	go func() {
		defer close(ended)
		done <- do()
	}()
	select {
	case <-ended:
	case <-time.After(closedLimit):
	}
	return done, nil
}

// errStaysOpen means that NVML cannot be closed.
var errStaysOpen = fmt.Errorf("used by this program, of which a call of NVML does not return: %w", gpu.ErrBusy)

// awaitClosed closes the session, and waits until no session is left, also of those that were closed before and have
// calls that run. No other one can be opened meanwhile.
func (m *Machine) awaitClosed(ctx context.Context) error {
	if err := m.Close(); err != nil {
		return err
	}
	for until := time.Now().Add(closedLimit); ; time.Sleep(pollPeriod) {
		m.mu.Lock()
		left := m.initialised
		m.mu.Unlock()
		switch {
		case left == 0:
			return nil
		case ctx.Err() != nil, time.Now().After(until):
			return errStaysOpen
		}
	}
}
