// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// repairDelay is the time between a change of a slice by somebody else and its repair. kubeletplugin waits 30 s, in
// which nothing can be scheduled on the node: a kubelet that starts removes all slices of its node, and often does so
// after it has registered the plugin.
const repairDelay = 500 * time.Millisecond

// startOrUpdate takes ctx from the first call: the slices are kept until it ends or until Stop. The controller keeps
// the UID of its owner. For another Node object of the same name there is another controller, and for none there is
// none: Kubernetes removes what belongs to a Node that is gone.
func (p *Publisher) startOrUpdate(ctx context.Context, pools map[string]inventory.Pool) error {
	node, err := p.Client.CoreV1().Nodes().Get(ctx, p.Node, metav1.GetOptions{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.controller != nil {
		if err != nil && !apierrors.IsNotFound(err) || err == nil && node.UID == p.owner {
			p.controller.Update(resourcesOf(pools))
			return err
		}
		klog.FromContext(ctx).Info("The Node object is gone or another one", "before", p.owner)
		p.controller.Stop()
		p.controller = nil
	}
	if err != nil {
		return fmt.Errorf("start to publish: %w", err)
	}
	p.owner = node.UID
	p.controller, err = resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: p.Driver, KubeClient: sliceNames{p.Client}, Resources: resourcesOf(pools),
		ErrorHandler: p.Gates.failed,
		Owner:        &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: p.Node, UID: p.owner},
		SyncDelay:    ptr.To(repairDelay),
	})
	if err != nil {
		return fmt.Errorf("start to publish: %w", err)
	}
	return nil
}

// resourcesOf returns the pools as the controller wants them.
func resourcesOf(pools map[string]inventory.Pool) *resourceslice.DriverResources {
	all := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for name, of := range pools {
		var pool resourceslice.Pool
		for _, s := range of.Slices {
			pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters})
		}
		all.Pools[name] = pool
	}
	return all
}

// sliceNames makes the controller name slices as inventory.Slices does: it would name those of monitor devices like
// those of GPUs. Of a name, it reads only the number.
type (
	sliceNames   struct{ kubernetes.Interface }
	sliceNamesV1 struct {
		resourceclient.ResourceV1Interface
	}
	namedSlices struct {
		resourceclient.ResourceSliceInterface
	}
)

func (c sliceNames) ResourceV1() resourceclient.ResourceV1Interface {
	return sliceNamesV1{c.Interface.ResourceV1()}
}

// IsWatchListSemanticsUnSupported is how a client for tests says what it lacks.
func (c sliceNames) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(c.Interface)
}

func (c sliceNamesV1) ResourceSlices() resourceclient.ResourceSliceInterface {
	return namedSlices{c.ResourceV1Interface.ResourceSlices()}
}

func (c namedSlices) Create(ctx context.Context, s *resourceapi.ResourceSlice, o metav1.CreateOptions) (
	*resourceapi.ResourceSlice, error) {
	if node := *s.Spec.NodeName; s.Spec.Pool.Name == inventory.MonitorPool(node) {
		s.GenerateName = inventory.SlicePrefix(0, s.Spec.Driver, node, s.Spec.Pool.Name) + node + "-"
	}
	return c.ResourceSliceInterface.Create(ctx, s, o)
}

// FirstSlices creates the slices of a node that has none yet, as the controller of kubeletplugin would. The controller
// would start a second later, because it waits for its informer. It then finds the slices as it would have created
// them, and leaves them alone. FirstSlices returns the created slices in the order of inventory.Slices: the
// GPUs before the monitor device, because Karpenter takes a new node for ready when one pool of its driver is complete.
// Of existing slices it deletes that of the monitor device if an older version has named it like those of GPUs.
func FirstSlices(ctx context.Context, client kubernetes.Interface, driver, nodeName string,
	pools map[string]inventory.Pool) ([]*resourceapi.ResourceSlice, error) {
	api := client.ResourceV1().ResourceSlices()
	found, err := api.List(ctx, metav1.ListOptions{FieldSelector: inventory.SelectSlices(driver, nodeName)})
	if err != nil {
		return nil, err
	}
	for _, s := range found.Items {
		pool := s.Spec.Pool.Name
		if pool == inventory.MonitorPool(nodeName) &&
			!strings.HasPrefix(s.Name, inventory.SlicePrefix(0, driver, nodeName, pool)) {
			err = errors.Join(err, api.Delete(ctx, s.Name, metav1.DeleteOptions{}))
		}
	}
	if err != nil || len(found.Items) > 0 {
		return nil, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var written []*resourceapi.ResourceSlice
	for _, slice := range inventory.Slices(driver, nodeName, pools) {
		slice.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node.UID, Controller: ptr.To(true)}}
		created, err := api.Create(ctx, slice, metav1.CreateOptions{})
		if err != nil {
			return written, fmt.Errorf("create slice %s of pool %s: %w", slice.GenerateName, slice.Spec.Pool.Name, err)
		}
		written = append(written, created)
	}
	return written, nil
}
