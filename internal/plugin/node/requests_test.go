// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// TestFollowRequests: each request that names this node is noticed, but for what the ConfigMap said at first.
func TestFollowRequests(t *testing.T) {
	request := func(at int, nodes string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "requests"},
			Data: map[string]string{inventory.RequestedNodes: nodes, inventory.RequestedAt: fmt.Sprint(at)}}
	}
	client, changes := fake.NewClientset(request(1, "node-1")), watch.NewRaceFreeFake()
	client.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, changes, nil
	})
	o := Options{NodeName: "node-1", Client: client,
		PartitionRequests: types.NamespacedName{Namespace: "ns", Name: "requests"}}
	for i, nodes := range []string{"node-2 node-1", "node-10", "", "node-1", "node-1"} {
		changes.Modify(request(i+2, nodes))
	}
	changes.Modify(request(6, "node-1")) // with another label: no request
	changes.Delete(request(7, ""))
	changes.Add(request(8, "node-1"))
	ctx, end := context.WithCancel(t.Context())
	wanted, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		o.followRequests(ctx, func() { wanted <- struct{}{} })
	}()
	for range 4 {
		<-wanted
	}
	end()
	<-ended
	if n := len(wanted); n > 0 {
		t.Errorf("noticed %d requests too many", n)
	}
}
