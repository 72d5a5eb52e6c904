// SPDX-License-Identifier: Apache-2.0

package network

import (
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// Events are the events about GPUs over the network.
var Events = struct{ ServerLost, ServerRefused, ServersUnreachable, SessionRefused, SliceRefused event.Kind }{
	ServerLost: event.Warning("ServerLost", "ResourceClaim",
		"the server of the claim's GPU over the network is gone or does not answer: its pods are evicted"),
	ServerRefused: event.Warning("ServerRefused", "Pod",
		"a pod with the label "+remote.ServerLabel+" is not offered as a GPU over the network; the text says why"),
	ServersUnreachable: event.Warning("ServersUnreachable", "DeviceClass",
		"the controller reaches no server of GPUs over the network; those whose pods are ready are not lost meanwhile"),
	SessionRefused: event.Warning("SessionRefused", "ResourceClaim",
		"the claim cannot use the GPU over the network that it has; the text says why"),
	SliceRefused: event.Warning("SliceRefused", "DeviceClass",
		"the API server refuses a ResourceSlice of GPUs over the network, which stays as it was, or drops fields of "+
			"it; the text says why"),
}
