// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/rand"
	"fmt"
	"slices"
)

// Added is a GPU that was put into the machine while it ran.
type Added struct {
	Like         int // the GPU of the profile that it is one more of
	PCI          PCI
	UUID, Serial string
	Minor        int
}

// card is the added GPU with all that the one that it is like has but its identity and its place.
func (a Added) card(like GPU, entry int, s GPUState) Card {
	like.PCI, like.Instances = a.PCI, nil
	like.Calls.GetUUID = instead(like.Calls.GetUUID, a.UUID)
	like.Calls.GetSerial = instead(like.Calls.GetSerial, a.Serial)
	like.Calls.GetMinorNumber = instead(like.Calls.GetMinorNumber, a.Minor)
	return Card{Name: a.PCI.Address.DeviceName(), UUID: a.UUID, Serial: a.Serial, Minor: a.Minor, GPU: like, State: s, entry: entry}
}

// instead is the answer with that value in place of its own, if it has one.
func instead[T any](a Answer[T], value T) Answer[T] {
	if _, e := a.Get(); e == "" {
		return Value(value)
	}
	return a
}

// Unplug takes the GPU off the bus: every call about it answers ERROR_GPU_IS_LOST, and NVML still counts it. It is no error if
// it is off the bus already.
func (n *Node) Unplug(which string) error {
	return n.change(which, func(_ Card, s *GPUState) error {
		s.Unplugged = true
		return nil
	})
}

// Plug puts an unplugged GPU back: the same GPU at the same address, with the settings it has after a start of the machine.
// Faults that were ordered stay. It is no error if the GPU is not unplugged; then nothing changes.
func (n *Node) Plug(which string) error {
	return n.change(which, func(c Card, s *GPUState) error {
		if s.Unplugged {
			fresh := c.factory()
			fresh.Faults, fresh.Delays, fresh.MPS, fresh.Added = s.Faults, s.Delays, s.MPS, s.Added
			fresh.setMIG(c.GPU, c.afterStart(c.MIG()))
			*s = fresh
		}
		return nil
	})
}

// RemoveCard takes the GPU out of the machine for good, as if it had been started without: NVML does not count it any more, and
// those behind it move up by one index. They keep their names and minor numbers.
func (n *Node) RemoveCard(which string) error {
	return n.change(which, func(_ Card, s *GPUState) error {
		*s = GPUState{Removed: true, Added: s.Added}
		return nil
	})
}

// AddCard puts one more GPU like another into the machine, with a UUID and a minor number of its own, and returns it. The zero
// address means the next place that is free beside the other. ready gets the machine with the new GPU before anybody else
// can see it; when it returns an error nothing changes. It must not use n: nobody can change the node meanwhile.
func (n *Node) AddCard(like string, at Address, ready func(*View) error) (Card, error) {
	var added Card
	err := n.Change(func(s *State) error {
		v := n.last // what Change has just read, under its lock
		other, err := v.Card(like)
		if err != nil {
			return err
		}
		a, err := v.addition(other, at)
		if err != nil {
			return fmt.Errorf("add a GPU like %s: %w", other.Name, err)
		}
		fresh := other.factory()
		fresh.Added = &a
		s.GPUs = append(s.GPUs, fresh)
		next := newView(v.Profile, content{Seed: v.seed, State: *s})
		if added, err = next.Card(a.UUID); err != nil {
			return err
		}
		return ready(next)
	})
	return added, err
}

func (v *View) addition(like Card, at Address) (Added, error) {
	if len(v.GPUs) >= MaxGPUs {
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
	seed := rand.Text() // not that of the node: a GPU that comes to where another was is another
	a.UUID, a.Serial = uuidFor(seed, at), serialFor(seed, at)
	return a, nil
}

// place is the address if it is free, and the next free one after the GPU's when it is zero: a bus of its own.
func (v *View) place(like Card, at Address) (Address, error) {
	taken := func(is func(Address) bool) bool {
		return slices.ContainsFunc(v.GPUs, func(c Card) bool { return is(c.PCI.Address) || slices.ContainsFunc(c.PCI.Bridges, is) })
	}
	if at != (Address{}) {
		switch {
		case at.Domain != like.PCI.Address.Domain:
			return at, fmt.Errorf("%s is in another PCI domain", at)
		case taken(func(a Address) bool { return a == at }):
			return at, fmt.Errorf("there is something at %s already", at)
		}
		return at, nil
	}
	at = like.PCI.Address
	for range 255 {
		at.Bus++
		if !taken(func(a Address) bool { return a.Domain == at.Domain && a.Bus == at.Bus }) {
			return at, nil
		}
	}
	return at, fmt.Errorf("no bus of PCI domain %04x is free", at.Domain)
}

// bridges are those above a new GPU beside the one that sits there: the last is another port of the same switch.
func (v *View) bridges(beside PCI) []Address {
	out := slices.Clone(beside.Bridges)
	if len(out) == 0 {
		return nil
	}
	port := &out[len(out)-1]
	for range 32 { // a switch has no more ports
		if !slices.ContainsFunc(v.GPUs, func(c Card) bool { return slices.Contains(c.PCI.Bridges, *port) }) {
			break
		}
		port.Device = (port.Device + 1) % 32
	}
	return out
}

// nextMinor is the minor number after those of all GPUs that there are and were, so that a container that has the device node
// of one that is gone does not reach another with it. When no more are left, it is the first that is free.
func (v *View) nextMinor() (int, error) {
	next := 0
	for _, c := range slices.Concat(v.GPUs, v.gone) {
		next = max(next, c.Minor+1)
	}
	if next <= maxMinor {
		return next, nil
	}
	for minor := range maxMinor + 1 {
		if !slices.ContainsFunc(v.GPUs, func(c Card) bool { return c.Minor == minor }) {
			return minor, nil
		}
	}
	return 0, fmt.Errorf("every minor number up to %d is taken", maxMinor)
}
