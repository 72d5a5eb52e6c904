// SPDX-License-Identifier: Apache-2.0

package allocation

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const driver = "gpu.nvidia.com"

// config is one line of an allocation: where it comes from, for which driver and requests, and the variable A that it
// sets.
func config(source resourceapi.AllocationConfigSource, driver, parameters string,
	requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}},
	}
}

func setA(value string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","environment":{"A":"` + value + `"}}`
}

func TestResults(t *testing.T) {
	const class, claim = resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	gpu := func(request, device string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "n", Request: request, Device: device}
	}
	nic := resourceapi.DeviceRequestAllocationResult{Driver: "dra.net", Pool: "n", Request: "nic", Device: "eth1"}
	shared := gpu("r", "d")
	shared.ShareID = ptr.To(types.UID("s1"))
	fraction, replica := shared, shared
	fraction.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("5Gi"),
		"cores": resource.MustParse("30")}
	replica.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("0"),
		"shares": resource.MustParse("1")}
	admin := gpu("r", "d")
	admin.AdminAccess = ptr.To(true)
	partitions := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","environment":{"A":"2"}}`
	ipc := func(enabled string) string {
		return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"LocalIPCConfig","enabled":` + enabled + `}`
	}
	bad := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","enviroment":{}}`

	for _, row := range []struct {
		name    string
		results []resourceapi.DeviceRequestAllocationResult
		configs []resourceapi.DeviceAllocationConfiguration
		want    string
	}{
		{"one device without configuration", []resourceapi.DeviceRequestAllocationResult{gpu("r", "d")}, nil,
			"r n/d A="},
		{"devices of other drivers are skipped", []resourceapi.DeviceRequestAllocationResult{nic, gpu("r", "d")}, nil,
			"r n/d A="},
		{"admin access is kept", []resourceapi.DeviceRequestAllocationResult{admin}, nil, "r n/d admin A="},
		{"the share is kept", []resourceapi.DeviceRequestAllocationResult{shared}, nil, "r n/d share=s1 A="},
		{"a configuration without requests is for all",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d"), gpu("q", "e")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1"))}, "r n/d A=1\nq n/e A=1"},
		{"the claim rules over its class",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(class, driver, setA("1"), "r"),
				config(claim, driver, setA("2"), "r")}, "r n/d A=2"},
		{"the last of several rules",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1")),
				config(claim, driver, setA("2"), "r"), config(claim, driver, setA("3"), "q")}, "r n/d A=2"},
		{"a configuration for a request is for its alternatives too",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r/small", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1"), "r")}, "r/small n/d A=1"},
		{"a configuration for another alternative is not",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r/small", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1"), "r/large")}, "r/small n/d A="},
		{"another driver's configuration is ignored, whatever it says",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1")),
				config(claim, "dra.net", `{"x"`)}, "r n/d A=1"},
		{"a configuration that cannot be read is refused, with its path",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(class, driver, bad), config(claim, driver, setA("1"))},
			"error: request r: config from the device class: " +
				"status.allocation.devices.config[0].opaque.parameters.enviroment: Forbidden: unknown field; did " +
				"you mean environment?"},
		{"a configuration for partitions is not for a GPU",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1")),
				config(claim, driver, partitions)}, "r n/d A=1"},
		{"unless it names the request, which is refused",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, partitions, "r")},
			`error: request r: config from the claim: status.allocation.devices.config[0].opaque.parameters.kind: Invalid value: "MigDeviceConfig": device d takes a GpuConfig`},
		{"a class names every request, which says nothing about its kind",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "gpu-3b-00-0-mig-1g10gb-4")},
			[]resourceapi.DeviceAllocationConfiguration{config(class, driver, setA("1"), "r"),
				config(class, driver, partitions, "r")}, "r n/gpu-3b-00-0-mig-1g10gb-4 A=2"},
		{"nor does a main request that has alternatives of both kinds",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r/small", "gpu-3b-00-0-mig-1g10gb-4")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1"), "r")},
			"r/small n/gpu-3b-00-0-mig-1g10gb-4 A="},
		{"an alternative that is named does",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r/small", "gpu-3b-00-0-mig-1g10gb-4")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1"), "r/small")},
			`error: request r/small: config from the claim: status.allocation.devices.config[0].opaque.parameters.kind: Invalid value: "GpuConfig": device gpu-3b-00-0-mig-1g10gb-4 takes a MigDeviceConfig`},
		{"and one for GPUs is not for a partition",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "gpu-3b-00-0-mig-1g10gb-4")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, partitions),
				config(claim, driver, setA("1"))}, "r n/gpu-3b-00-0-mig-1g10gb-4 A=2"},
		{"local IPC is for the claim, beside the configuration of its devices",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d"), gpu("q", "gpu-3b-00-0-mig-1g10gb-4")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, setA("1"), "r"),
				config(claim, driver, ipc("true"))}, "r n/d ipc A=1\nq n/gpu-3b-00-0-mig-1g10gb-4 ipc A="},
		{"a claim can do without what its class asks for",
			[]resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(class, driver, ipc("true"), "r"),
				config(claim, driver, ipc("false"))}, "r n/d A="},
		{"a class may ask for local IPC", []resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(class, driver, ipc("true"), "r")}, "r n/d ipc A="},
		{"local IPC for one request is refused", []resourceapi.DeviceRequestAllocationResult{gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, ipc("true"), "r")},
			`error: request r: config from the claim: status.allocation.devices.config[0].requests: Invalid value: ` +
				`["r"]: a LocalIPCConfig is for the whole claim: leave this out`},
		{"what was consumed is kept", []resourceapi.DeviceRequestAllocationResult{fraction}, nil,
			"r n/d share=s1 memory=5368709120 cores=30 A="},
		{"replicas too", []resourceapi.DeviceRequestAllocationResult{replica}, nil, "r n/d share=s1 replicas=1 A="},
		{"a bad configuration for a request that is not ours is no business of ours",
			[]resourceapi.DeviceRequestAllocationResult{nic, gpu("r", "d")},
			[]resourceapi.DeviceAllocationConfiguration{config(claim, driver, bad, "nic")}, "r n/d A="},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{
				Allocation: &resourceapi.AllocationResult{
					Devices: resourceapi.DeviceAllocationResult{Results: row.results, Config: row.configs}}}}
			if got := text(Results(c, driver)); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

// Package sharing tells two equal configurations apart by that.
func TestResultsShareTheirConfiguration(t *testing.T) {
	mps := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`
	c := &resourceapi.ResourceClaim{}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Config: []resourceapi.DeviceAllocationConfiguration{
			config(resourceapi.AllocationConfigSourceClaim, driver, mps, "a", "b"),
			config(resourceapi.AllocationConfigSourceClaim, driver, mps, "c")}}}
	for _, name := range []string{"a", "b", "c"} {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "n", Request: name, Device: name})
	}
	r, err := Results(c, driver)
	if err != nil {
		t.Fatal(err)
	}
	a, b, other := r[0].Config.Sharing.MPS, r[1].Config.Sharing.MPS, r[2].Config.Sharing.MPS
	if a == nil || a != b || a == other {
		t.Errorf("a and b share one: %t, a and c share one: %t", a == b, a == other)
	}
}

func TestResultsOfAnUnallocatedClaim(t *testing.T) {
	if _, err := Results(&resourceapi.ResourceClaim{}, driver); !errors.Is(err, ErrNotAllocated) {
		t.Errorf("got %v, want %v", err, ErrNotAllocated)
	}
}

func text(results []Result, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for _, r := range results {
		line := fmt.Sprintf("%s %s/%s", r.Request, r.Pool, r.Device)
		if r.ShareID != "" {
			line += " share=" + string(r.ShareID)
		}
		for _, c := range []struct {
			name  string
			value int
		}{{"memory", int(r.Consumed.Memory)}, {"cores", r.Consumed.Cores}, {"replicas", r.Consumed.Replicas}} {
			if c.value != 0 {
				line += fmt.Sprintf(" %s=%d", c.name, c.value)
			}
		}
		if r.AdminAccess {
			line += " admin"
		}
		if r.LocalIPC {
			line += " ipc"
		}
		lines = append(lines, line+" A="+r.Config.Environment["A"])
	}
	return strings.Join(lines, "\n")
}
