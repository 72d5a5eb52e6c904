// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/pki"
)

// Stop stops a program, NODE/COMPONENT or COMPONENT of the control plane, until Start or the next boot of its machine.
func Stop(ctx context.Context, p Place, name string) error {
	return control(ctx, p, name, machine.Rest)
}

// Start runs a stopped program again, and returns when the API server is ready. The name of a node boots the node.
func Start(ctx context.Context, p Place, name string) error {
	r, err := p.up()
	if err != nil {
		return err
	}
	if slices.Contains(r.nodes(), name) {
		return boot(ctx, p, name)
	}
	if err := control(ctx, p, name, machine.Wake); err != nil {
		return err
	}
	return awaitAPI(ctx, p, name)
}

// Restart stops a program and starts it again.
func Restart(ctx context.Context, p Place, name string) error {
	err := control(ctx, p, name, func(ctx context.Context, dir, step string) error {
		if err := machine.Rest(ctx, dir, step); err != nil {
			return err
		}
		return machine.Wake(ctx, dir, step)
	})
	if err != nil {
		return err
	}
	return awaitAPI(ctx, p, name)
}

func control(ctx context.Context, p Place, name string, do func(ctx context.Context, dir, step string) error) error {
	r, err := p.up()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dir, step, err := p.program(r, name)
	if err != nil {
		return err
	}
	return do(ctx, dir, step)
}

// program finds the machine and the step of a name, in which kube- may be omitted.
func (p Place) program(r record, name string) (dir, step string, err error) {
	where, step, ok := strings.Cut(name, "/")
	if !ok {
		where, step = controlplane.Name, name
	}
	if !slices.Contains(r.machines(), where) {
		return "", "", p.noMachine(r, where)
	}
	dir = p.machine(where)
	steps, err := machine.Steps(dir)
	if err != nil {
		return "", "", err
	}
	for _, candidate := range []string{step, "kube-" + step} {
		if slices.Contains(steps, candidate) {
			return dir, candidate, nil
		}
	}
	return "", "", fmt.Errorf("there is no program %s on %s; there are %s", step, where, strings.Join(steps, ", "))
}

func (p Place) noMachine(r record, name string) error {
	return fmt.Errorf("cluster %s has no machine %s; it has %s", p.Name, name, strings.Join(r.machines(), ", "))
}

// awaitAPI returns when the API server answers again, if it depends on the program.
func awaitAPI(ctx context.Context, p Place, name string) error {
	if name != "etcd" && strings.TrimPrefix(name, "kube-") != "apiserver" {
		return nil
	}
	api, err := p.api()
	if err != nil {
		return err
	}
	if err := poll(ctx, nil, api.ready); err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	return nil
}

// api returns a client with the credentials of the cluster's users.
func (p Place) api() (*api, error) {
	data, err := os.ReadFile(p.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	access, err := pki.ParseKubeconfig(data)
	if err != nil {
		return nil, err
	}
	return newAPI(access.Server, access.CA, access.Client)
}

// Pause freezes all processes of the machine, like an overloaded or suspended host. It is idempotent.
func Pause(p Place, name string) error {
	init, err := p.find(name)
	if err != nil {
		return err
	}
	if err := init.Freeze(); err != nil {
		return fmt.Errorf("pause %s: %w", name, err)
	}
	return nil
}

// Resume undoes Pause. It is idempotent.
func Resume(p Place, name string) error {
	init, err := p.find(name)
	if err != nil {
		return err
	}
	if err := init.Thaw(); err != nil {
		return fmt.Errorf("resume %s: %w", name, err)
	}
	return nil
}
