// SPDX-License-Identifier: Apache-2.0

package preempt

import "github.com/gpudra/gpu-dra-driver/internal/event"

// Events are the events about a preemption.
var Events = struct{ Preempts, Preempted, Refused, NotUsed event.Kind }{
	Preempts: event.Normal("PreemptsForDevices", "Pod",
		"pods of lower priority are evicted, because the pod waits for their devices; the text names them"),
	Preempted: event.Warning("PreemptedForDevices", "Pod",
		"the pod is evicted, because a pod of higher priority waits for its devices; the text names that pod"),
	Refused: event.Warning("PreemptionRefused", "Pod",
		"the API server, mostly an admission webhook, refuses to evict a pod for the pod; no plan has that victim for "+
			"ten minutes, and others are looked for; the text names it"),
	NotUsed: event.Warning("PreemptionNotUsed", "Pod",
		"pods were evicted for the pod, and a minute later it is on no node; their devices are not kept any longer"),
}
