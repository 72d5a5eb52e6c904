// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"maps"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
)

// Read reads what answers need. Of devices it keeps what the classes, and the claims and templates of the namespace and
// of the manifest read, so that a large cluster needs little memory. An empty namespace means all. The reader's Slim is
// for other objects than slices.
func Read(ctx context.Context, r read.Reader, namespace string, m Manifest) *cluster.Snapshot {
	var s *slimmer
	known := make(chan struct{}) // closed when there is a slimmer
	rest := r
	rest.Slim = func() func(runtime.Object) runtime.Object {
		slim := func(o runtime.Object) runtime.Object { return o }
		if r.Slim != nil {
			slim = r.Slim()
		}
		return func(o runtime.Object) runtime.Object {
			slice, ok := o.(*resourceapi.ResourceSlice)
			if !ok {
				return slim(o)
			}
			<-known
			s.slice(slice)
			return slice
		}
	}
	var read *cluster.Snapshot
	var wg sync.WaitGroup
	wg.Go(func() {
		read = rest.Read(ctx, cluster.Nodes, cluster.Slices, cluster.Pods, cluster.Quotas, cluster.GPUQuotas)
	})
	first := r.Read(ctx, cluster.Classes, cluster.Claims, cluster.Templates)
	s = newSlimmer(&cluster.Snapshot{Classes: first.Classes,
		Claims:    slices.Concat(in(namespace, first.Claims), m.Claims),
		Templates: slices.Concat(in(namespace, first.Templates), m.Templates)})
	close(known)
	wg.Wait()
	read.Classes, read.Claims, read.Templates = first.Classes, first.Claims, first.Templates
	maps.Copy(read.Unread, first.Unread)
	return read
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
