// SPDX-License-Identifier: Apache-2.0

package convert

import "github.com/gpudra/gpu-dra-driver/internal/event"

// Events are the events of the conversion.
var Events = struct{ Converted, NotConverted event.Kind }{
	Converted: event.Normal("Converted", "Pod",
		"the pod asked for GPUs in the way of an older system, and has a claim instead"),
	NotConverted: event.Warning("NotConverted", "Pod",
		"the pod waits for a template of its claim that the controller does not create; the text says why"),
}
