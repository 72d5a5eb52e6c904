// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
)

// A claim whose pod is not in the snapshot is free. So a pod that gets its devices while the lists are read must not be
// missing: the list of pods is the later one.
func TestPodsAreReadAfterClaims(t *testing.T) {
	client := fake.NewClientset(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
	podsAreListed := func() bool {
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
			return a.GetResource().Resource == cluster.Pods
		})
	}
	seen, early := false, false
	Read(t.Context(), read.Reader{Client: client, Slim: func() func(runtime.Object) runtime.Object {
		return func(o runtime.Object) runtime.Object {
			if _, ok := o.(*resourceapi.ResourceClaim); ok {
				for range 50 { // what is read at the same time is read by then
					seen, early = true, early || podsAreListed()
					time.Sleep(time.Millisecond)
				}
			}
			return o
		}
	}}, metav1.NamespaceAll, nil, nil)
	if !seen || early || !podsAreListed() {
		t.Errorf("got a claim read: %t, the pods listed before: %t, want the pods listed afterwards", seen, early)
	}
}
