// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

// FirstSlices creates the slices of a node that has none yet, as the controller of kubeletplugin would. The controller
// would start a second later, because it waits for its informer. It then finds the slices as it would have created
// them, and leaves them alone. FirstSlices returns the created slices in the order of the pool.
func FirstSlices(ctx context.Context, client kubernetes.Interface, driver, nodeName string, pool resourceslice.Pool) (
	[]*resourceapi.ResourceSlice, error) {
	slices := client.ResourceV1().ResourceSlices()
	own := fields.Set{resourceapi.ResourceSliceSelectorDriver: driver,
		resourceapi.ResourceSliceSelectorNodeName: nodeName}
	found, err := slices.List(ctx, metav1.ListOptions{FieldSelector: own.String(), Limit: 1})
	if err != nil || len(found.Items) > 0 {
		return nil, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var written []*resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{
				// The controller identifies a slice by the number at the beginning of its name.
				GenerateName: fmt.Sprintf("%05x-%s-%s-", i, driver, nodeName),
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node.UID, Controller: ptr.To(true)}},
			},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver,
				Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1,
					ResourceSliceCount: int64(len(pool.Slices))},
				NodeName:               &nodeName,
				Devices:                s.Devices,
				SharedCounters:         s.SharedCounters,
				PerDeviceNodeSelection: s.PerDeviceNodeSelection,
				PartitionTypeAttribute: s.PartitionTypeAttribute,
				SkipNodeOperations:     s.SkipNodeOperations,
			},
		}
		slice, err := slices.Create(ctx, slice, metav1.CreateOptions{})
		if err != nil {
			return written, fmt.Errorf("create slice %d: %w", i, err)
		}
		written = append(written, slice)
	}
	return written, nil
}
