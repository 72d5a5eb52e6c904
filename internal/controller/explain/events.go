// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Events are the events about claims that ask for, or have, something else than their user wrote.
var Events = struct{ NotRanked, FieldsDropped, WholeGPU event.Kind }{
	NotRanked: event.Warning("NotRanked", "ResourceClaim",
		"the claim asks for the strongest GPU and gets any whole GPU, because it was not ranked when it was created"),
	FieldsDropped: event.Warning("FieldsDropped", "ResourceClaim",
		"the API server has dropped fields of the claim; the text names the feature gate that it lacks, and what the "+
			"claim asks for without them"),
	WholeGPU: event.Warning("WholeGPU", "ResourceClaim, Pod",
		"the claim asks for a share and has a whole GPU, because that GPU has no shares; the text names both"),
}

// NotAllocated is the event about a claim or a pod that waits.
var NotAllocated = event.Warning("NotAllocated", "ResourceClaim, Pod",
	"the claim or the pod has waited for devices for more than a minute; the text says why the scheduler does not "+
		"place the pod, and the smallest change with which it would")
