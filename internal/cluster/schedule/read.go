// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"maps"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
)

// Read reads what answers need. Of devices it keeps what the classes, these claims and templates, and those of the
// namespace read, so that a large cluster needs little memory. An empty namespace means all, and no events. It decides
// about devices in place of the reader.
func Read(ctx context.Context, r read.Reader, namespace string, claims []*resourceapi.ResourceClaim,
	templates []*resourceapi.ResourceClaimTemplate) *cluster.Snapshot {
	var attributes func(resourceapi.QualifiedName) bool
	resources := []string{cluster.Nodes, cluster.Slices, cluster.Quotas, cluster.GPUQuotas}
	if namespace != "" {
		resources = append(resources, cluster.Events)
	}
	known := make(chan struct{}) // closed when these are known
	rest := r
	rest.Devices = func() read.Devices {
		<-known
		return read.Devices{Attribute: attributes, Counters: true}
	}
	var all *cluster.Snapshot
	var wg sync.WaitGroup
	wg.Go(func() { all = rest.Read(ctx, resources...) })
	first := r.Read(ctx, cluster.Classes, cluster.Claims, cluster.Templates)
	attributes = AttributesFor(&cluster.Snapshot{Classes: first.Classes,
		Claims:    slices.Concat(inNamespace(namespace, first.Claims), claims),
		Templates: slices.Concat(inNamespace(namespace, first.Templates), templates)})
	close(known)
	last := r.Read(ctx, cluster.Pods) // a pod that uses one of these claims is among them, unless it is gone
	wg.Wait()
	all.Classes, all.Claims, all.Templates, all.Pods = first.Classes, first.Claims, first.Templates, last.Pods
	maps.Copy(all.Unread, first.Unread)
	maps.Copy(all.Unread, last.Unread)
	return all
}
