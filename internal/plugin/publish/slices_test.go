// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// A kubelet that starts removes the slices of its node, at any moment before or after it has registered the plugin.
func TestRemovedSlicesAreBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "n"}})
		// A real API server names objects; without names the controller takes each slice for a wrong one.
		created := 0
		client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
			created++
			slice := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
			slice.Name, slice.ResourceVersion = fmt.Sprint(slice.GenerateName, created), fmt.Sprint(created)
			return false, nil, nil
		})
		api := client.ResourceV1().ResourceSlices()
		count := func() int {
			list, err := api.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		handlers := utilruntime.ErrorHandlers
		defer func() { utilruntime.ErrorHandlers = handlers }()
		utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{
			func(_ context.Context, err error, msg string, _ ...any) { t.Error(msg, err) }}
		p := New(PublisherConfig{Client: client, Driver: "gpu.nvidia.com", Node: "node"})
		defer p.Stop()
		pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "gpu-0"}}}}}
		err := p.control(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node": pool}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // of the bubble's clock
		if got := count(); got != 1 {
			t.Fatalf("got %d slices, want 1", got)
		}
		for range 3 {
			list, err := api.List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, slice := range list.Items {
				if err := api.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Second)
			if got := count(); got != 1 {
				t.Fatalf("2 s after they were removed: got %d slices, want 1", got)
			}
		}
	})
}
