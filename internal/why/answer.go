// SPDX-License-Identifier: Apache-2.0

package why

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// Outcome is the state of the pod or claim.
type Outcome string

const (
	// Waits means that the pod or claim cannot be scheduled now, or that the scheduler was bypassed.
	Waits Outcome = "Waits"
	// Fits means that nothing in the snapshot keeps it from being scheduled.
	Fits Outcome = "Fits"
	// Placed means that the pod has a node, or the claim has devices.
	Placed Outcome = "Placed"
	// Ended means that the pod has finished, or that the object is being deleted.
	Ended Outcome = "Ended"
	// Undecided means that there is no answer: the snapshot lacks something, or there was too little time.
	Undecided Outcome = "Undecided"
)

// Answer is the answer about one pod or claim.
type Answer struct {
	// Kind is Pod, ResourceClaim or ResourceClaimTemplate.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID and ResourceVersion are those of the object that the answer is about.
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	Outcome         Outcome   `json:"outcome"`
	// Cause is one sentence.
	Cause string `json:"cause"`
	// Change is the smallest set of changes with which it would be scheduled now. If it is empty and the outcome is
	// Waits, no change was found.
	Change []advice.Change `json:"change,omitempty"`
	// Alternatives are other sets of changes of the same number.
	Alternatives [][]advice.Change `json:"alternatives,omitempty"`
	// Requests say what each request of a claim loses, in the order of the claims.
	Requests []RequestLosses `json:"requests,omitempty"`
	// Nodes says how many nodes there are, and which the pod excludes.
	Nodes Nodes `json:"nodes"`
	// Holders are the claims that hold devices which a request would otherwise get. At most maxHolders are listed.
	Holders []Holder `json:"holders,omitempty"`
	// Binding are the allocated devices for which the scheduler waits before it binds the pod.
	Binding []Binding `json:"binding,omitempty"`
	// Places are where it would be scheduled now, if the outcome is Fits.
	Places []Place `json:"places,omitempty"`
	Search Search  `json:"search"`
	// Notes are what the answer does not cover.
	Notes []string `json:"notes,omitempty"`

	placements []schedule.Placement // if the outcome is Fits
	unless     string               // what the change does not consider
	search     *advice.Search       // for tests
}

// RequestLosses says what a request, or an alternative of one, loses.
type RequestLosses struct {
	Claim   string `json:"claim"`
	Request string `json:"request"`
	// Devices are all devices of the nodes that the pod does not exclude.
	Devices int    `json:"devices"`
	Losses  []Loss `json:"losses,omitempty"`
	// Left are the devices that it could get now, and MostOnOneNode how many of them one node has at most.
	Left          int   `json:"left"`
	MostOnOneNode int   `json:"mostOnOneNode"`
	Wanted        int64 `json:"wanted,omitempty"` // 0: all devices of a node
}

// Loss is how many devices one reason excludes.
type Loss struct {
	Kind   schedule.LossKind `json:"kind"`
	Detail string            `json:"detail"`
	// Devices count those for which it is the first reason, on that many nodes.
	Devices int `json:"devices"`
	Nodes   int `json:"nodes"`
	// Alone counts the devices for which it is the only reason.
	Alone int `json:"alone"`
}

// Nodes counts the nodes.
type Nodes struct {
	Total int `json:"total"`
	// Groups is the number of groups of nodes with equal devices and equal use, of which one each is asked.
	Groups   int          `json:"groups"`
	Excluded []NodeReason `json:"excluded,omitempty"`
}

// NodeReason is why nodes are excluded, other than by devices. A node may be in several.
type NodeReason struct {
	Reason string `json:"reason"`
	Nodes  int    `json:"nodes"`
}

// Holder is a claim that holds devices.
type Holder struct {
	Claim   string     `json:"claim"` // namespace/name
	Since   *time.Time `json:"since,omitempty"`
	Node    string     `json:"node,omitempty"`
	Devices []string   `json:"devices"`
	Pods    []string   `json:"pods,omitempty"`
}

// Place is a group of equal nodes, and the devices on the first of them.
type Place struct {
	Nodes   []string `json:"nodes"`
	Devices []Device `json:"devices"`
}

// Device is what a request gets.
type Device struct {
	Claim   string `json:"claim"`
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// Asked is what the request asks for, if it gets a whole GPU instead, because that has no shares.
	Asked string `json:"asked,omitempty"`
}

// Search says how far the search for changes went.
type Search struct {
	// Asked counts the questions to the allocator.
	Asked    int  `json:"asked"`
	Complete bool `json:"complete"`
	// NotTried says what was left out, if the search is not complete.
	NotTried string `json:"notTried,omitempty"`
}
