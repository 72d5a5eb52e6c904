// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// TestWhatIsOfferedIsPrepared: a device that the allocator gives to a claim of one device is one that the node accepts,
// of every model, under every node configuration of sharing, with every driver and every kind of control groups.
func TestWhatIsOfferedIsPrepared(t *testing.T) {
	machines := map[string]func(*gpu.Device){
		"R580":               func(d *gpu.Device) { d.DriverVersion = "580.95.05" },
		"R615":               func(d *gpu.Device) { d.DriverVersion = "615.10" },
		"R615 and cgroup v1": func(d *gpu.Device) { d.DriverVersion, d.CgroupV1 = "615.10", true },
	}
	var configs []string
	for _, sharing := range []string{"fractional", "{replicated: 1}", "{replicated: 4}", "{replicated: 48}"} {
		for _, isolation := range []string{"mps", "none", "cgroup", "hook, hook: {library: /lib/hook.so}"} {
			configs = append(configs, fmt.Sprintf("{sharing: %s, isolation: %s}", sharing, isolation))
		}
	}
	configs = append(configs, "{sharing: exclusive}", "{sharing: unlimited}", "{partitions: dynamic}",
		"{sharing: {replicated: 4}, onePerClaim: true}", "{sharing: {replicated: 4}, sharedOnly: true}")
	shapes := []string{"", "memory=5Gi", "memory=5Gi cores=30", "memory=5Gi cores=0", "memory=1 cores=100", "memory=0",
		"cores=30", "cores=100", "shares=1", "shares=2", "shares=4", "shares=48"}
	ctx := context.Background()
	cache := allocator.NewCache(10)
	accepted := map[string]int{}
	for _, profile := range Profiles() {
		for machine, with := range machines {
			gpus, err := devices(profile)
			if err != nil {
				t.Fatal(err)
			}
			gpus = gpus[:1]
			with(&gpus[0])
			for _, text := range configs {
				config, err := nodeconfig.Parse([]byte(head + "gpus: [" + text + "]"))
				if err != nil {
					t.Fatal(err)
				}
				inv := inventory.Unclaimed(gpus, config.For)
				seen := map[string]bool{} // kinds of devices
				for _, s := range inventory.Slices(driver, "node", inv.Pools("node")) {
					for _, d := range s.Spec.Devices {
						kind := fmt.Sprint(d.Attributes["type"], d.Attributes["profile"])
						if seen[kind] {
							continue
						}
						seen[kind] = true
						d.ConsumesCounters = nil // the machine is free
						one := *s
						one.Spec.Pool.ResourceSliceCount = 1
						one.Spec.Devices = []resourceapi.Device{d}
						for _, shape := range shapes {
							claim := claimFor(t, shape)
							if !allocate(ctx, t, claim, &one, cache) {
								continue
							}
							results, err := allocation.Results(claim, driver)
							if err != nil || len(results) == 0 {
								t.Fatal(results, err)
							}
							if results[0].Device == inventory.Monitor {
								continue // it needs admin access
							}
							accepted[text+": "+shape]++
							plan, err := sharing.NewPlan(results, inv, nil)
							if err == nil && plan.Assignments[0].Cgroup != nil {
								if why := gpus[0].NoMemoryLimit(); why != "" {
									err = fmt.Errorf("%s", why)
								}
							}
							if err != nil {
								t.Errorf("%s with %s, %s, a claim for %q: %v", profile, machine, text, shape, err)
							}
						}
					}
				}
			}
		}
	}
	for _, offered := range []string{"{sharing: fractional, isolation: cgroup}: memory=5Gi",
		"{sharing: {replicated: 4}, isolation: cgroup}: shares=4", "{sharing: fractional, isolation: mps}: cores=30",
		"{sharing: {replicated: 4}, onePerClaim: true}: shares=1", "{sharing: unlimited}: memory=0"} {
		if accepted[offered] == 0 {
			t.Errorf("%s: no device, want some", offered)
		}
	}
}

// claimFor returns a claim for one device with these capacities.
func claimFor(t *testing.T, shape string) *resourceapi.ResourceClaim {
	t.Helper()
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: "any", Count: 1,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	for _, one := range strings.Fields(shape) {
		name, amount, _ := strings.Cut(one, "=")
		if request.Capacity == nil {
			request.Capacity = &resourceapi.CapacityRequirements{
				Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		request.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(amount)
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}}}}}
}

// allocate allocates the device of the slice to the claim, as the scheduler does.
func allocate(ctx context.Context, t *testing.T, claim *resourceapi.ResourceClaim, of *resourceapi.ResourceSlice,
	cache *cel.Cache) bool {
	t.Helper()
	any := allocator.Classes{claim.Spec.Devices.Requests[0].Exactly.DeviceClassName: {}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	results, err := any.Place(ctx, cache, node, []*resourceapi.ResourceSlice{of}, allocator.HeldBy(nil, nil), claim)
	if err != nil || len(results) == 0 {
		return false
	}
	claim.Status.Allocation = &results[0]
	return true
}
