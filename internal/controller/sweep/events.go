// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Events are all events of the sweep.
var Events = struct {
	NodeGone, PluginGone, PodGone, ReservationStale, DeletionStuck, SliceRemoved, ClaimRemoved event.Kind
}{
	NodeGone: event.Warning("NodeGone", "ResourceSlice",
		"the slice is of a node that is gone, or has been replaced by another one of that name, and stays, because "+
			"it is not certain whose it is; the text says why"),
	PluginGone: event.Warning("PluginGone", "Node",
		"the node has ResourceSlices of the driver and no pod of the plugin, and they stay; the text says why"),
	PodGone: event.Warning("PodGone", "ResourceClaim",
		"the claim was made for a pod that is gone, holds devices of the driver, and stays; the text says why"),
	ReservationStale: event.Warning("ReservationStale", "ResourceClaim",
		"the claim is reserved for pods that are all gone; kube-controller-manager ends such a reservation, and "+
			"until it does the devices cannot be had"),
	DeletionStuck: event.Warning("DeletionStuck", "ResourceSlice or ResourceClaim",
		"the object is left behind and deleted already, and a finalizer keeps it; the text names the finalizers"),
	SliceRemoved: event.Normal("SliceRemoved", "ResourceSlice",
		"the controller has removed a slice that was left behind; the text says why"),
	ClaimRemoved: event.Normal("ClaimRemoved", "ResourceClaim",
		"the controller has removed a claim whose pod is gone"),
}
