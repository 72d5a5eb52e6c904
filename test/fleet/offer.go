// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// byNode is the index of allocated claims by the nodes of their devices.
const byNode = "node"

// offers publishes possible partitions of nodes as their plugins do on demand, with one watch of claims. A claim counts
// from its allocation on; for a plugin, from its preparation.
type offers struct {
	fleet  *Fleet
	claims cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string] // names of nodes
}

// startOffers starts following claims, and requests if they have a name, until the fleet ends. It returns when the
// caches are synced.
func (f *Fleet) startOffers(ctx context.Context, requests types.NamespacedName) error {
	o := offers{
		fleet: f,
		claims: resourceinformers.NewResourceClaimInformer(f.client, metav1.NamespaceAll, 0,
			cache.Indexers{byNode: f.nodesOf}),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	f.offers = o
	informers := []cache.SharedIndexInformer{o.claims}
	if err := o.claims.SetTransform(dropManagedFields); err != nil {
		return err
	}
	if _, err := o.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: o.changed,
		UpdateFunc: func(before, now any) { o.changed(before); o.changed(now) }, DeleteFunc: o.changed}); err != nil {
		return err
	}
	if requests.Name != "" {
		named := coreinformers.NewFilteredConfigMapInformer(f.client, requests.Namespace, 0, nil,
			func(list *metav1.ListOptions) {
				list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, requests.Name).String()
			})
		if _, err := named.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: o.asked}); err != nil {
			return err
		}
		informers = append(informers, named)
	}
	return follow(ctx, f, "Partitions not published", o.queue, o.sync, informers...)
}

// nodesOf returns the nodes of the devices of this driver that the claim has.
func (f *Fleet) nodesOf(claim any) (nodes []string, _ error) {
	for _, r := range f.results(claim) {
		if !slices.Contains(nodes, r.Pool) {
			nodes = append(nodes, r.Pool)
		}
	}
	return nodes, nil
}

// results returns the GPUs and partitions that the claim has. Their pools have the names of nodes.
func (f *Fleet) results(claim any) (all []resourceapi.DeviceRequestAllocationResult) {
	c, ok := claim.(*resourceapi.ResourceClaim)
	if !ok || c.Status.Allocation == nil {
		return nil
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if admin := r.AdminAccess != nil && *r.AdminAccess; r.Driver == f.driver && !admin {
			all = append(all, r)
		}
	}
	return all
}

func (o offers) changed(claim any) {
	if unknown, ok := claim.(cache.DeletedFinalStateUnknown); ok {
		claim = unknown.Obj
	}
	nodes, _ := o.fleet.nodesOf(claim)
	for _, node := range nodes {
		o.queue.Add(node)
	}
}

// asked publishes all possible partitions of unused GPUs of the nodes that the controller names.
func (o offers) asked(before, now any) {
	was, ok := before.(*corev1.ConfigMap)
	c, isMap := now.(*corev1.ConfigMap)
	if !ok || !isMap {
		return
	}
	for _, node := range inventory.Requested(was.Data, c.Data) {
		if m := o.fleet.member(node); m != nil {
			m.mu.Lock()
			m.wanted = true
			m.mu.Unlock()
			o.queue.Add(node)
		}
	}
}

// sync publishes what the node offers now.
func (o offers) sync(ctx context.Context, node string) error {
	m := o.fleet.member(node)
	if m == nil {
		return nil
	}
	use, err := o.uses(node)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slices == nil {
		return nil // it joins or leaves
	}
	if m.stale {
		if err := o.fleet.readSlices(ctx, m); err != nil {
			return err
		}
		m.stale, m.offered.GPUs = false, nil
	}
	next := m.offered.Next(m.inventory, use, time.Now(), m.wanted, false)
	m.offered.Since = next.Since
	if err := o.fleet.republish(ctx, m, next.GPUs); err != nil {
		m.stale = true
		return err
	}
	m.wanted, m.offered = false, next
	if at := withdrawal(next); at.After(time.Now()) {
		o.queue.AddAfter(node, time.Until(at))
	}
	return nil
}

// uses returns how claims have the GPUs of the node.
func (o offers) uses(node string) (func(gpu string) inventory.Use, error) {
	claims, err := o.claims.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil, err
	}
	uses := map[string]inventory.Use{}
	for _, claim := range claims {
		for _, r := range o.fleet.results(claim) {
			name := gpu.ParentName(r.Device)
			if r.Pool != node || uses[name] == inventory.UsedInParts {
				continue
			}
			uses[name] = inventory.UsedWhole
			if gpu.IsPartition(r.Device) {
				uses[name] = inventory.UsedInParts
			}
		}
	}
	return func(name string) inventory.Use { return uses[name] }, nil
}

// readSlices reads the slices of the node, of which a write may have failed and be stored.
func (f *Fleet) readSlices(ctx context.Context, m *member) error {
	found, err := f.client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: inventory.SelectSlices(f.driver, m.Name)})
	if err != nil {
		return fmt.Errorf("read its slices: %w", err)
	}
	m.slices = []*resourceapi.ResourceSlice{}
	for i := range found.Items {
		m.slices = append(m.slices, &found.Items[i])
	}
	return nil
}

// withdrawal returns when the next possible partitions are withdrawn, if claims do not change. Zero: never.
func withdrawal(o inventory.Offered) (next time.Time) {
	for name, since := range o.Since {
		if at := since.Add(inventory.WithdrawAfter); o.GPUs[name] && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// republish changes the slices of the node's GPUs to what is offered, if that is new. As the controller of
// kubeletplugin does, it writes them with a new generation.
func (f *Fleet) republish(ctx context.Context, m *member, offered map[string]bool) error {
	if maps.Equal(offered, m.offered.GPUs) {
		return nil
	}
	api := f.client.ResourceV1().ResourceSlices()
	var old, all []*resourceapi.ResourceSlice
	for _, s := range m.slices {
		if s.Spec.Pool.Name == m.Name {
			old = append(old, s)
		} else {
			all = append(all, s)
		}
	}
	defer func() { m.slices = append(all, old...) }() // old ones are left if a write fails
	wanted := inventory.Slices(f.driver, m.Name, m.inventory.Only(offered).Pools(m.Name))
	wanted = slices.DeleteFunc(wanted, func(s *resourceapi.ResourceSlice) bool { return s.Spec.Pool.Name != m.Name })
	generation := int64(1)
	for _, s := range old {
		generation = max(generation, s.Spec.Pool.Generation+1)
	}
	for _, s := range wanted {
		s.Spec.Pool.Generation = generation
		var err error
		if len(old) > 0 {
			s.ObjectMeta = old[0].ObjectMeta
			if s, err = api.Update(ctx, s, metav1.UpdateOptions{}); err == nil {
				old = old[1:]
			}
		} else {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.Name,
				UID: m.object.UID, Controller: ptr.To(true)}}
			s, err = api.Create(ctx, s, metav1.CreateOptions{})
		}
		if err != nil {
			return fmt.Errorf("publish a slice: %w", err)
		}
		all = append(all, s)
	}
	for ; len(old) > 0; old = old[1:] {
		if err := api.Delete(ctx, old[0].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove a slice: %w", err)
		}
	}
	return nil
}

// Settled reports whether all nodes publish what they should by the claims that are known, and will until these change.
func (f *Fleet) Settled() bool {
	return f.offers.queue == nil || !slices.ContainsFunc(f.members(), func(m *member) bool {
		use, err := f.offers.uses(m.Name)
		m.mu.Lock()
		defer m.mu.Unlock()
		return err != nil || m.wanted || !withdrawal(m.offered).IsZero() ||
			!maps.Equal(m.offered.Next(m.inventory, use, time.Now(), false, false).GPUs, m.offered.GPUs)
	})
}
