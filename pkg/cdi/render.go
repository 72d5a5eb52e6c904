// SPDX-License-Identifier: Apache-2.0

// Package cdi writes CDI specs (Container Device Interface), which tell container runtimes what a container needs to
// use its GPUs.
package cdi

import (
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Device is one CDI device: a name that is unique within its kind, and what containers get with it.
type Device struct {
	Name   string
	Access gpu.Access
}

// render returns a spec with devices of the kind "vendor/class". Containers with any of them also get common, once.
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
			Path: n.Path, HostPath: n.HostPath, Type: n.Type, Major: n.Major, Minor: n.Minor,
			Permissions: n.Permissions})
	}
	for _, m := range a.Mounts {
		e.Mounts = append(e.Mounts, &specs.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath,
			Options: m.Options})
	}
	for _, h := range a.Hooks {
		e.Hooks = append(e.Hooks, &specs.Hook{HookName: h.Name, Path: h.Path, Args: h.Args, Env: h.Env})
	}
	return e
}

// Whole returns one spec with all that containers with these devices need, including the content of the driver's own
// spec. It is for people, and for runtimes without Kubernetes. The qualified name of a device is Kind, "=" and its
// name.
func Whole(driver string, common gpu.Access, devices []Device) (*specs.Spec, error) {
	return render(vendorPrefix+driver+"/"+claimClass, common, devices)
}
