// SPDX-License-Identifier: Apache-2.0

// Package cdi tells container runtimes what a container needs in order to use its GPUs, in the Container Device Interface.
package cdi

import (
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Device is one CDI device: a name that is unique within its kind, and what it gives to a container.
type Device struct {
	Name   string
	Access gpu.Access
}

// render writes devices of the kind "vendor/class" as a spec. common is given once to every container that has any of them.
func render(kind string, common gpu.Access, devices []Device) (*specs.Spec, error) {
	spec := &specs.Spec{Kind: kind, ContainerEdits: edits(common)}
	for _, d := range devices {
		spec.Devices = append(spec.Devices, specs.Device{Name: d.Name, ContainerEdits: edits(d.Access)})
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, err
	}
	spec.Version = version
	return spec, nil
}

func edits(a gpu.Access) specs.ContainerEdits {
	e := specs.ContainerEdits{Env: a.Env, AdditionalGIDs: a.Groups}
	for _, n := range a.Nodes {
		e.DeviceNodes = append(e.DeviceNodes, &specs.DeviceNode{
			Path: n.Path, HostPath: n.HostPath, Type: n.Type, Major: n.Major, Minor: n.Minor, Permissions: n.Permissions})
	}
	for _, m := range a.Mounts {
		e.Mounts = append(e.Mounts, &specs.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Options: m.Options})
	}
	for _, h := range a.Hooks {
		e.Hooks = append(e.Hooks, &specs.Hook{HookName: h.Name, Path: h.Path, Args: h.Args, Env: h.Env})
	}
	return e
}
