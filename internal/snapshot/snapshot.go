// SPDX-License-Identifier: Apache-2.0

// Package snapshot holds what the commands of kubectl-gpu read from the API server.
package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Snapshot is the state of a cluster, as far as the user may read it.
type Snapshot struct {
	Nodes []*corev1.Node
	// Slices have the taints of the rules, too. The rules are nil if the API server does not serve them.
	Slices     []*resourceapi.ResourceSlice
	TaintRules []*resourceapi.DeviceTaintRule
	Classes    []*resourceapi.DeviceClass
	Claims     []*resourceapi.ResourceClaim
	Templates  []*resourceapi.ResourceClaimTemplate
	Pods       []*corev1.Pod
	Quotas     []*corev1.ResourceQuota
	// Unread are the resources that could not be read, with the reason.
	Unread map[string]error // key: plural resource name, such as "resourceslices"
}
