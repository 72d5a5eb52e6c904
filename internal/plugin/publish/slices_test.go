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
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// A kubelet that starts removes the slices of its node, at any moment before or after it has registered the plugin.
func TestRemovedSlicesAreBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newServer()
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
		pool := inventory.Pool{Slices: []inventory.Slice{{Devices: []resourceapi.Device{{Name: "gpu-0"}}}}}
		err := p.control(ctx, map[string]inventory.Pool{"node": pool})
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

// The Node object was deleted, and later made anew under its name. Kubernetes removes what belongs to the former one.
func TestSlicesFollowTheNodeObject(t *testing.T) {
	dir, gates := t.TempDir(), learned(t, &oldServer{})
	synctest.Test(t, func(t *testing.T) {
		client := newServer()
		api, nodes := client.ResourceV1().ResourceSlices(), client.CoreV1().Nodes()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		writes := func() (n int) {
			for _, a := range client.Actions() {
				if a.GetResource().Resource == "resourceslices" && (a.Matches("create", "resourceslices") ||
					a.Matches("update", "resourceslices")) {
					n++
				}
			}
			return n
		}
		// collectGarbage works for a minute, and returns the owners of the slices that it leaves.
		collectGarbage := func() (owners []types.UID) {
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				node, err := nodes.Get(t.Context(), "node", metav1.GetOptions{})
				owners = nil
				for _, s := range listSlices(t, client) {
					if err != nil || s.OwnerReferences[0].UID != node.UID {
						must(api.Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
					} else {
						owners = append(owners, s.OwnerReferences[0].UID)
					}
				}
			}
			return owners
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := New(PublisherConfig{Client: client, Driver: driver, Node: "node", Dir: dir,
			Readiness: report.NewReadiness(time.Minute)})
		p.Gates = gates
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.Run(ctx)
		}()
		inv := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}})
		for _, row := range []struct {
			name   string
			change func()
			want   string
			writes int // of two slices
		}{
			{"at first", func() {}, "[node-uid node-uid]", 2},
			{"nothing has changed", p.Stale, "[node-uid node-uid]", 0},
			{"the Node is gone", func() {
				must(nodes.Delete(ctx, "node", metav1.DeleteOptions{}))
				p.Stale()
			}, "[]", 0},
			{"it is made anew", func() {
				_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "new"}},
					metav1.CreateOptions{})
				must(err)
				p.Stale()
			}, "[new new]", 2},
			{"another one at once", func() {
				must(nodes.Delete(ctx, "node", metav1.DeleteOptions{}))
				_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "newer"}},
					metav1.CreateOptions{})
				must(err)
				p.Stale()
			}, "[newer newer]", 2},
		} {
			before := writes()
			row.change()
			p.Set(inv)
			if got := fmt.Sprint(collectGarbage()); got != row.want {
				t.Errorf("%s: got slices of the Nodes %s, want %s", row.name, got, row.want)
			}
			if got := writes() - before; got != row.writes {
				t.Errorf("%s: %d slices were written in a minute, want %d", row.name, got, row.writes)
			}
		}
		cancel()
		<-ended
		p.Stop()
	})
}

// The next instance may publish once Stop has returned: the API server has answered by then.
func TestStopAwaitsTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, answer := newServer(), make(chan struct{})
		client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-answer
			return false, nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		p := New(PublisherConfig{Client: client, Driver: driver, Node: "node"})
		pool := inventory.Pool{Slices: []inventory.Slice{{Devices: []resourceapi.Device{{Name: "gpu-0"}}}}}
		err := p.control(ctx, map[string]inventory.Pool{"node": pool})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		stopped := false
		go func() { p.Stop(); stopped = true }()
		for _, want := range []bool{false, true} {
			if synctest.Wait(); stopped != want {
				t.Errorf("got that it has stopped: %t, want %t", stopped, want)
			}
			if !want {
				close(answer)
			}
		}
	})
}
