// SPDX-License-Identifier: Apache-2.0

package simulator

import "fmt"

// The names below are equal for two handles of one object, and different for two objects of one kind. They do not ask
// the GPU, so that they count as no call and cannot fail.

// String returns the UUID of the GPU.
func (d *device) String() string { return d.UUID }

// String returns the UUID of the partition.
func (p *partitionDevice) String() string { return p.uuid }

// String returns the UUID of the GPU and the ID of the instance.
func (g *gpuInstance) String() string { return fmt.Sprintf("%s/%d", g.gpu.UUID, g.id) }

// String returns the GPU instance and the ID of the compute instance.
func (ci *computeInstance) String() string { return fmt.Sprintf("%s/%d", ci.instance, ci.id) }
