// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// The scheduler's own allocator, run on what we publish for one node: does a claim fit, and which GPU does it get?

// classes are device classes: name → the expression that selects its devices.
type classes map[string]string

// chart are the chart's classes and that of the NICs.
var chart = chartClasses("../../deployments/helm/testdata/default.golden.yaml")

// compiled are the expressions that the scheduler has seen already.
var compiled = allocator.NewCache(100)

func chartClasses(file string) classes {
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	found := classes{nicDriver: "device.driver == '" + nicDriver + "'"}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(document), &class); err != nil {
			panic(err)
		}
		if class.Kind == "DeviceClass" {
			found[class.Name] = class.Spec.Selectors[0].CEL.Expression
		}
	}
	return found
}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, name := range slices.Sorted(maps.Keys(c)) {
		class, _ := c.Get(name)
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	expression, ok := c[name]
	if !ok {
		return nil, fmt.Errorf("no class %s", name)
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return class, nil
}

func TestAllocation(t *testing.T) {
	const attr = "device.attributes['gpu.nvidia.com']."
	const capacity = "device.capacity['gpu.nvidia.com']."
	cel := func(expression string) string {
		return `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "` + expression +
			`"}}]}}]`
	}
	for _, row := range []struct {
		name     string
		profile  string
		requests string // YAML of spec.devices.requests
		taken    string // devices that other claims have
		want     string
	}{
		{"any GPU: the strongest one", "mixed", `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`, "",
			"gpu=gpu-41-00-0"},
		{"then the next strongest one", "mixed", `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`, "gpu-41-00-0",
			"gpu=gpu-61-00-0"},
		{"by model", "mixed", cel(attr + `productName == 'Tesla T4'`), "", "gpu=gpu-a1-00-0"},
		{"by part of the model's name", "mixed", cel(attr + `productName.contains('A100')`), "", "gpu=gpu-81-00-0"},
		{"by memory", "mixed", cel(capacity + `memory.compareTo(quantity('41Gi')) < 0 && ` + attr +
			`cudaComputeCapability.isGreaterThan(semver('7.5.0'))`), "", "gpu=gpu-81-00-0"},
		{"by compute capability", "mixed", cel(attr + `cudaComputeCapability.compareTo(semver('9.0.0')) >= 0`), "",
			"gpu=gpu-41-00-0"},
		{"by NUMA node", "mixed", cel(`device.attributes['resource.kubernetes.io'].numaNode == 1`), "",
			"gpu=gpu-81-00-0"},
		{"by driver version", "mixed", cel(attr + `driverVersion.isLessThan(semver('581.0.0'))`), "",
			"gpu=gpu-41-00-0"},
		{"a missing model", "mixed", cel(attr + `productName == 'NVIDIA B300'`), "", "does not fit"},
		{"more memory than any GPU has", "mixed", cel(capacity + `memory.compareTo(quantity('1Ti')) >= 0`), "",
			"does not fit"},
		{"all GPUs of eight", "dgx-h100", `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 8}}]`, "",
			"gpu=gpu-1b-00-0 gpu=gpu-43-00-0 gpu=gpu-52-00-0 gpu=gpu-61-00-0 gpu=gpu-9d-00-0 gpu=gpu-c3-00-0 " +
				"gpu=gpu-d1-00-0 gpu=gpu-df-00-0"},
		{"more GPUs than the node has", "dgx-h100", `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]`, "",
			"does not fit"},
		{"allocationMode All", "t4-x2", `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]`, "",
			"gpu=gpu-3b-00-0 gpu=gpu-af-00-0"},
		{"two requests get two GPUs", "t4-x2",
			`[{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]`, "", "a=gpu-3b-00-0 b=gpu-af-00-0"},
		{"none is left", "t4-x2", `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`,
			"gpu-3b-00-0 gpu-af-00-0", "does not fit"},
		{"the first alternative that fits", "mixed",
			`[{name: gpu, firstAvailable: [{name: b200, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "` + attr + `productName == 'NVIDIA B200'"}}]}, {name: any, deviceClassName: gpu.nvidia.com}]}]`, "", "gpu/any=gpu-41-00-0"},
		{"a share larger than one card goes to a larger card", "mixed",
			`[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 60Gi}}}}]`, "",
			"gpu=gpu-41-00-0"},
		{"a share larger than any card", "mixed",
			`[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 200Gi}}}}]`, "",
			"does not fit"},
		{"what no GPU has is looked for on the monitor device too, without an error", "mixed",
			cel(`device.attributes['resource.kubernetes.io'].numaNode == 9`), "", "does not fit"},
		{"the monitor device while all GPUs are taken", "t4-x2", monitor, "gpu-3b-00-0 gpu-af-00-0", "all=monitor"},
		{"the monitor device while others have it", "t4-x2", monitor, "monitor#1 monitor#2", "all=monitor"},
		{"the monitor device in one claim with the last GPU", "t4-x2",
			`[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}, ` + monitor[1:], "gpu-3b-00-0",
			"gpu=gpu-af-00-0 all=monitor"},
		{"two shares of the monitor device in one claim", "t4-x2", monitor[:len(monitor)-1] + ", " +
			strings.Replace(monitor[1:], "all", "more", 1), "", "all=monitor more=monitor"},
		{"the monitor device twice in one request", "t4-x2", strings.Replace(monitor, "}", ", count: 2}", 1), "",
			"does not fit"},
		{"all monitor devices", "t4-x2", strings.Replace(monitor, "}", ", allocationMode: All}", 1), "",
			"all=monitor"},
		{"the monitor device without admin access: the driver must refuse it", "t4-x2",
			strings.Replace(monitor, ", adminAccess: true", "", 1), "gpu-3b-00-0 gpu-af-00-0", "all=monitor"},
		{"a GPU with admin access while it is taken", "t4-x2", strings.Replace(monitor, "monitor.", "", 1),
			"gpu-3b-00-0 gpu-af-00-0", "all=gpu-3b-00-0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := allocate(t, published(t, row.profile), row.requests, strings.Fields(row.taken)); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

// monitor is a request for the monitor device as the chart's policy has it.
const monitor = `[{name: all, exactly: {deviceClassName: monitor.gpu.nvidia.com, adminAccess: true}}]`

// While the driver is updated, and where it goes back to the version before, the chart's classes see devices that have
// no attribute sharedOnly.
func TestAllocationOfPreviousVersion(t *testing.T) {
	before := published(t, "t4-x2")
	for _, s := range before {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i] = *s.Spec.Devices[i].DeepCopy()
			delete(s.Spec.Devices[i].Attributes, "sharedOnly")
		}
	}
	for _, row := range []struct{ class, want string }{
		{driver, "gpu=gpu-3b-00-0"},
		{"shared." + driver, "does not fit"},
		{"monitor." + driver, "gpu=monitor"},
	} {
		if got := allocate(t, before, "[{name: gpu, exactly: {deviceClassName: "+row.class+"}}]",
			nil); got != row.want {
			t.Errorf("class %s: got %s, want %s", row.class, got, row.want)
		}
	}
}

// Devices that belong together: a constraint on a topology attribute joins those that the machine joins, and no others.
func TestAllocationOfConnectedDevices(t *testing.T) {
	const nvlink, fabric = driver + "/nvlinkDomain", driver + "/fabricDomain"
	const numa, root = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"
	gpus := func(count int) string {
		return fmt.Sprintf(`[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: %d}}]`, count)
	}
	const gpuAndNIC = `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}, {name: nic, exactly: {deviceClassName: dra.net}}]`
	const twoGPUsAndNIC = `[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}, {name: nic, exactly: {deviceClassName: dra.net}}]`
	for _, row := range []struct {
		name     string
		profile  string
		nics     []nic // of the node, by another driver
		requests string
		same     string // the attribute that all of the claim have in common
		taken    string
		want     string
	}{
		{"two GPUs on NVSwitch", "dgx-h100", nil, gpus(2), nvlink, "", "gpu=gpu-1b-00-0 gpu=gpu-43-00-0"},
		{"two GPUs joined by a bridge", "workstation", nil, gpus(2), nvlink, "", "gpu=gpu-1a-00-0 gpu=gpu-68-00-0"},
		{"no bridge between one of the two and another card", "workstation", nil, gpus(2), nvlink, "gpu-1a-00-0",
			"does not fit"},
		{"two of three cards without a constraint", "workstation", nil, gpus(2), "", "gpu-1a-00-0",
			"gpu=gpu-68-00-0 gpu=gpu-b3-00-0"},
		{"three cards, two of them with a bridge", "workstation", nil, gpus(3), nvlink, "", "does not fit"},
		{"two cards with NVLink, but without a bridge", "a30-x2", nil, gpus(2), nvlink, "", "does not fit"},
		{"two cards without NVLink", "l40s-x4", nil, gpus(2), nvlink, "", "does not fit"},
		{"a quad of a mesh", "dgx1-v100", nil, gpus(4), nvlink, "", "gpu=gpu-06-00-0 gpu=gpu-07-00-0 gpu=gpu-0a-00-0 " +
			"gpu=gpu-0b-00-0"},
		{"the other quad if one GPU of the first is taken", "dgx1-v100", nil, gpus(4), nvlink, "gpu-0b-00-0",
			"gpu=gpu-85-00-0 gpu=gpu-86-00-0 gpu=gpu-89-00-0 gpu=gpu-8a-00-0"},
		{"five of a mesh of quads", "dgx1-v100", nil, gpus(5), nvlink, "", "does not fit"},
		{"four of a rack's fabric", "gb200-nvl4", nil, gpus(4), fabric, "",
			"gpu=gpu-0008-01-00-0 gpu=gpu-0009-01-00-0 gpu=gpu-0018-01-00-0 gpu=gpu-0019-01-00-0"},
		{"two of a fabric on a node without a fabric", "hgx-b200", nil, gpus(2), fabric, "", "does not fit"},
		{"two GPUs at the same NUMA node", "l40s-x4", nil, gpus(2), numa, "", "gpu=gpu-38-00-0 gpu=gpu-3a-00-0"},
		{"at the other NUMA node if a GPU of the first is taken", "l40s-x4", nil, gpus(2), numa, "gpu-38-00-0",
			"gpu=gpu-a8-00-0 gpu=gpu-aa-00-0"},
		{"one GPU of each NUMA node is taken", "l40s-x4", nil, gpus(2), numa, "gpu-38-00-0 gpu-aa-00-0",
			"does not fit"},
		{"a NUMA node of a socket of four", "dgx-a100", nil, gpus(2), numa, "gpu-07-00-0",
			"gpu=gpu-47-00-0 gpu=gpu-4e-00-0"},
		{"a GPU and the NIC below the same PCIe root", "dgx-h100", []nic{{"nic-54", "pci0000:4c"}}, gpuAndNIC, root, "",
			"gpu=gpu-52-00-0 nic=nic-54"},
		{"the next pair if the GPU is taken", "dgx-h100", []nic{{"nic-54", "pci0000:4c"},
			{"nic-ce", "pci0000:cb"}}, gpuAndNIC, root, "gpu-52-00-0", "gpu=gpu-d1-00-0 nic=nic-ce"},
		{"none is left", "dgx-h100", []nic{{"nic-54", "pci0000:4c"}}, gpuAndNIC, root, "gpu-52-00-0", "does not fit"},
		{"no NIC below the root of a GPU", "dgx-h100", []nic{{"nic-5", "pci0000:00"}}, gpuAndNIC, root, "",
			"does not fit"},
		{"any NIC without a constraint", "dgx-h100", []nic{{"nic-5", "pci0000:00"}}, gpuAndNIC, "", "",
			"gpu=gpu-1b-00-0 nic=nic-5"},
		{"a NIC without the attribute of the PCIe root", "dgx-h100", []nic{{"nic-5", ""}}, gpuAndNIC, root, "",
			"does not fit"},
		{"both GPUs of a PCIe switch and its NIC", "dgx-a100", []nic{{"nic-ba", "pci0000:b0"}}, twoGPUsAndNIC, root, "",
			"gpu=gpu-b7-00-0 gpu=gpu-bd-00-0 nic=nic-ba"},
	} {
		t.Run(row.name, func(t *testing.T) {
			claim := newClaim(t, row.requests)
			if row.same != "" {
				attribute := resourceapi.FullyQualifiedName(row.same)
				claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
			}
			machine := published(t, row.profile)
			if len(row.nics) > 0 {
				machine = append(machine, nicSlice(row.nics))
			}
			if got := run(t, machine, claim, strings.Fields(row.taken)); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

// A nic is a device of another driver, below a PCIe root that it publishes if it knows it.
type nic struct{ name, root string }

const nicDriver = "dra.net"

// nicSlice is what the driver of the NICs publishes on the same node.
func nicSlice(nics []nic) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: nicDriver, UID: nicDriver}}
	slice.Spec = resourceapi.ResourceSliceSpec{
		Driver: nicDriver, NodeName: ptr.To(nodeName),
		Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
	}
	for _, n := range nics {
		d := resourceapi.Device{Name: n.name}
		if n.root != "" {
			d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &n.root},
			}
		}
		slice.Spec.Devices = append(slice.Spec.Devices, d)
	}
	return slice
}

func allocate(t *testing.T, slices []*resourceapi.ResourceSlice, requests string, taken []string) string {
	t.Helper()
	return run(t, slices, newClaim(t, requests), taken)
}

func newClaim(t *testing.T, requests string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
	if err := yaml.UnmarshalStrict([]byte("requests: "+requests), &claim.Spec.Devices); err != nil {
		t.Fatal(err)
	}
	for i := range claim.Spec.Devices.Requests { // what the API server fills in
		if r := claim.Spec.Devices.Requests[i].Exactly; r != nil && r.AllocationMode == "" {
			r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeExactCount, max(r.Count, 1)
		}
		for j := range claim.Spec.Devices.Requests[i].FirstAvailable {
			sub := &claim.Spec.Devices.Requests[i].FirstAvailable[j]
			sub.AllocationMode, sub.Count = resourceapi.DeviceAllocationModeExactCount, max(sub.Count, 1)
		}
	}
	return claim
}

func run(t *testing.T, published []*resourceapi.ResourceSlice, claim *resourceapi.ResourceClaim,
	taken []string) string {
	t.Helper()
	held := nothingAllocated()
	for _, d := range taken {
		name, share, shared := strings.Cut(d, "#")
		r := resourceapi.DeviceRequestAllocationResult{Driver: driver, Device: name,
			Pool: inventory.PoolOf(nodeName, name)}
		if shared {
			r.ShareID = ptr.To(types.UID(share))
		}
		held.Add(r)
	}
	results, problem := allocateIn(t, held, published, claim)
	if problem != "" {
		return problem
	}
	var out []string
	for _, r := range results {
		out = append(out, r.Request+"="+r.Device)
	}
	return strings.Join(out, " ")
}

func nothingAllocated() allocator.Held { return allocator.HeldBy(nil, nil) }

// allocateIn is what the claim gets while others hold so much, or why it gets nothing.
func allocateIn(t *testing.T, held allocator.Held, published []*resourceapi.ResourceSlice,
	claim *resourceapi.ResourceClaim) ([]resourceapi.DeviceRequestAllocationResult, string) {
	t.Helper()
	results, problem, _ := search(t, held, chart, published, claim)
	return results, problem
}

// search also says how many steps the allocator took: how often it looked for one device, or was done with a request or
// a claim.
func search(t *testing.T, held allocator.Held, known classes, published []*resourceapi.ResourceSlice,
	claim *resourceapi.ResourceClaim) (
	results []resourceapi.DeviceRequestAllocationResult, problem string, steps int64) {
	t.Helper()
	ctx := context.Background()
	scheduler, err := allocator.New(ctx, held, known, published, compiled)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	allocated, err := scheduler.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	// The type of the answer is internal to the module.
	steps = reflect.ValueOf(scheduler).MethodByName("GetStats").Call(nil)[0].FieldByName(
		"NumAllocateOneInvocations").Int()
	switch {
	case err != nil:
		return nil, "error: " + err.Error(), steps
	case len(allocated) == 0:
		return nil, "does not fit", steps
	}
	return allocated[0].Devices.Results, "", steps
}

// published is what the node's pool looks like in the API.
func published(t *testing.T, profile string) []*resourceapi.ResourceSlice {
	t.Helper()
	return slicesOf(simtest.Discover(t, profile))
}

func slicesOf(devices []gpu.Device) []*resourceapi.ResourceSlice {
	return inAPI(inventory.New(devices).Pools(nodeName))
}

// inAPI is the pools as the slice controller writes them.
func inAPI(pools map[string]inventory.Pool) []*resourceapi.ResourceSlice {
	out := inventory.Slices(driver, nodeName, pools)
	for i, slice := range out {
		slice.Name, slice.UID = fmt.Sprint(slice.GenerateName, i), types.UID(fmt.Sprint(i))
		slice.Spec.Devices = slices.Clone(slice.Spec.Devices)
	}
	return out
}
