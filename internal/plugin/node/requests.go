// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// followRequests calls wanted each time that the controller names this node in PartitionRequests, until ctx ends. What
// the ConfigMap says at first was for an earlier instance: if a pod still waits, the controller names the node again.
func (o *Options) followRequests(ctx context.Context, wanted func()) {
	factory := informers.NewSharedInformerFactoryWithOptions(o.Client, 0,
		informers.WithNamespace(o.PartitionRequests.Namespace),
		informers.WithTweakListOptions(func(list *metav1.ListOptions) {
			list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.PartitionRequests.Name).String()
		}))
	changed := func(before, requests *corev1.ConfigMap) {
		if slices.Contains(inventory.Requested(before.Data, requests.Data), o.NodeName) {
			klog.FromContext(ctx).Info("A pod may wait for partitions of unused GPUs", "requested",
				requests.Data[inventory.RequestedAt])
			wanted()
		}
	}
	_, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(added any, first bool) {
			if requests, ok := added.(*corev1.ConfigMap); ok && !first {
				changed(&corev1.ConfigMap{}, requests)
			}
		},
		UpdateFunc: func(before, now any) {
			was, _ := before.(*corev1.ConfigMap)
			if requests, ok := now.(*corev1.ConfigMap); ok && was != nil {
				changed(was, requests)
			}
		},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Partitions are published late that pods wait for")
		return
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
}
