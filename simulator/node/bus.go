// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// The kernel's drivers of a node: of its GPUs, of the sound functions of their cards, and VFIODriver of both.
const (
	NVIDIADriver = "nvidia"
	SoundDriver  = "snd_hda_intel"
	VFIODriver   = "vfio-pci"
)

// iommuGroups are the groups of the GPUs of machines that have started with an IOMMU, in the order of the profile: it
// is a setting of the machine, and not part of a recorded profile. In the workstation, two GPUs are behind one switch
// that does not keep them apart.
var iommuGroups = map[string][]int{
	"l40s-x4":     {17, 18, 31, 32},
	"workstation": {14, 15, 15},
	"a16-x4":      {21, 22, 23, 24},
}

// sounds are the PCI device IDs of the sound functions on the cards of these profiles.
var sounds = map[string]uint32{"workstation": 0x1aef}

// Function is a function of a GPU's card on the PCI bus.
type Function struct {
	Address  hwprofile.Address
	DeviceID uint32
	Class    uint32
	Known    string // the driver that knows it
	Binding  Binding
}

// Functions returns the functions of the GPU's card, itself first.
func (v *View) Functions(c GPU) []Function {
	all := []Function{{c.PCI.Address, c.PCI.DeviceID, 0x030200, NVIDIADriver, c.Binding()}} // 3D
	if sound := sounds[v.Profile.Name]; sound != 0 && v.IOMMUGroup(c) != 0 {
		at := c.PCI.Address
		at.Function = 1
		b := Binding{Driver: SoundDriver}
		if c.State.Sound != nil {
			b = *c.State.Sound
		}
		all = append(all, Function{at, sound, 0x040300, SoundDriver, b})
	}
	return all
}

// Binding is what the kernel's PCI bus knows of a GPU's driver.
type Binding struct {
	Driver   string // empty: none
	Override string // driver_override; empty: any driver that knows the GPU
}

// bound is the state of a GPU whose driver nobody has changed.
var bound = Binding{Driver: NVIDIADriver}

// Binding returns the GPU's driver.
func (c GPU) Binding() Binding {
	if c.State.Binding == nil {
		return bound
	}
	return *c.State.Binding
}

// IOMMUGroup returns the GPU's IOMMU group; 0: the machine has no IOMMU.
func (v *View) IOMMUGroup(c GPU) int {
	if groups := iommuGroups[v.Profile.Name]; c.entry < len(groups) { // an added GPU has none
		return groups[c.entry]
	}
	return 0
}

// OnBus returns all GPUs on the PCI bus, by address: those that NVML has, and those with another driver or none. NVML
// also has GPUs that do not answer any more.
func (v *View) OnBus() []GPU {
	return slices.DeleteFunc(v.present(), func(c GPU) bool {
		return c.State.Unplugged && c.Binding().Driver != NVIDIADriver
	})
}

// present returns all GPUs that were not removed, by address.
func (v *View) present() []GPU {
	all := slices.Concat(v.GPUs, v.away)
	slices.SortStableFunc(all, func(a, b GPU) int { return a.PCI.Address.Compare(b.PCI.Address) })
	return all
}

// inUseCheck is the pause between two looks of an unbinding that waits for the users of the driver.
const inUseCheck = 10 * time.Millisecond

// WriteSysfs plays the kernel for a write into a file of sysfs, whose path is relative to its root. It waits as long as
// the kernel would: NVIDIA's driver lets no GPU go while a process has NVML open or uses the GPU, and vfio-pci while a
// process has it open: see UseVFIO. Errors are those of the kernel, as *fs.PathError.
func (n *Node) WriteSysfs(file, text string) error {
	text = strings.TrimSpace(text)
	var err error
	switch parts := strings.Split(path.Clean(file), "/"); {
	case len(parts) == 7 && parts[2] == "devices" && parts[4] == "mdev_supported_types" && parts[6] == "create":
		err = n.createVGPU(parts[3], parts[5], text)
	case len(parts) == 5 && parts[1] == "mdev" && parts[4] == "remove":
		err = n.removeVGPU(parts[3])
	case len(parts) != 5 || parts[0] != "bus" || parts[1] != "pci":
		err = syscall.EACCES
	case parts[2] == "drivers" && parts[4] == "unbind":
		err = n.unbind(text, parts[3])
	case parts[2] == "drivers" && parts[4] == "bind":
		err = n.bind(text, parts[3])
	case parts[2] == "devices" && parts[4] == "driver_override":
		err = n.rebind(parts[3], func(_ GPU, _ string, b *Binding) error {
			b.Override = text
			return nil
		})
	case parts[2] == "devices" && parts[4] == "reset":
		err = n.rebind(parts[3], func(GPU, string, *Binding) error {
			if one, err := strconv.ParseUint(text, 0, 64); err != nil || one != 1 {
				return syscall.EINVAL
			}
			return nil
		})
	default:
		err = syscall.EACCES
	}
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // others are not the kernel's
		return &fs.PathError{Op: "write", Path: file, Err: errno}
	}
	return err
}

// rebind changes the binding of the function at the address. f also gets the driver that knows it. Error: ENODEV if
// there is none.
func (n *Node) rebind(at string, f func(c GPU, driver string, b *Binding) error) error {
	return n.Change(func(s *State) error {
		for _, c := range n.last.OnBus() { // Change has just read it and holds the lock
			for i, function := range n.last.Functions(c) {
				if function.Address.String() != at || n.last.IOMMUGroup(c) == 0 {
					continue
				}
				state, b := &s.GPUs[c.entry], function.Binding
				if err := f(c, function.Known, &b); err != nil {
					return err
				}
				changed := &b
				if b == (Binding{Driver: function.Known}) {
					changed = nil
				}
				if i > 0 {
					state.Sound = changed
					return nil
				}
				if b.Driver != c.Binding().Driver { // the next driver starts it anew
					*state = c.restarted()
				}
				state.Binding = changed
				return nil
			}
		}
		return syscall.ENODEV
	})
}

func (n *Node) unbind(at, driver string) error {
	release := func() error {
		return n.rebind(at, func(c GPU, _ string, b *Binding) error {
			if b.Driver != driver {
				return syscall.ENODEV
			}
			if driver == NVIDIADriver {
				if err := c.idle(); err != nil {
					return err
				}
			}
			b.Driver = ""
			return nil
		})
	}
	lock := useName
	if driver == VFIODriver {
		lock = vfioName + at
	}
	for {
		err := n.unused(lock, release)
		if _, refused := err.(*Refusal); !refused { //nolint:errorlint // it is not wrapped
			return err
		}
		time.Sleep(inUseCheck)
	}
}

func (n *Node) bind(at, driver string) error {
	return n.rebind(at, func(_ GPU, known string, b *Binding) error {
		switch {
		case cmp.Or(b.Override, known) != driver: // vfio-pci takes only what is given to it
			return syscall.ENODEV
		case b.Driver != "":
			return syscall.EBUSY
		}
		b.Driver = driver
		return nil
	})
}
