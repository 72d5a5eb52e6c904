// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"sync"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// scanner reads the GPUs again and again, in one NVML session: as long as the driver on the disk is the one of the session, and any of
// its GPUs answers.
type scanner struct {
	config nvml.Config

	mu      sync.RWMutex // locked to change node: the library must not go while somebody else is in it
	node    *nvml.Node
	library os.FileInfo // which one the session is with
}

// discover reads all GPUs. When no GPU answers it tries once more in a new session: the driver may have been loaded again. After an
// error the next call begins anew.
func (s *scanner) discover() (claims.Node, []error, error) {
	devices, broken, err := s.look()
	if err == nil && len(broken) > 0 && len(broken) >= len(devices) {
		if err = s.close(); err == nil {
			devices, broken, err = s.look()
		}
	}
	if err != nil {
		return claims.Node{}, nil, err
	}
	return claims.Node{Inventory: inventory.New(devices), Hardware: session{s}}, broken, nil
}

// look reads all GPUs in a session.
func (s *scanner) look() (devices []gpu.Device, broken []error, err error) {
	if err := s.open(); err != nil {
		return nil, nil, err
	}
	devices, broken, err = s.node.Discover()
	if err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	return devices, broken, nil
}

// open begins a session, unless there is one with the library that is on the disk.
func (s *scanner) open() error {
	path, err := s.config.Driver.Library()
	if err != nil {
		return err
	}
	library, err := os.Stat(path) // of what the link leads to: another version has another file
	if err != nil {
		return err
	}
	if s.node != nil && !os.SameFile(s.library, library) {
		if err := s.close(); err != nil {
			return err
		}
	}
	if s.node != nil {
		return nil
	}
	c := s.config
	if c.Library == nil {
		c.Library = nvmllib.New(nvmllib.WithLibraryPath(path))
	}
	node, err := nvml.Open(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.library = node, library
	return nil
}

// close ends the session, unless somebody is in it and may not come back: then the next look finds it as it is.
func (s *scanner) close() error {
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	if s.node == nil {
		return nil
	}
	err := s.node.Close()
	s.node = nil
	return err
}

var errNoSession = errors.New("the GPUs cannot be read: NVIDIA's driver does not answer")

// in calls do within the session.
func (s *scanner) in(do func(*nvml.Node) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.node == nil {
		return errNoSession
	}
	return do(s.node)
}

// processes are those that use a GPU, in the session of discover.
func (s *scanner) processes(d gpu.Device) (all []gpu.Process, err error) {
	err = s.in(func(n *nvml.Node) error { all, err = n.Processes(d); return err })
	return all, err
}

// users are the same, as people call them.
func (s *scanner) users(d gpu.Device) (names []string, err error) {
	err = s.in(func(n *nvml.Node) error { names, err = n.Users(d); return err })
	return names, err
}

// session is the hardware as claims.Hardware: each call keeps the session open for as long as it takes.
type session struct{ *scanner }

func (s session) DriverAccess() (a gpu.Access, err error) {
	err = s.in(func(n *nvml.Node) error { a, err = n.DriverAccess(); return err })
	return a, err
}

func (s session) Access(d gpu.Device) (a gpu.Access, err error) {
	err = s.in(func(n *nvml.Node) error { a, err = n.Access(d); return err })
	return a, err
}

func (s session) MemoryLimit(d gpu.Device) (a gpu.Access, err error) {
	err = s.in(func(n *nvml.Node) error { a, err = n.MemoryLimit(d); return err })
	return a, err
}

func (s session) Configure(ctx context.Context, id gpu.UUID, settings, before gpu.Settings) error {
	return s.in(func(n *nvml.Node) error { return n.Configure(ctx, id, settings, before) })
}

func (s session) Vacant(at gpu.Placement) error {
	return s.in(func(n *nvml.Node) error { return n.Vacant(at) })
}

func (s session) Divide(ctx context.Context, id gpu.UUID) error {
	return s.in(func(n *nvml.Node) error { return n.Divide(ctx, id) })
}

func (s session) Create(ctx context.Context, at gpu.Placement, was gpu.UUID) (id gpu.UUID, err error) {
	err = s.in(func(n *nvml.Node) error { id, err = n.Create(ctx, at, was); return err })
	return id, err
}

func (s session) Destroy(ctx context.Context, at gpu.Placement, was gpu.UUID) error {
	return s.in(func(n *nvml.Node) error { return n.Destroy(ctx, at, was) })
}

func (s session) Merge(ctx context.Context, id gpu.UUID) error {
	return s.in(func(n *nvml.Node) error { return n.Merge(ctx, id) })
}
