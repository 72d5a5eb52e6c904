// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// A node publishes partitions of another GPU when a claim has some, of fewer when claims have GPUs as a whole for a
// minute, and of all unused ones when the controller names it.
func TestOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "requests"}}
		client := newServer(requests, claimFor("early", "gpu-df-00-0"))
		f, err := start(t.Context(), client, Config{Nodes: []Node{{Name: "fleet-1", Profile: "dgx-h100"}}, Inert: true,
			OnDemand: true, Requests: types.NamespacedName{Namespace: "ns", Name: "requests"}})
		requireError(t, err, "")
		requirePublished(t, client, "d1 df")
		time.Sleep(inventory.WithdrawAfter) // the earlier claim has held it for a minute
		requirePublished(t, client, "d1")
		if !f.Settled() {
			t.Error("nothing is held as a whole of what is published, and the nodes are not settled")
		}
		claims := client.ResourceV1().ResourceClaims("default")
		_, err = claims.Create(t.Context(), claimFor("part", "gpu-d1-00-0-mig-1g10gb-0"), metav1.CreateOptions{})
		requireError(t, err, "")
		requirePublished(t, client, "c3 d1")
		_, err = claims.Create(t.Context(), claimFor("whole", "gpu-c3-00-0"), metav1.CreateOptions{})
		requireError(t, err, "")
		requirePublished(t, client, "9d c3 d1")
		if f.Settled() {
			t.Error("a GPU that is held as a whole is published, and the nodes are settled")
		}
		requireError(t, claims.Delete(t.Context(), "whole", metav1.DeleteOptions{}), "")
		time.Sleep(2 * inventory.WithdrawAfter)
		requirePublished(t, client, "9d c3 d1")
		requests.Data = map[string]string{inventory.RequestedNodes: "other fleet-1", inventory.RequestedAt: "now"}
		_, err = client.CoreV1().ConfigMaps("ns").Update(t.Context(), requests, metav1.UpdateOptions{})
		requireError(t, err, "")
		requirePublished(t, client, "1b 43 52 61 9d c3 d1")
		requireError(t, f.Stop(t.Context()), "")
		requireState(t, client, "\n")
	})
}

func claimFor(name, device string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: Driver, Pool: "fleet-1", Device: device}}}}
	return c
}

// requirePublished compares the GPUs whose possible partitions are published, by their bus.
func requirePublished(t *testing.T, client kubernetes.Interface, want string) {
	t.Helper()
	synctest.Wait()
	found, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	requireError(t, err, "")
	var got, pools []string
	count := map[string]int64{}
	for _, s := range found.Items {
		pool := fmt.Sprint(s.Spec.Pool)
		if count[pool]++; count[pool] == s.Spec.Pool.ResourceSliceCount {
			pools = append(pools, s.Spec.Pool.Name)
		}
		for _, d := range s.Spec.Devices {
			if bus := strings.Split(d.Name, "-"); len(bus) > 4 && !slices.Contains(got, bus[1]) {
				got = append(got, bus[1])
			}
		}
	}
	slices.Sort(got)
	if strings.Join(got, " ") != want {
		t.Errorf("got the partitions of %v published, want %s", got, want)
	}
	slices.Sort(pools)
	if want := []string{"fleet-1", "fleet-1/monitor"}; !slices.Equal(pools, want) || len(count) != len(want) {
		t.Errorf("got the complete pools %v of %v, want %v", pools, count, want)
	}
}
