// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

const driver = "gpu.nvidia.com"

// The controller of kubeletplugin must find nothing to do. Otherwise each start of the driver would write the slices
// twice.
func TestControllerKeepsFirstSlices(t *testing.T) {
	pools := map[string]inventory.Pool{
		"node": {Slices: []inventory.Slice{
			{Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}}},
			{Devices: []resourceapi.Device{{Name: "gpu-1-mig-1g10gb-0"}}}}},
		"node/monitor": {Slices: []inventory.Slice{{Devices: []resourceapi.Device{{Name: "monitor"}}}}}}
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
		Resources:  resourcesOf(pools)})
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
	more := inventory.Pool{Slices: slices.Clone(pools["node"].Slices)}
	more.Slices[0].Devices = append(slices.Clone(more.Slices[0].Devices), resourceapi.Device{Name: "gpu-2"})
	controller.Update(resourcesOf(map[string]inventory.Pool{"node": more}))
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
	pools := map[string]inventory.Pool{"node": {Slices: []inventory.Slice{{}}}}
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
	var created atomic.Int32
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		n := created.Add(1)
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

// Others take the first device of the driver for a GPU, such as the end-to-end tests of NVIDIA's driver.
func TestTheFirstDeviceIsAGPU(t *testing.T) {
	gates := learned(t, &oldServer{})
	for _, nodes := range [][]string{{"node"}, {"a", "a-0", "a.b", "z"}, {strings.Repeat("long-", 12) + "1", "m"}} {
		dirs := map[string]string{}
		for _, node := range nodes {
			dirs[node] = t.TempDir()
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			clients := map[string]*fake.Clientset{} // the one for tests knows no field selectors
			var running sync.WaitGroup
			for _, node := range nodes {
				client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
				client.PrependReactor("create", "resourceslices", nameAtRandom)
				p := New(PublisherConfig{Client: client, Driver: driver, Node: node, Dir: dirs[node],
					Readiness: report.NewReadiness(time.Minute)})
				p.Gates, clients[node] = gates, client
				running.Go(func() { p.Run(ctx); p.Stop() })
				p.Set(inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}}))
			}
			for round := range 10 {
				time.Sleep(5 * time.Second)
				var all []resourceapi.ResourceSlice
				for _, client := range clients {
					of := listSlices(t, client)
					if all = append(all, of...); len(of) != 2 {
						t.Errorf("round %d: got %d slices of a node, want 2", round, len(of))
					}
					for _, s := range of { // the first slices are of FirstSlices, the next ones of the controller
						err := client.ResourceV1().ResourceSlices().Delete(ctx, s.Name, metav1.DeleteOptions{})
						if err != nil {
							t.Error(err)
						}
					}
				}
				first := slices.MinFunc(all, func(a, b resourceapi.ResourceSlice) int {
					return cmp.Compare(a.Name, b.Name)
				})
				if got := first.Spec.Devices[0].Name; got != "gpu-0" {
					t.Errorf("round %d: got %s of slice %s, want gpu-0", round, got, first.Name)
				}
			}
			cancel()
			running.Wait()
		})
	}
}

// nameAtRandom names a new slice as the API server does.
func nameAtRandom(a clienttesting.Action) (bool, runtime.Object, error) {
	const room = 58
	slice := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
	slice.Name = slice.GenerateName[:min(room, len(slice.GenerateName))] + rand.String(5)
	slice.ResourceVersion = "1"
	return false, nil, nil
}

// An older version has named the slice of the monitor device like those of GPUs.
func TestTheSliceOfTheMonitorIsRenamed(t *testing.T) {
	client := newServer()
	api := client.ResourceV1().ResourceSlices()
	pools := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}}).Pools("node")
	for _, s := range inventory.Slices(driver, "node", pools) {
		s.GenerateName = "00000-gpu.nvidia.com-node-"
		if _, err := api.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := FirstSlices(t.Context(), client, driver, "node", pools); err != nil {
			t.Fatal(err)
		}
		if left := listSlices(t, client); len(left) != 1 || left[0].Spec.Pool.Name != "node" {
			t.Errorf("got %v, want only the slice of the GPU, as it was", left)
		}
	}
}

func TestWithoutTheMonitor(t *testing.T) {
	dir, gates := t.TempDir(), learned(t, &oldServer{})
	synctest.Test(t, func(t *testing.T) {
		published := ""
		p, stop := startPublisher(t, dir, gates, func(pools map[string]inventory.Pool) error {
			published = fmt.Sprint(slices.Sorted(maps.Keys(pools)))
			return nil
		})
		p.WithoutMonitor = true
		p.Set(inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}}))
		synctest.Wait()
		stop()
		if published != "[node]" {
			t.Errorf("got the pools %s, want only that of the node", published)
		}
	})
}
