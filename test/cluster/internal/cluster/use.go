// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/node"
)

// Exec runs the command in all namespaces of the machine (a node or the control plane) and returns its exit status.
func Exec(p Place, name string, command []string, streams machine.Streams) (int, error) {
	r, err := p.up()
	if err != nil {
		return 0, err
	}
	if !slices.Contains(r.machines(), name) {
		return 0, p.noMachine(r, name)
	}
	status, err := p.run(name, command, streams)
	if err != nil {
		return 0, fmt.Errorf("run %s on %s: %w", command[0], name, err)
	}
	return status, nil
}

func (p Place) run(name string, command []string, streams machine.Streams) (int, error) {
	init, err := machine.Load(p.machine(name))
	if err != nil {
		return 0, err
	}
	return machine.Run(init, command, streams)
}

// Load imports the images of the OCI archive on every node.
func Load(p Place, archive string) error {
	r, err := p.up()
	if err != nil {
		return err
	}
	var wait sync.WaitGroup
	failed := make([]error, r.Config.Nodes)
	for i, name := range r.nodes() {
		wait.Go(func() {
			if err := p.load(name, archive); err != nil {
				failed[i] = fmt.Errorf("load %s into %s: %w", archive, name, err)
			}
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}

func (p Place) load(name, archive string) error {
	file, err := os.Open(archive) // here, because the node cannot see the path
	if err != nil {
		return err
	}
	defer file.Close()
	var out bytes.Buffer
	status, err := p.run(name, node.ImportCommand("-"), machine.Streams{In: file, Out: &out, Err: &out})
	if err != nil {
		return err
	}
	if status != 0 {
		return fmt.Errorf("ctr: exit status %d: %s", status, strings.TrimSpace(out.String()))
	}
	return nil
}

// Logs copies the log of a component to out. The name is NODE/COMPONENT, or COMPONENT for the control plane.
func Logs(p Place, name string, out io.Writer) error {
	r, err := p.get()
	if err != nil {
		return err
	}
	where, component, ok := strings.Cut(name, "/")
	if !ok {
		where, component = controlplane.Name, name
	}
	if !slices.Contains(r.machines(), where) {
		return p.noMachine(r, where)
	}
	dir := p.machine(where)
	if !slices.Contains(machine.Logs(dir), component) {
		return fmt.Errorf("there is no log %s; there are %s", name, strings.Join(p.logs(r), ", "))
	}
	file, err := os.Open(machine.LogPath(dir, component))
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return err
}

func (p Place) logs(r record) []string {
	var names []string
	for _, m := range r.machines() {
		for _, component := range machine.Logs(p.machine(m)) {
			if m != controlplane.Name {
				component = m + "/" + component
			}
			names = append(names, component)
		}
	}
	return names
}
