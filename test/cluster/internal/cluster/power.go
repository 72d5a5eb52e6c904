// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cgroups"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/network"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

// find returns PID 1 of a running machine.
func (p Place) find(name string) (process.Record, error) {
	r, err := p.up()
	if err != nil {
		return process.Record{}, err
	}
	if !slices.Contains(r.machines(), name) {
		return process.Record{}, p.noMachine(r, name)
	}
	init, err := machine.Load(p.machine(name))
	if err == nil && !init.Alive() {
		err = process.ErrGone
	}
	if err != nil {
		return process.Record{}, fmt.Errorf("find machine %s: %w", name, err)
	}
	return init, nil
}

// Crash ends the node at once, like a power cut: nothing can clean up, and its disk stays. Data written without fsync
// also stays, because the page cache is the host's.
func Crash(ctx context.Context, p Place, name string) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if name == controlplane.Name {
		return errors.New("the control plane cannot crash: the way to the API server would go with it; stop its " +
			"programs instead")
	}
	init, err := p.find(name)
	if err != nil {
		return err
	}
	return init.Kill(killTimeout)
}

// boot starts a crashed node and returns when the API server reports the new boot. The disk is unchanged, /run is
// empty, and the boot ID is new.
func boot(ctx context.Context, p Place, name string) error {
	id, err := bootLocked(ctx, p, name)
	if err != nil {
		return fmt.Errorf("boot %s: %w", name, err)
	}
	api, err := p.api()
	if err != nil {
		return err
	}
	err = poll(ctx, nil, func(ctx context.Context) error { return api.booted(ctx, name, id) })
	if err != nil {
		return fmt.Errorf("wait for %s: %w", name, err)
	}
	return nil
}

func bootLocked(ctx context.Context, p Place, name string) (bootID string, err error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	r, err := p.up()
	if err != nil {
		return "", err
	}
	if _, err := p.find(name); err == nil {
		return "", errors.New("it runs; crash it first")
	}
	hub, err := p.find(controlplane.Name)
	if err != nil {
		return "", err
	}
	layout, err := cgroups.Detect()
	if err != nil {
		return "", err
	}
	if err := errors.Join(layout.Remove(p.cgroup(name)), layout.Make(p.cgroup(name))); err != nil {
		return "", err
	}
	spec, err := machine.LoadSpec(p.machine(name))
	if err != nil {
		return "", err
	}
	started, err := machine.Start(spec, nil)
	if err != nil {
		return "", err
	}
	if err := network.Connect(hub.PID, started.Process.PID, slices.Index(r.machines(), name),
		r.Config.Nodes); err != nil {
		return "", err // the machine ends with this process
	}
	if err := started.Release(); err != nil {
		return "", err
	}
	return awaitBootID(ctx, started)
}

// awaitBootID returns the machine's boot ID.
func awaitBootID(ctx context.Context, m *machine.Running) (id string, err error) {
	failed := make(chan error, 1)
	go func() {
		<-m.Ended()
		failed <- fmt.Errorf("machine %s ended", m.Name)
	}()
	err = poll(ctx, failed, func(context.Context) error {
		data, err := os.ReadFile(machine.Path(m.Process, machine.BootIDFile))
		id = strings.TrimSpace(string(data))
		return err
	})
	return id, err
}
