// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// TestAllocation: the scheduler's own allocator gives a remote device to a claim that asks for the class of remote
// devices, on nodes with the label, and to no other.
func TestAllocation(t *testing.T) {
	w := newWorld(t)
	w.do("server a 1 0")
	w.do("round")
	client := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "client",
		Labels: map[string]string{remote.ClientLabel: "true"}}}
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}
	local := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "t4", Labels: client.Labels}}
	pool := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "remote"},
		Spec: resourceapi.ResourceSliceSpec{Driver: "remote.gpu.nvidia.com", Devices: w.pool,
			Pool: resourceapi.ResourcePool{Name: remote.Pool, ResourceSliceCount: 1}, NodeSelector: clients()}}
	slices := append(clustertest.Slices(t, clustertest.SimNode{Name: "t4", Profile: "t4-x2"}), pool)
	either := "[{name: gpu, firstAvailable: [{name: local, deviceClassName: gpu.nvidia.com}, " +
		"{name: remote, deviceClassName: remote.gpu.nvidia.com}]}]"
	of := func(more string) string {
		return "[{name: gpu, exactly: {deviceClassName: remote.gpu.nvidia.com, " + more + "}}]"
	}
	selecting := func(cel string) string { return of(`selectors: [{cel: {expression: "` + cel + `"}}]`) }
	const attribute = "device.attributes['gpu.nvidia.com']."
	type row struct {
		name, requests string
		node           *corev1.Node
		want           string
	}
	rows := []row{
		{"a local GPU first", either, local, "gpu/local=local"},
		{"else a remote one", either, client, "gpu/remote=remote"},
		{"none on a node without the label", either, plain, ""},
		{"a share", of("capacity: {requests: {memory: 5Gi}}"), client, "gpu=remote"},
		{"more than there is", of("capacity: {requests: {memory: 500Gi}}"), client, ""},
		{"by the model", selecting(attribute + "productName.contains('H100')"), client, "gpu=remote"},
		{"by another model", selecting(attribute + "productName.contains('T4')"), client, ""},
		{"by memory, as of local GPUs",
			selecting("device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('70Gi'))"), client,
			"gpu=remote"},
		{"by its node", selecting(attribute + "remote && " + attribute + "remoteNode == 'gpu-node'"), client,
			"gpu=remote"},
		{"by its engine", selecting(attribute + "remoteEngine == 'lupine'"), client, "gpu=remote"},
	}
	known := allocator.Classes{"remote.gpu.nvidia.com": {Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.
		DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'remote.gpu.nvidia.com'"}}}}}}
	for _, c := range clustertest.Classes(t) {
		if _, own := remote.Local(c.Name); own {
			continue
		}
		known[c.Name] = c
		for _, mode := range []string{"", ", allocationMode: All", ", adminAccess: true"} {
			rows = append(rows, row{"class " + c.Name + mode,
				"[{name: gpu, exactly: {deviceClassName: " + c.Name + mode + "}}]", client, ""})
		}
	}
	if len(known) < 8 {
		t.Errorf("%d classes, want those of the chart", len(known))
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "c", UID: "c"}}
			if err := yaml.UnmarshalStrict([]byte("requests: "+r.requests), &claim.Spec.Devices); err != nil {
				t.Fatal(err)
			}
			for i := range claim.Spec.Devices.Requests { // what the API server fills in
				request := &claim.Spec.Devices.Requests[i]
				if e := request.Exactly; e != nil && e.AllocationMode == "" {
					e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeExactCount, 1
				}
				for j := range request.FirstAvailable {
					request.FirstAvailable[j].AllocationMode = resourceapi.DeviceAllocationModeExactCount
					request.FirstAvailable[j].Count = 1
				}
			}
			results, err := known.Place(t.Context(), allocator.NewCache(10), r.node, slices, allocator.HeldBy(nil, nil),
				claim)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, result := range results {
				for _, d := range result.Devices.Results {
					where := "local"
					if d.Driver == "remote.gpu.nvidia.com" {
						where = "remote"
						if strings.Join(d.BindingConditions, "") != remote.SessionReady ||
							strings.Join(d.BindingFailureConditions, "") != remote.ServerLost {
							t.Errorf("got the conditions %v, %v", d.BindingConditions, d.BindingFailureConditions)
						}
					}
					got += d.Request + "=" + where
				}
			}
			if got != r.want {
				t.Errorf("got %q, want %q", got, r.want)
			}
		})
	}
}

// TestDevice: what a claim has of a local device is what a server offers of it, within the limits of a slice.
func TestDevice(t *testing.T) {
	all := clustertest.Slices(t, clustertest.SimNode{Name: "n", Profile: "dgx-h100"})
	seen := map[string]bool{}
	for _, s := range all {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			kind := ptr.Deref(d.Attributes["type"].StringValue, "")
			if kind != "gpu" && kind != "mig" {
				continue
			}
			seen[kind] = true
			result, err := remoteDevice(clustertest.Driver, d, &resourceapi.DeviceRequestAllocationResult{})
			if err != nil {
				t.Fatalf("%s: %v", d.Name, err)
			}
			const added, most = 3, resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice // remoteNode and others
			if n := len(result.Attributes) + len(result.Capacity) + added; n > most {
				t.Errorf("%s: %d attributes and capacities", d.Name, n)
			}
			got, want := result.Capacity["memory"].Value, d.Capacity["memory"].Value
			if got.Cmp(want) != 0 {
				t.Errorf("%s: got %s of memory, want %s", d.Name, got.String(), want.String())
			}
		}
	}
	if len(seen) != 2 {
		t.Errorf("looked at %v, want GPUs and partitions", seen)
	}
}
