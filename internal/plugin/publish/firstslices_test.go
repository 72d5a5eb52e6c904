// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driver = "gpu.nvidia.com"

// The controller of kubeletplugin must find nothing to do. Otherwise each start of the driver would write the slices
// twice.
func TestControllerKeepsFirstSlices(t *testing.T) {
	pools := map[string]resourceslice.Pool{
		"node": {Slices: []resourceslice.Slice{
			{Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}}},
			{Devices: []resourceapi.Device{{Name: "gpu-1-mig-1g10gb-0"}}}}},
		"node/monitor": {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "monitor"}}}}}}
	client := newServer()
	written, err := FirstSlices(t.Context(), client, driver, "node", pools)
	if err != nil {
		t.Fatal(err)
	}
	order := ""
	for _, slice := range written {
		order += slice.Spec.Pool.Name + " "
	}
	if order != "node node node/monitor " {
		t.Errorf("got slices of %s, want the GPUs first", order)
	}
	before := listSlices(t, client)
	if len(before) != 3 {
		t.Fatalf("got %d slices, want 3", len(before))
	}
	client.ClearActions()
	controller, err := resourceslice.StartController(t.Context(), resourceslice.Options{DriverName: driver,
		KubeClient: client,
		Owner:      &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "node"},
		Resources:  &resourceslice.DriverResources{Pools: pools}})
	if err != nil {
		t.Fatal(err)
	}
	defer controller.Stop()
	time.Sleep(200 * time.Millisecond)
	for _, action := range client.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, action.GetVerb()) {
			t.Errorf("the controller did %s %v", action.GetVerb(), action.GetResource().Resource)
		}
	}
	// Show that the controller runs: it publishes another device.
	more := resourceslice.Pool{Slices: slices.Clone(pools["node"].Slices)}
	more.Slices[0].Devices = append(slices.Clone(more.Slices[0].Devices), resourceapi.Device{Name: "gpu-2"})
	controller.Update(&resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node": more}})
	for end := time.Now().Add(5 * time.Minute); !slices.ContainsFunc(listSlices(t, client),
		func(s resourceapi.ResourceSlice) bool { return len(s.Spec.Devices) == 3 }); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the controller writes nothing at all")
		}
	}
}

// Existing slices are left to the controller.
func TestFirstSlicesAreWrittenOnce(t *testing.T) {
	client := newServer()
	pools := map[string]resourceslice.Pool{"node": {Slices: []resourceslice.Slice{{}}}}
	for range 2 {
		if _, err := FirstSlices(t.Context(), client, driver, "node", pools); err != nil {
			t.Fatal(err)
		}
		if got := len(listSlices(t, client)); got != 1 {
			t.Errorf("got %d slices, want 1", got)
		}
	}
}

// newServer returns a clientset that generates names and versions, as the API server does.
func newServer() *fake.Clientset {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}})
	var names atomic.Int32
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		n := names.Add(1)
		slice.Name, slice.ResourceVersion = fmt.Sprint(slice.GenerateName, n), fmt.Sprint(n)
		return false, nil, nil
	})
	return client
}

func listSlices(t *testing.T, client *fake.Clientset) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
