// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"maps"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
)

// Read reads what answers need. Of devices it keeps what the classes, and the claims and templates of the namespace and
// of the manifest read, so that a large cluster needs little memory. An empty namespace means all, and no events. It
// decides about devices in place of the reader.
func Read(ctx context.Context, r read.Reader, namespace string, m Manifest) *cluster.Snapshot {
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
	attributes = attributesFor(&cluster.Snapshot{Classes: first.Classes,
		Claims:    slices.Concat(in(namespace, first.Claims), m.Claims),
		Templates: slices.Concat(in(namespace, first.Templates), m.Templates)})
	close(known)
	last := r.Read(ctx, cluster.Pods) // a pod that uses one of these claims is among them, unless it is gone
	wg.Wait()
	all.Classes, all.Claims, all.Templates, all.Pods = first.Classes, first.Claims, first.Templates, last.Pods
	maps.Copy(all.Unread, first.Unread)
	maps.Copy(all.Unread, last.Unread)
	return all
}

// in returns the objects of the namespace.
func in[T metav1.Object](namespace string, all []T) []T {
	var own []T
	for _, o := range all {
		if namespace == "" || o.GetNamespace() == namespace {
			own = append(own, o)
		}
	}
	return own
}
