// SPDX-License-Identifier: Apache-2.0

package eviction

import "github.com/gpudra/gpu-dra-driver/internal/event"

// Evicted is the event about a pod that is deleted.
var Evicted = event.Warning("DeviceTaintEviction", "Pod",
	"the pod was deleted, because a GPU that it has got as an extended resource has a taint with the effect "+
		"NoExecute; the text names both")
