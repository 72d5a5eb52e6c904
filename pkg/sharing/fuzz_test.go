// SPDX-License-Identifier: Apache-2.0

package sharing_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// FuzzDecode looks for parameters that make the reader of configurations panic, or that it accepts and Prepare does
// not: what a claim may say is decided when it is typed. Prepare may only refuse what it alone knows: how much memory
// the GPU has, and which GPUs there are.
func FuzzDecode(f *testing.F) {
	const head = `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"`
	for _, seed := range []string{
		head + `}`, `{}`, `null`, `[]`, `"`, head + `, "sharing": null}`,
		head + `, "sharing": {"strategy": "TimeSlicing"}}`,
		head + `, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}}`,
		head + `, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`,
		head + `, "sharing": {"strategy": "MPS"}, "environment": {"A": "b"}}`,
		head +
			`, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi", "multiUser": true}}}`,
		head +
			`, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", "GPU-1": 5e9}}}}`,
		head +
			`, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "9223372036854775807"}}}`,
		`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}`,
		`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig", "iommu": {}}`,
		`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "LocalIPCConfig", "enabled": true}`,
	} {
		f.Add([]byte(seed))
	}
	const driver, memory = "gpu.nvidia.com", 80 << 30
	d := gpu.Device{Name: "gpu-3b-00-0", Type: gpu.TypeGPU, UUID: "GPU-1", Memory: memory,
		Use: gpu.SharingMode{Sharing: gpu.Exclusive}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := api.Decode(raw, nil)
		if err != nil {
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("accepted what is no JSON: %q", raw)
		}
		claim := &resourceapi.ResourceClaim{}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: "node",
				Device: d.Name}},
			Config: []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClaim,
				DeviceConfiguration: resourceapi.DeviceConfiguration{
					Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver,
						Parameters: runtime.RawExtension{Raw: raw}}}}},
		}}
		results, err := allocation.Results(claim, driver)
		if err != nil {
			t.Fatalf("%s: Decode accepts it, and of an allocated claim it is refused: %v", raw, err)
		}
		mps := config.Sharing.MPS
		onlyTheNodeKnows := mps != nil && (mps.Memory > memory || len(mps.MemoryPerDevice) > 0)
		if _, err := sharing.NewPlan(results, inventory.Inventory{d}, nil); err != nil &&
			(!onlyTheNodeKnows || !errors.Is(err, sharing.ErrRefused)) {
			t.Fatalf("%s: Decode accepts it, Prepare does not: %v", raw, err)
		}
	})
}

// FuzzClaim plans claims of any content, allocated in any way. A plan is for exactly the devices of the claim, and
// these are of the node; it is the same each time, and the same after it was stored.
func FuzzClaim(f *testing.F) {
	const head = `{"status": {"allocation": {"devices": {"results": [{"request": "a", "driver": "gpu.nvidia.com", "pool": "node", "device": `
	for _, seed := range []string{`{}`, head + `"gpu-3b-00-0"}]}}}}`, head + `"gpu-3b-00-0"}, {"driver": "gpu.nvidia.com"}]}}}}`,
		head + `"gpu-3b-00-0", "shareID": "1", "consumedCapacity": {"memory": "1e30", "cores": "-1", "shares": "9e18"}}]}}}}`,
		head + `"gpu-3b-00-0"}], "config": [{}, {"opaque": null}, {"opaque": {"driver": "gpu.nvidia.com"}}]}}}}`,
		head + `"monitor", "adminAccess": true}]}}}}`, head + `"gpu-3b-00-0"}, {"request": "b", "driver": "gpu.nvidia.com", ` +
			`"device": "gpu-3b-00-0", "consumedCapacity": {"shares": "2"}}]}}}}`} {
		f.Add([]byte(seed))
	}
	inv := inventory.Inventory{}
	for _, use := range []gpu.SharingMode{{Sharing: gpu.Exclusive}, {Sharing: gpu.Fractional},
		{Sharing: gpu.Replicated, Replicas: 4}, {Sharing: gpu.Replicated}, {Sharing: gpu.Unlimited}} {
		inv = append(inv, gpu.Device{Name: "gpu-3b-00-0", Type: gpu.TypeGPU, UUID: "GPU-1", Memory: 80 << 30, Use: use})
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var claim resourceapi.ResourceClaim
		if json.Unmarshal(raw, &claim) != nil {
			return
		}
		results, err := allocation.Results(&claim, "gpu.nvidia.com")
		if err != nil {
			return
		}
		for i := range inv {
			plan, err := sharing.NewPlan(results, inv[i:i+1], nil)
			again, errAgain := sharing.NewPlan(results, inv[i:i+1], nil)
			if fmt.Sprint(err) != fmt.Sprint(errAgain) || !reflect.DeepEqual(plan, again) {
				t.Errorf("got %+v, %v and then %+v, %v", plan, err, again, errAgain)
			}
			if err != nil {
				continue
			}
			if !plan.Fulfils(results) {
				t.Errorf("got %+v for %+v", plan, results)
			}
			for _, a := range plan.Assignments {
				if a.Device != inv[i].Name && !(a.IsMonitor() && a.AdminAccess) {
					t.Errorf("got %+v, a device that is not on the node", a)
				}
			}
			stored, err := json.Marshal(plan)
			var read sharing.Plan
			if err = errors.Join(err, json.Unmarshal(stored, &read)); err != nil {
				t.Fatal(err)
			}
			if restored, err := json.Marshal(read); err != nil || string(restored) != string(stored) {
				t.Errorf("stored as %s, and then as %s, error %v", stored, restored, err)
			}
		}
	})
}
