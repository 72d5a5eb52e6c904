// SPDX-License-Identifier: Apache-2.0

package idle

import "github.com/gpudra/gpu-dra-driver/internal/event"

// Events are the events that the eviction of idle pods writes.
var Events = struct{ IdleGPU, IdleGPUEviction event.Kind }{
	IdleGPU: event.Warning("IdleGPU", "Pod", "the pod does not use its GPUs, and will be evicted, because its "+
		"namespace has the label "+Label+"; or that label is not a time, and nothing is evicted; the text says which"),
	IdleGPUEviction: event.Warning("IdleGPUEviction", "Pod",
		"the pod was evicted, because it has not used its GPUs for as long as the label of its namespace says"),
}
