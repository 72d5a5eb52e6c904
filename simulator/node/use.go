// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// useName is the file that every process with NVML open holds a shared lock of. The kernel releases the lock of a
// process that ends. vfioName and a PCI address are the same for a GPU that vfio-pci has.
const (
	useName  = "nvml.lock"
	vfioName = "vfio.lock-"
)

// Use records that this process has NVML open, until release is called. Without access to the directory of the node,
// it records nothing.
func (n *Node) Use() (release func()) { return n.use(useName) }

// UseVFIO records that this process has the GPU at the address open through VFIO, as a hypervisor has, until release is
// called.
func (n *Node) UseVFIO(at string) (release func()) { return n.use(vfioName + at) }

func (n *Node) use(lock string) (release func()) {
	nothing := func() {}
	if n.dir == "" {
		return nothing
	}
	f, err := os.OpenFile(filepath.Join(n.dir, lock), os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return nothing
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		_ = f.Close()
		return nothing
	}
	return func() { _ = f.Close() }
}

// unused runs f while no process has the lock. If one has, it returns ERROR_IN_USE.
func (n *Node) unused(name string, f func() error) error {
	if n.dir == "" {
		return fmt.Errorf("change %s: it was attached to be read only", n.library)
	}
	lock, err := os.OpenFile(filepath.Join(n.dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock
	err = flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return refuse(hwprofile.InUse, "in use by another client: a process has NVML open")
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return f()
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Reset resets the GPU as nvidia-smi --gpu-reset does. It is then as after a reboot, except for injected faults and
// for what a reset does not mend. While a process has NVML open or uses the GPU, it returns ERROR_IN_USE.
func (n *Node) Reset(which string) error {
	return n.unused(useName, func() error {
		return n.change(which, func(c GPU, s *GPUState) error {
			switch {
			case n.last.Unloaded:
				return refuse(hwprofile.DriverNotLoaded, "%s cannot be reset: the driver is not loaded", c.Name)
			case s.Unplugged:
				return refuse(hwprofile.LostGPU, "%s is off the bus", c.Name)
			}
			if err := c.idle(); err != nil {
				return err
			}
			*s = c.restarted()
			return nil
		})
	})
}

// idle returns ERROR_IN_USE if a process uses the GPU or one of its partitions, or the GPU has vGPUs.
func (c GPU) idle() error {
	if all := c.allProcesses(); len(all) > 0 {
		return refuse(hwprofile.InUse, "%s is in use by another client: process %d %s", c.Name, all[0].PID, all[0].Name)
	}
	if len(c.State.VGPUs) > 0 {
		return refuse(hwprofile.InUse, "%s has vGPUs", c.Name)
	}
	return nil
}

// restarted is the state of the GPU after a reboot. Injected faults and what a reset does not mend stay.
func (c GPU) restarted() GPUState {
	fresh := factoryState(c.GPU)
	fresh.Faults, fresh.Delays, fresh.MPS, fresh.Added = c.State.Faults, c.State.Delays, c.State.MPS, c.State.Added
	fresh.Minor, fresh.Binding, fresh.Sound = c.State.Minor, c.State.Binding, c.State.Sound
	fresh.AER, fresh.License = c.State.AER, c.State.License
	fresh.setHealth(c.Health().restarted())
	fresh.setMIG(c.GPU, c.afterStart(c.MIG()))
	return fresh
}

// booted is the state of the GPU when the machine has booted: restarted, with the drivers that know its card.
func (c GPU) booted() GPUState {
	fresh := c.restarted()
	fresh.Binding, fresh.Sound, fresh.AER = nil, nil, AER{}
	return fresh
}

// Reboot is what a reboot of the machine does to its GPUs, also to unplugged ones. The caller lays out the driver root
// afterwards.
func (n *Node) Reboot() error {
	return n.Change(func(s *State) error {
		for _, c := range n.last.present() {
			s.GPUs[c.entry] = c.booted()
		}
		s.Unloaded = false
		return nil
	})
}

// bootFile has the ID of the boot in which the GPUs are. It is none of the state, whose format older programs read.
const bootFile = "boot_id"

// Boot is a Reboot if the ID is that of another boot of the machine than the last one. It may be repeated.
func (n *Node) Boot(id string) error {
	path := filepath.Join(n.dir, bootFile)
	last, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && string(last) == id {
		return nil
	}
	if err == nil {
		if err := n.Reboot(); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(id), 0o644)
}

// Unload unloads the driver as rmmod does: NVML answers ERROR_DRIVER_NOT_LOADED until Load or ReloadDriver. The GPUs
// are then as after a reboot. While a process has NVML open or uses a GPU, it returns ERROR_IN_USE. It is no error if
// the driver is not loaded.
func (n *Node) Unload() error {
	return n.unused(useName, func() error {
		return n.Change(func(s *State) error {
			for _, c := range n.last.GPUs {
				if err := c.idle(); err != nil {
					return err
				}
				if !c.State.Unplugged {
					s.GPUs[c.entry] = c.restarted()
				}
			}
			s.Unloaded = true
			return nil
		})
	})
}

// Load loads the driver. It is no error if it is loaded.
func (n *Node) Load() error {
	return n.Change(func(s *State) error {
		s.Unloaded = false
		return nil
	})
}
