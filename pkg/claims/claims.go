// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims/access"
	"github.com/gpudra/gpu-dra-driver/pkg/claims/change"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Hardware changes GPUs.
type Hardware = change.Hardware

// Toolkit knows what a container needs in order to use GPUs.
type Toolkit = access.Toolkit

// Passthrough gives GPUs and vGPUs to virtual machines.
type Passthrough interface {
	change.Passthrough
	change.VGPUs
	access.Passthrough
}

// Preparer prepares claims for one driver on one node. It keeps no state in memory between calls. Several Preparers may
// use the same records, in one process or in many.
type Preparer struct {
	Driver string
	BootID string // changes when the machine boots; claims prepared before must be prepared again
	// Devices returns the devices that the node has now. The error says what the driver waits for.
	Devices     func() (inventory.Inventory, error)
	Hardware    Hardware
	Toolkit     Toolkit
	Passthrough Passthrough
	Specs       *cdi.Specs
	Records     *checkpoint.Records
	Daemons     mps.Dir
	// Containers returns the known containers that use the claim. It is called only when the devices have limits.
	Containers func(ctx context.Context, claim *resourceapi.ResourceClaim) ([]sharing.Container, error)
	// Running returns the names of running containers with the claim. The claim is not released before they have ended.
	// If there is none, none starts until the claim is prepared again. An error may come with containers.
	Running func(claim sharing.Claim) ([]string, error)
	// SharedMemory is the /dev/shm that MPS daemons without one of their own share with their clients; empty: none.
	SharedMemory string
	// DaemonMemory is the size of the /dev/shm of an MPS daemon and its clients, in bytes; 0: they use SharedMemory.
	DaemonMemory uint64
	// LocalIPC makes directories for claims that ask for one; its zero value refuses those claims.
	LocalIPC LocalIPC
	// PreloadDir is the directory of the files that make the dynamic loader load a hook library.
	PreloadDir string
	// Timeout limits how long a call without a deadline waits: see begin.
	Timeout time.Duration
	// Waiting is called at most once per call, after 5 s of waiting, with the cause; may be nil.
	Waiting func(claim sharing.Claim, cause error)
	// Unfit says why a device cannot be given to a claim that tolerates these taints: its GPU has become sick since it
	// was allocated. It is asked once, before anything changes; nil: no device is unfit.
	Unfit func(device string, tolerated []resourceapi.DeviceToleration) error
	// NotRestored is called with a GPU on which what an ended claim has changed cannot be undone; may be nil.
	NotRestored func(id gpu.UUID)
	// Stopping ends all waiting when it is cancelled, at shutdown; nil: never.
	Stopping context.Context
}
