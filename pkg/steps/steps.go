// SPDX-License-Identifier: Apache-2.0

// Package steps lets observers wrap each step of an operation. Metrics time the steps, the simulator crashes at one of
// them, and tests make each of them fail. The code of a step does not know its observers.
package steps

import "context"

// Observer is called around a step. It calls do at most once, and returns the error of do or one of its own. Steps
// inside the step get the context that the observer passes to do.
type Observer func(ctx context.Context, name string, do func(context.Context) error) error

type key struct{}

// With returns a context with one more observer. Observers added earlier are called around it.
func With(ctx context.Context, o Observer) context.Context {
	if outer, ok := ctx.Value(key{}).(Observer); ok {
		inner := o
		o = func(ctx context.Context, name string, do func(context.Context) error) error {
			return outer(ctx, name, func(ctx context.Context) error { return inner(ctx, name, do) })
		}
	}
	return context.WithValue(ctx, key{}, o)
}

// Do runs one step inside the observers of the context. The error comes from do or from an observer.
func Do(ctx context.Context, name string, do func(context.Context) error) error {
	if o, ok := ctx.Value(key{}).(Observer); ok {
		return o(ctx, name, do)
	}
	return do(ctx)
}

// Steps of preparing and releasing a claim.
const (
	Prepare            = "prepare"   // all of the following
	Unprepare          = "unprepare" // likewise
	LockDevices        = "lock_devices"
	FindHolders        = "find_holders"
	FindUsers          = "find_users"
	WriteRecord        = "write_record"
	DeleteRecord       = "delete_record"
	EnableMIG          = "enable_mig"
	DisableMIG         = "disable_mig"
	ConfigureGPU       = "configure_gpu"
	CreatePartition    = "create_partition"
	DestroyPartition   = "destroy_partition"
	DisablePersistence = "disable_persistence"
	EnablePersistence  = "enable_persistence"
	BindVFIO           = "bind_vfio"
	ReturnVFIO         = "return_vfio"
	CreateVGPU         = "create_vgpu"
	RemoveVGPU         = "remove_vgpu"
	RequestDaemon      = "request_mps_daemon"
	ReleaseDaemon      = "release_mps_daemon"
	AwaitDaemon        = "await_mps_daemon"
	FindDriverFiles    = "find_driver_files"
	FindDeviceFiles    = "find_device_files"
	MakeLocalIPC       = "make_local_ipc"
	RemoveLocalIPC     = "remove_local_ipc"
	WriteDriverSpec    = "write_driver_spec"
	WriteClaimSpec     = "write_claim_spec"
	RemoveClaimSpec    = "remove_claim_spec"
)

// Meanings describes the steps. Steps that are not listed are parts of listed ones.
var Meanings = map[string]string{
	FindHolders:        "finds the other claims on the devices",
	FindUsers:          "finds containers that still run with the claim",
	WriteRecord:        "writes the record of the claim, so that it survives a power cut",
	DeleteRecord:       "deletes the record of the claim",
	EnableMIG:          "enables the MIG mode of one GPU, unless it is enabled",
	DisableMIG:         "disables the MIG mode of one GPU, unless it is disabled",
	ConfigureGPU:       "sets compute mode and time slice of one GPU, or restores them",
	CreatePartition:    "creates one partition of a GPU",
	DestroyPartition:   "removes one partition of a GPU",
	DisablePersistence: "disables the persistence mode of one GPU, unless it is disabled",
	EnablePersistence:  "enables the persistence mode of one GPU again",
	BindVFIO:           "binds one PCI function of a GPU to vfio-pci, for a virtual machine",
	ReturnVFIO:         "takes a GPU from vfio-pci, resets it, and returns its PCI functions to their drivers",
	CreateVGPU:         "makes one vGPU, for a virtual machine",
	RemoveVGPU:         "removes one vGPU",
	RequestDaemon:      "asks the supervisor for an MPS daemon, or for other limits of it",
	ReleaseDaemon:      "tells the supervisor that an MPS daemon is not needed any more",
	AwaitDaemon:        "waits for an MPS daemon",
	FindDriverFiles:    "asks NVIDIA's container toolkit what every container with a GPU needs",
	FindDeviceFiles:    "asks NVIDIA's container toolkit what a container needs of one GPU",
	MakeLocalIPC:       "mounts the directory of the claim for local IPC, unless it is mounted",
	RemoveLocalIPC:     "removes the directory of the claim for local IPC",
	WriteDriverSpec:    "writes the CDI spec of the driver, when it changed",
	WriteClaimSpec:     "writes the CDI spec of the claim, when it changed",
	RemoveClaimSpec:    "removes the CDI spec of the claim",
}
