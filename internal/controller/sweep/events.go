// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	corev1 "k8s.io/api/core/v1"
)

// Event is one that the controller writes. What is left behind has the reason of its event.
type Event struct {
	Reason  string
	Type    string // corev1.EventTypeWarning or EventTypeNormal
	About   string // the kind of object
	Meaning string // for docs/reference.md
}

// Events are all that there are.
var Events = struct{ NodeGone, PluginGone, PodGone, ReservationStale, DeletionStuck, SliceRemoved, ClaimRemoved Event }{
	NodeGone: Event{"NodeGone", corev1.EventTypeWarning, "ResourceSlice",
		"the slice is of a node that is gone, or has been replaced by another one of that name, and stays, because it is not certain whose it is; the text says why"},
	PluginGone: Event{"PluginGone", corev1.EventTypeWarning, "Node",
		"the node has ResourceSlices of the driver and no pod of the plugin, and they stay; the text says why"},
	PodGone: Event{"PodGone", corev1.EventTypeWarning, "ResourceClaim",
		"the claim was made for a pod that is gone, holds devices of the driver, and stays; the text says why"},
	ReservationStale: Event{"ReservationStale", corev1.EventTypeWarning, "ResourceClaim",
		"the claim is reserved for pods that are all gone; kube-controller-manager ends such a reservation, and until it does the devices cannot be had"},
	DeletionStuck: Event{"DeletionStuck", corev1.EventTypeWarning, "ResourceSlice or ResourceClaim",
		"the object is left behind and deleted already, and a finalizer keeps it; the text names the finalizers"},
	SliceRemoved: Event{"SliceRemoved", corev1.EventTypeNormal, "ResourceSlice",
		"the controller has removed a slice that was left behind; the text says why"},
	ClaimRemoved: Event{"ClaimRemoved", corev1.EventTypeNormal, "ResourceClaim",
		"the controller has removed a claim whose pod is gone"},
}
