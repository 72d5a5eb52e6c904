// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// Added is a GPU that was added to the running machine.
type Added struct {
	Like         int // index of the GPU in the profile that it copies
	PCI          hwprofile.PCI
	UUID, Serial string
	Minor        int
}

// card is the added GPU: a copy of like with its own identity and PCI address.
func (a Added) gpu(like hwprofile.GPU) GPU {
	like.PCI, like.Instances = a.PCI, nil
	like.Calls.GetUUID = like.Calls.GetUUID.With(a.UUID)
	like.Calls.GetSerial = like.Calls.GetSerial.With(a.Serial)
	like.Calls.GetMinorNumber = like.Calls.GetMinorNumber.With(a.Minor)
	return GPU{Name: a.PCI.Address.DeviceName(), UUID: a.UUID, Serial: a.Serial, Minor: a.Minor, GPU: like}
}

// Unplug takes the GPU off the bus: every call about it returns ERROR_GPU_IS_LOST, but NVML still counts it. A GPU with
// another driver vanishes from /sys, too, when the driver root is laid out again. It is no error if the GPU is already
// unplugged.
func (n *Node) Unplug(which string) error {
	return n.changePresent(which, func(_ GPU, s *GPUState) error {
		s.Unplugged = true
		return nil
	})
}

// Plug puts an unplugged GPU back: the same GPU at the same address, with NVIDIA's driver and its settings as after a
// reboot. Injected faults stay. If the GPU is not unplugged, Plug does nothing.
func (n *Node) Plug(which string) error {
	return n.changePresent(which, func(c GPU, s *GPUState) error {
		if s.Unplugged {
			*s = c.booted()
		}
		return nil
	})
}

// RemoveGPU removes the GPU from the machine permanently, as if the machine had booted without it. NVML no longer
// counts it, and the index of each GPU after it decreases by one. Names and minor numbers stay.
func (n *Node) RemoveGPU(which string) error {
	return n.changePresent(which, func(_ GPU, s *GPUState) error {
		*s = GPUState{Removed: true, Added: s.Added, Minor: s.Minor}
		return nil
	})
}

// AddGPU adds a GPU with the properties of like, and returns it. It gets its own UUID and minor number. The zero
// address means the next free bus after like. AddGPU calls ready with the new view before the change is visible; if
// ready returns an error, nothing changes. ready must not use n, which is locked.
func (n *Node) AddGPU(like string, at hwprofile.Address, ready func(*View) error) (GPU, error) {
	var added GPU
	err := n.Change(func(s *State) error {
		v := n.last // Change has just read it and holds the lock
		other, err := v.GPU(like)
		if err != nil {
			return err
		}
		a, err := v.addition(other, at)
		if err != nil {
			return fmt.Errorf("add a GPU like %s: %w", other.Name, err)
		}
		fresh := factoryState(other.GPU)
		fresh.Added = &a
		s.GPUs = append(s.GPUs, fresh)
		next := newView(v.Profile, content{Seed: v.seed, State: *s})
		if added, err = next.GPU(a.UUID); err != nil {
			return err
		}
		return ready(next)
	})
	return added, err
}

func (v *View) addition(like GPU, at hwprofile.Address) (Added, error) {
	if len(v.GPUs) >= hwprofile.MaxGPUs {
		return Added{}, fmt.Errorf("the machine has %d GPUs, as many as fit", len(v.GPUs))
	}
	at, err := v.place(like, at)
	if err != nil {
		return Added{}, err
	}
	minor, err := v.nextMinor()
	if err != nil {
		return Added{}, err
	}
	a := Added{Like: like.entry, PCI: like.PCI, Minor: minor}
	if like.State.Added != nil {
		a.Like = like.State.Added.Like
	}
	a.PCI.Address, a.PCI.Bridges = at, v.bridges(like.PCI)
	seed := rand.Text() // not the node's seed: a new GPU at a used address gets a new identity
	a.UUID, a.Serial = uuidFor(seed, at), serialFor(seed, at)
	return a, nil
}

// place returns the address if it is free. For the zero address it returns the next free bus after the GPU's.
func (v *View) place(like GPU, at hwprofile.Address) (hwprofile.Address, error) {
	taken := func(is func(hwprofile.Address) bool) bool {
		return slices.ContainsFunc(v.present(), func(c GPU) bool {
			return is(c.PCI.Address) || slices.ContainsFunc(c.PCI.Bridges, is)
		})
	}
	if at != (hwprofile.Address{}) {
		switch {
		case at.Domain != like.PCI.Address.Domain:
			return at, fmt.Errorf("%s is in another PCI domain", at)
		case taken(func(a hwprofile.Address) bool { return a == at }):
			return at, fmt.Errorf("there is something at %s already", at)
		}
		return at, nil
	}
	at = like.PCI.Address
	for range 255 {
		at.Bus++
		if !taken(func(a hwprofile.Address) bool { return a.Domain == at.Domain && a.Bus == at.Bus }) {
			return at, nil
		}
	}
	return at, fmt.Errorf("no bus of PCI domain %04x is free", at.Domain)
}

// bridges returns the bridges above a new GPU beside an existing one: the last is another port of the same switch.
func (v *View) bridges(beside hwprofile.PCI) []hwprofile.Address {
	out := slices.Clone(beside.Bridges)
	if len(out) == 0 {
		return nil
	}
	port := &out[len(out)-1]
	for range 32 { // ports of a switch
		if !slices.ContainsFunc(v.GPUs, func(c GPU) bool { return slices.Contains(c.PCI.Bridges, *port) }) {
			break
		}
		port.Device = (port.Device + 1) % 32
	}
	return out
}

// nextMinor returns the minor number after all those ever used, so that a container with the device node of a removed
// GPU cannot reach another GPU with it. If these run out, it returns the first free one.
func (v *View) nextMinor() (int, error) {
	next := 0
	for _, c := range slices.Concat(v.present(), v.gone) {
		next = max(next, c.Minor+1)
	}
	if next <= hwprofile.MaxMinor {
		return next, nil
	}
	for minor := range hwprofile.MaxMinor + 1 {
		if !slices.ContainsFunc(v.GPUs, func(c GPU) bool { return c.Minor == minor }) {
			return minor, nil
		}
	}
	return 0, fmt.Errorf("every minor number up to %d is taken", hwprofile.MaxMinor)
}
