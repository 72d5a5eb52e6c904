// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// TestRemoteAmount: quotas count GPUs over the network as those of a node, and a claim for one of both once.
func TestRemoteAmount(t *testing.T) {
	const name = "remote.gpu.nvidia.com"
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	size := resource.MustParse("80Gi")
	v := clustertest.New(t, clustertest.SimNode{Name: "n", Profile: "t4-x2"})
	v.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == 'remote.gpu.nvidia.com'"}}}}})
	v.Remote = cluster.New(name)
	v.Remote.SetSlice(&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: resourceapi.ResourceSliceSpec{Driver: name, Pool: resourceapi.ResourcePool{Name: "remote"},
			NodeSelector: &corev1.NodeSelector{}, Devices: []resourceapi.Device{{Name: "server",
				AllowMultipleAllocations: ptr.To(true),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"gpu.nvidia.com/type": text("mig"), "gpu.nvidia.com/productName": text("H100"),
					"gpu.nvidia.com/peakCompute": {IntValue: ptr.To(int64(989))}},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: size,
					RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &size}}}}}}})
	alternative := func(class string) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: "a", DeviceClassName: class, Count: 1}
	}
	asks := func(all ...resourceapi.DeviceSubRequest) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{}
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: all}}
		return c
	}
	share := alternative(name)
	share.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		"memory": resource.MustParse("20Gi")}}
	has := func(device string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: name, Pool: "remote", Device: device,
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": size}}}}}
		return c
	}
	const whole, tflops = 80 << 30, 989
	for _, row := range []struct {
		name                        string
		claim                       *resourceapi.ResourceClaim
		gpus, memory, cores, tflops int64 // -1: unknown
	}{
		{"asks for a remote GPU", asks(alternative(name)), 1, whole, 100, tflops},
		{"asks for a share", asks(share), 1, 20 << 30, 0, 0},
		{"asks for a local or a remote one: the larger counts", asks(alternative("gpu.nvidia.com"), alternative(name)),
			1, whole, 100, tflops},
		{"has one", has("server"), 1, whole, 100, tflops},
		{"has one that is not published", has("gone"), 1, -1, -1, -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := v.AmountOf(t.Context(), row.claim)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[corev1.ResourceName]int64{cluster.AmountGPUs: row.gpus,
				cluster.AmountMemory: row.memory, cluster.AmountCores: row.cores, cluster.AmountTFLOPS: row.tflops} {
				if n, known := got[name]; known != (want >= 0) || known && n != want {
					t.Errorf("%s: got %d (known: %t), want %d", name, n, known, want)
				}
			}
		})
	}
	local := clustertest.New(t, clustertest.SimNode{Name: "n", Profile: "t4-x2"}).Kinds()
	if kinds := v.Kinds(); len(kinds) != len(local) {
		t.Errorf("the view of local devices has %d kinds, want %d: without the remote one", len(kinds), len(local))
	}
}
