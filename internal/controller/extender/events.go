// SPDX-License-Identifier: Apache-2.0

package extender

import "github.com/gpudra/gpu-dra-driver/internal/event"

// Events are the events about pods with annotations for the policy, once they have a node.
var Events = struct{ Chosen, Ignored event.Kind }{
	Chosen: event.Normal("PlacementPolicy", "Pod",
		"nodes were scored with the policy that an annotation of the pod asks for"),
	Ignored: event.Warning("PlacementPolicyIgnored", "Pod",
		"the value of an annotation is no policy; the text has the values that are, and the policy with which nodes "+
			"were scored"),
}
