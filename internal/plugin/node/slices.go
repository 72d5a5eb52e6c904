// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

// repairDelay is the time between a change of a slice by somebody else and its repair. kubeletplugin waits 30 s, in
// which nothing can be scheduled on the node: a kubelet that starts removes all slices of its node, and often does so
// after it has registered the plugin.
const repairDelay = 500 * time.Millisecond

// Slices keeps the ResourceSlices of a node as they should be, with the controller that kubeletplugin uses.
type Slices struct {
	Client           kubernetes.Interface
	Driver, NodeName string
	// Failed is called with each error of a write.
	Failed func(ctx context.Context, err error, msg string)

	mu         sync.Mutex
	controller *resourceslice.Controller
}

// Publish starts to write the resources, and replaces those of an earlier call. ctx is the one of the first call: the
// slices are kept until it ends or until Stop.
func (s *Slices) Publish(ctx context.Context, resources resourceslice.DriverResources) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller != nil {
		s.controller.Update(&resources)
		return nil
	}
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: s.Driver, KubeClient: s.Client, Resources: &resources, ErrorHandler: s.Failed,
		Owner:     &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: s.NodeName},
		SyncDelay: ptr.To(repairDelay),
	})
	if err != nil {
		return fmt.Errorf("start to publish: %w", err)
	}
	s.controller = controller
	return nil
}

// Stop returns when no request is in flight any more. The slices stay.
func (s *Slices) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller != nil {
		s.controller.Stop()
	}
}
