// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// The clusters of the tests.
var (
	shared = []clustertest.SimNode{{Name: "a", Profile: "l40s-x4"}, {Name: "b", Profile: "dgx-h100"}}
	mixed  = append(shared, clustertest.SimNode{Name: "c", Profile: "t4-x2",
		Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	nothing []clustertest.SimNode

	exclusive = []clustertest.SimNode{{Name: "c", Profile: "l40s-x4", Use: gpu.SharingMode{Sharing: gpu.Exclusive}}}
)

const (
	one      = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`
	fraction = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}]`
)

// config returns a configuration of the driver.
func config(text string) string {
	return "\nconfig: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: " +
		"GpuConfig, " + text + "}}}]"
}

// amounts returns a request for some of a GPU.
func amounts(requests string) string {
	return `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {` + requests + `}}}}]`
}

// selecting returns a request with a selector.
func selecting(expression string) string {
	return `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "` +
		expression + `"}}]}}]`
}

// overNetwork returns a request for a GPU over the network.
func overNetwork(name, more string) string {
	return `{name: ` + name + `, exactly: {deviceClassName: remote.gpu.nvidia.com, ` + more + `}}`
}

func TestClaim(t *testing.T) {
	views := map[string]*cluster.View{} // a checker changes none
	for _, tc := range []struct {
		name    string
		cluster []clustertest.SimNode
		devices string
		refused []string // each in a problem of its own, in this order
		warned  []string
	}{
		{"a GPU", shared, one, nil, nil},
		{"a GPU in an empty cluster", nothing, one + config("sharing: {strategy: MPS, mpsConfig: "+
			"{defaultPinnedDeviceMemoryLimit: 1Ti}}"), nil, nil},
		{"a share", shared, fraction, nil, nil},
		{"local IPC for one request", shared, one + `
config: [{requests: [gpu], opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, ` +
			`kind: LocalIPCConfig, enabled: true}}}]`, []string{`spec.devices.config[0].requests: Invalid value: ` +
			`["gpu"]: a LocalIPCConfig is for the whole claim: leave this out`}, nil},
		{"local IPC", shared, one + `
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, ` +
			`kind: LocalIPCConfig, enabled: true}}}]`, nil, nil},
		{"a toleration without an effect", shared, `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, ` +
			`tolerations: [{operator: Exists, effect: NoExecute}, {operator: Exists}]}}]`, nil,
			[]string{"spec.devices.requests[0].exactly.tolerations[1]: without an effect, a pod gets a device with a " +
				"NoExecute taint and is evicted at once, again and again: write effect: NoExecute"}},
		{"a constant of another type", shared,
			selecting("device.attributes['gpu.nvidia.com'].cudaComputeCapability >= '9.0'"), nil, []string{`cudaComputeCapability is a version: write device.attributes["gpu.nvidia.com"].` +
				`cudaComputeCapability.compareTo(semver("9.0.0")) >= 0`}},
		{"a part of a product's name in a list", shared, `requests: [{name: gpu, firstAvailable: [{name: a, ` +
			`deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: ` +
			`"device.attributes['gpu.nvidia.com'].productName == 'H100'"}}]}, {name: b, deviceClassName: gpu.nvidia.com}]}]`,
			nil, []string{`firstAvailable[0].selectors[0].cel.expression: no device has the productName "H100"; did you ` +
				`mean "NVIDIA H100 80GB HBM3"`}},
		{"a list without an alternative that is met", shared, `requests: [{name: gpu, firstAvailable: [{name: a, ` +
			`deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: ` +
			`"device.capacity['gpu.nvidia.com'].memory == quantity('1Ti')"}}]}]}]`,
			nil, []string{"requests[0].firstAvailable: no device that is published now meets any alternative"}},
		{"a field that does not exist", shared, one + config("sharign: {}"),
			[]string{"spec.devices.config[0].opaque.parameters.sharign: Forbidden: unknown field"}, nil},
		{"several mistakes in one configuration", shared, one + config("sharing: {strategy: TimeSlicing, mpsConfig: "+
			"{}, timeSlicingConfig: {interval: Forever}}, environment: {CUDA_MPS_X: a}"),
			[]string{"parameters.sharing.mpsConfig: Forbidden", "parameters.sharing.timeSlicingConfig.interval: " +
				"Unsupported value", "parameters.environment[CUDA_MPS_X]: Forbidden"}, nil},
		{"mistakes in two configurations and in a request", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {cores: 101}}}}]
config: [{opaque: {driver: gpu.nvidia.com, parameters: {}}}, {opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GPUConfig}}}]`,
			[]string{"spec.devices.config[0].opaque.parameters.apiVersion",
				"spec.devices.config[0].opaque.parameters.kind", "spec.devices.config[1].opaque.parameters.kind",
				`spec.devices.requests[0].exactly.capacity.requests[cores]: Invalid value: "101": must be from 0 to 100`}, nil},
		{"a configuration of another driver", shared, one + "\nconfig: [{opaque: {driver: gpu.example.com, " +
			"parameters: {any: thing}}}]", nil, nil},
		{"a class of another driver", shared,
			`requests: [{name: nic, exactly: {deviceClassName: nic.example.com, capacity: {requests: {bandwidth: 5}}}}]`, nil, nil},
		{"a class that does not exist", shared, strings.Replace(one, ".com", ".org", 1), nil,
			[]string{"spec.devices.requests[0].exactly.deviceClassName: the class gpu.nvidia.org does not exist; did " +
				"you mean gpu.nvidia.com?"}},
		{"a class that is near none", shared, strings.Replace(one, "gpu.nvidia.com", "fpga", 1), nil,
			[]string{"deviceClassName: the class fpga does not exist"}},
		{"a profile that does not exist", shared, strings.Replace(one, "gpu.nvidia", "mig-5g.50gb.nvidia", 1), nil,
			[]string{"the class mig-5g.50gb.nvidia.com does not exist; the nearest that is offered is " +
				"mig-4g.40gb.nvidia.com"}},
		{"a profile that no GPU offers", shared, strings.Replace(one, "gpu.nvidia", "mig-1g.23gb.nvidia", 1), nil,
			[]string{"no device that is published now is of the class mig-1g.23gb.nvidia.com; the nearest that is " +
				"offered is mig-1g.20gb.nvidia.com"}},
		{"a profile in an empty cluster", nothing, strings.Replace(one, "gpu.nvidia", "mig-1g.23gb.nvidia", 1), nil,
			nil},

		{"a fraction of cores", shared, amounts("cores: 0.3, memory: 5Gi"), []string{`requests[cores]: Invalid value: ` +
			`"300m": must be a whole number of percent; did you mean 30?`}, nil},
		{"a fraction of a byte", shared, amounts("memory: 5000m"), nil, []string{"requests[memory]: 5 bytes of " +
			"memory"}},
		{"a fraction of more than all cores", shared, amounts("cores: 1.5, memory: 5Gi"), []string{
			`requests[cores]: Invalid value: "1500m": must be a whole number of percent`}, nil},
		{"a fraction of a share", shared, amounts("shares: 0.5"), []string{
			`requests[shares]: Invalid value: "500m": must be a whole number`}, nil},
		{"an amount without a unit", shared, amounts("memory: 5"), nil, []string{
			"spec.devices.requests[0].exactly.capacity.requests[memory]: 5 bytes of memory is less than a program " +
				"needs " +
				"before its first allocation, some hundred MiB: write an amount with its unit, such as 5Gi"}},
		{"an amount with the wrong unit", shared, amounts("memory: 5Mi"), nil, []string{"requests[memory]: 5Mi of " +
			"memory"}},
		{"little memory, and enough", shared, amounts("memory: 256Mi"), nil, nil},
		{"cores without memory", shared, amounts("cores: 30"), nil,
			[]string{"spec.devices.requests[0].exactly.capacity." +
				"requests: without memory, the claim gets all memory of a GPU, and no other claim shares it: write " +
				"memory, too"}},
		{"all cores without memory", shared, amounts("cores: 100"), nil, nil},
		{"cores without memory of whole GPUs", exclusive, amounts("cores: 30"), nil, nil},

		{"a configuration for a driver of another name", shared, one + strings.Replace(config(""),
			"driver: gpu.nvidia.com", "driver: nvidia.com", 1), nil, []string{
			"spec.devices.config[0].opaque.driver: this configuration is for the driver nvidia.com, so the driver " +
				"gpu.nvidia.com ignores it; did you mean gpu.nvidia.com?"}},
		{"a configuration for compute domains", shared, one + strings.Replace(config(""), "driver: gpu.nvidia.com",
			"driver: compute-domain.nvidia.com", 1), nil, nil},
		{"a configuration in a claim of another driver", shared,
			`requests: [{name: nic, exactly: {deviceClassName: nic.example.com}}]` + config(""), nil,
			[]string{"spec.devices.config[0].opaque: no request of this claim names a class of the driver " +
				"gpu.nvidia.com"}},

		{"an attribute that is misspelt", shared, selecting("device.attributes['gpu.nvidia.com'].product == " +
			"'NVIDIA L40S'"),
			nil, []string{`spec.devices.requests[0].exactly.selectors[0].cel.expression: no device has the attribute ` +
				`product; did you mean device.attributes["gpu.nvidia.com"].productName? (the selector fails on devices of the class`}},
		{"an attribute in another case, which is tested for", shared,
			selecting("has(device.attributes['gpu.nvidia.com'].ProductName) && device.attributes['gpu.nvidia.com']" +
				".ProductName == 'NVIDIA L40S'"), nil, []string{`no device has the attribute ProductName; did you mean`}},
		{"an optional attribute", shared, selecting("device.attributes['gpu.nvidia.com'].?Index.orValue(9) == 0"), nil,
			[]string{`no device has the attribute Index; did you mean device.attributes["gpu.nvidia.com"].index?`}},
		{"an attribute of another domain", shared, selecting("device.attributes['nvidia.com'].productName == " +
			"'NVIDIA L40S'"),
			nil, []string{`no device has the attribute productName of the domain nvidia.com; did you mean ` +
				`device.attributes["gpu.nvidia.com"].productName?`}},
		{"a capacity in place of an attribute", shared, selecting(
			"device.attributes['gpu.nvidia.com'].memory > 5"), nil,
			[]string{`memory is no attribute; did you mean the capacity device.capacity["gpu.nvidia.com"].memory?`}},
		{"a part of a product's name", shared, selecting(
			"device.attributes['gpu.nvidia.com'].productName == 'H100'"), nil,
			[]string{`selectors[0].cel.expression: no device has the productName "H100"; did you mean "NVIDIA H100 80GB ` +
				`HBM3"?`}},
		{"products of which none is there", shared,
			selecting("device.attributes['gpu.nvidia.com'].productName in ['NVIDIA B200', 'NVIDIA GB200']"), nil,
			[]string{`no device has a productName of "NVIDIA B200", "NVIDIA GB200"`}},
		{"a product that is near none", shared, selecting("device.attributes['gpu.nvidia.com'].productName == " +
			"'MI300'"), nil,
			[]string{`no device has the productName "MI300"; the values of productName are "NVIDIA H100 80GB HBM3", ` +
				`"NVIDIA L40S"`}},
		{"a text that no product begins with", shared,
			selecting("device.attributes['gpu.nvidia.com'].productName.startsWith('H100')"), nil,
			[]string{`the values of productName are "NVIDIA H100 80GB HBM3", "NVIDIA L40S"`}},
		{"more memory than there is, in a selector", shared,
			selecting("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('400Gi')) >= 0"), nil,
			[]string{`no device meets device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("400Gi")) >= 0; the ` +
				`most is 81559Mi`}},
		{"a version that is compared with an amount", shared,
			selecting("device.attributes['gpu.nvidia.com'].driverVersion.compareTo(quantity('400Gi')) >= 0"), nil,
			[]string{`no device meets device.attributes["gpu.nvidia.com"].driverVersion.compareTo(quantity("400Gi")) ` +
				`>= 0`}},
		{"two clauses that no GPU meets together", shared,
			selecting("device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L40S' && " +
				"device.capacity['gpu.nvidia.com']" +
				".memory.compareTo(quantity('60Gi')) >= 0"), nil,
			[]string{"spec.devices.requests[0].exactly.selectors: no device that is published now meets all of them"}},
		{"a list with GPUs and partitions that are not there", shared, `requests: [{name: gpu, firstAvailable: [
{name: a, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'"}}]},
{name: b, deviceClassName: mig-1g.23gb.nvidia.com}, {name: c, deviceClassName: gpu.nvidia.com}]}]`, nil, nil},
		{"a list with a misspelt attribute", shared, `requests: [{name: gpu, firstAvailable: [
{name: a, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].product == 'NVIDIA B200'"}}]},
{name: b, deviceClassName: gpu.nvidia.com}]}]`, nil, []string{"spec.devices.requests[0].firstAvailable[0].selectors[0].cel." +
			"expression: no device has the attribute product; did you mean"}},
		{"a selector in an empty cluster", nothing,
			selecting("device.attributes['gpu.nvidia.com'].product == 'NVIDIA L40S'"), nil, nil},

		{"as many GPUs as a node has", shared, strings.Replace(one, ".com", ".com, count: 8", 1), nil, nil},
		{"more GPUs than a node has", shared, strings.Replace(one, ".com", ".com, count: 9", 1), nil,
			[]string{"spec.devices.requests[0].exactly.count: the devices of a request are of one node, and no " +
				"node has " +
				"more than 8 for this one"}},
		{"more shares than GPUs", shared, strings.Replace(amounts("memory: 8Gi"), "capacity:", "count: 12, "+
			"capacity:", 1) +
			config("sharing: {strategy: TimeSlicing}"), nil, []string{"spec.devices.requests[0].exactly.count: the " +
			"devices of a request are of one node, and no node has more than 8 for this one",
			"nothing enforces what it asks for"}},
		{"more partitions than GPUs", shared, `requests: [{name: gpu, exactly: {deviceClassName: mig.nvidia.com, count: 9}}]`,
			nil, []string{"a CUDA program uses one partition"}},
		{"more partitions than a node can have", shared, `requests: [{name: gpu, exactly: {deviceClassName: ` +
			`mig-4g.40gb.nvidia.com, count: 9}}]`, nil, []string{"spec.devices.requests[0].exactly.count: the devices " +
			"of a request are of one node, and no node has more than 8 for this one", "a CUDA program uses one"}},

		{"a constraint with an attribute in another case", shared, strings.Replace(one, ".com", ".com, count: 2", 1) +
			"\nconstraints: [{matchAttribute: gpu.nvidia.com/nvlinkdomain}]", nil, []string{
			"spec.devices.constraints[0].matchAttribute: no device has the attribute gpu.nvidia.com/nvlinkdomain; " +
				"did you " +
				"mean gpu.nvidia.com/nvlinkDomain?"}},
		{"a constraint with an attribute of another domain", shared, strings.Replace(one, ".com", ".com, count: 2", 1) +
			"\nconstraints: [{distinctAttribute: nvidia.com/uuid}]", nil, []string{
			"spec.devices.constraints[0].distinctAttribute: no device has the attribute nvidia.com/uuid; did you " +
				"mean " +
				"gpu.nvidia.com/uuid?"}},
		{"a constraint that joins devices of two drivers", shared, `requests: [{name: gpu, exactly: {deviceClassName: ` +
			`gpu.nvidia.com}}, {name: nic, exactly: {deviceClassName: nic.example.com}}]
constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]`, nil, nil},

		{"capacities with a domain, and unknown ones", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {gpu.nvidia.com/memory: 5Gi, core: 30}}}}]`,
			[]string{`requests[core]: Unsupported value: "core": supported values: "copyEngines", "cores"`,
				"requests[gpu.nvidia.com/memory]: Invalid value: \"gpu.nvidia.com/memory\": write memory"}, nil},
		{"a negative amount", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: -1Gi}}}}]`,
			[]string{`requests[memory]: Invalid value: "-1Gi": must not be negative`}, nil},
		{"more than there is", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 500Gi}}}}]`,
			nil, []string{"spec.devices.requests[0].exactly.capacity.requests[memory]: no device that is published " +
				"now, and that the selectors accept, has so much; the most is 81559Mi (NVIDIA H100 80GB HBM3)"}},

		{"replicas where none are published", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 1}}}}]`,
			nil, []string{"spec.devices.requests[0].exactly.capacity.requests[shares]: no device that is published " +
				"now, and that the selectors accept, has this capacity; GPUs have it where the node configuration " +
				"has sharing: {replicated: N}"}},
		{"more replicas than are published", append(shared, clustertest.SimNode{Name: "r", Profile: "t4-x2",
			Use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4}}),
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 5}}}}]`,
			nil, []string{"requests[shares]: no device that is published now, and that the selectors accept, has so " +
				"much; the most is 4 (Tesla T4)"}},
		{"replicas of some GPUs", append(shared, clustertest.SimNode{Name: "r", Profile: "t4-x2",
			Use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4}}),
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 1}}}}]`,
			nil, nil},
		{"replicas in an empty cluster", nothing,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 1}}}}]`,
			nil, nil},
		{"engines of a whole GPU", exclusive,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {decoders: 1}}}}]`,
			nil, []string{"requests[decoders]: no device that is published now, and that the selectors accept, has " +
				"this capacity"}},
		{"MPS on an unlimited GPU", []clustertest.SimNode{{Name: "u", Profile: "l40s-x4",
			Use: gpu.SharingMode{Sharing: gpu.Unlimited}}}, one + config("sharing: {strategy: MPS}"), nil,
			[]string{"spec.devices.requests[0]: on NVIDIA L40S: device NVIDIA L40S: sharing.strategy MPS: the " +
				"administrator lets any number of claims use this GPU"}},
		{"an amount of an unlimited GPU", []clustertest.SimNode{{Name: "u", Profile: "l40s-x4",
			Use: gpu.SharingMode{Sharing: gpu.Unlimited}}}, fraction, nil, nil},

		{"shares of two GPUs in one container", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi, cores: 30}}}}]`,
			nil, []string{"spec.devices.requests[0]: on NVIDIA H100 80GB HBM3, NVIDIA L40S: devices NVIDIA H100 80GB " +
				"HBM3, NVIDIA H100 80GB HBM3 (2): a process has one set of limits and talks to one MPS daemon: give " +
				"each container one of these shares"}},
		{"the same with a claim without limits", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}}}]` +
				config("sharing: {strategy: TimeSlicing}"), nil, []string{"spec.devices.requests[0]: nothing " +
				"enforces what it asks for in capacity.requests, because of the strategy TimeSlicing"}},
		{"time slices for whole GPUs", shared, one + config("sharing: {strategy: TimeSlicing}"), nil, nil},
		{"no limit of the cores", shared, amounts("cores: 0, memory: 5Gi"), nil,
			[]string{"requests[cores]: 0 is no limit"}},
		{"two partitions for one container", shared, `requests: [{name: gpu, exactly: {deviceClassName: ` +
			`mig-1g.10gb.nvidia.com, count: 2}}]`, nil, []string{"spec.devices.requests[0]: a CUDA program uses " +
			"one partition"}},
		{"a partition", shared, `requests: [{name: gpu, exactly: {deviceClassName: mig-1g.10gb.nvidia.com}}]`, nil, nil},
		{"the same with some exclusive GPUs", mixed,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}}}]`,
			nil, []string{"spec.devices.requests[0]: on NVIDIA H100 80GB HBM3, NVIDIA L40S: devices NVIDIA H100"}},
		{"the same with selectors for exclusive GPUs", mixed,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].sharing == 'exclusive'"}}]}}]`,
			nil, nil},
		{"two shares in two requests", shared,
			`requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 6Gi}}}}]`,
			nil, []string{"spec.devices.requests: their devices have limits of their own"}},

		{"no memory, of which the scheduler counts the least", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 0}}}}]`,
			nil, []string{"0 bytes of memory is less than a program needs"}},
		{"a limit of the multiprocessors for a share", shared, fraction + config("sharing: {strategy: MPS, mpsConfig: "+
			"{defaultActiveThreadPercentage: 10}}"), nil, nil},
		{"limits of MPS for a share", shared, fraction + config("sharing: {strategy: MPS, mpsConfig: "+
			"{defaultPinnedDeviceMemoryLimit: 4Gi}}"),
			nil, []string{"spec.devices.requests[0]: on NVIDIA H100 80GB HBM3, NVIDIA L40S: device NVIDIA H100 80GB " +
				"HBM3: sharing.mpsConfig: the memory limit of a share is what its request asks for in " +
				"capacity.requests; leave the default limits out"}},
		{"a limit above the request", shared, fraction + config("sharing: {strategy: MPS, mpsConfig: "+
			"{defaultPinnedDeviceMemoryLimit: 6Gi}}"),
			nil, []string{"the memory limit of a share is what its request asks for in capacity.requests; leave the " +
				"default limits out"}},
		{"a limit for one device above the request", shared, fraction +
			config(`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"0": 6Gi}}}`),
			nil, []string{"the memory limit of a share is what its request asks for"}},
		{"a limit above the request for an exclusive GPU", exclusive, fraction +
			config("sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 6Gi}}"), nil, nil},
		{"a limit above the request for a partition", shared,
			`requests: [{name: part, exactly: {deviceClassName: mig-2g.20gb.nvidia.com, capacity: {requests: {memory: 8Gi}}}}]
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: MigDeviceConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 15Gi}}}}}]`, nil, nil},
		{"a later configuration applies to one request", shared,
			`requests: [{name: whole, exactly: {deviceClassName: gpu.nvidia.com}}, {name: small, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}]
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 10Gi}}}}},
  {requests: [small], opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: TimeSlicing}}}}]`,
			nil, []string{"spec.devices.requests[1]: nothing enforces what it asks for",
				"spec.devices.requests: their devices have limits of their own"}},
		{"limits for GPUs of different sizes, in the order of the claim", mixed,
			`requests: [{name: large, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}}]}}, {name: a-small-one, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Turing'"}}]}}]` +
				config(
					`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"0": 40Gi, "1": 8Gi}}}`),
			nil, nil},
		{"limits for two GPUs, one of them absent", []clustertest.SimNode{{Name: "t", Profile: "t4-x2"}},
			`requests: [{name: large, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}}]}}, {name: small, exactly: {deviceClassName: gpu.nvidia.com}}]` +
				config(
					`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"0": 8Gi, "1": 8Gi}}}`),
			nil, []string{`no device has the architecture "Hopper"; the values of architecture are "Turing"`,
				"the configuration is for 1 devices"}},
		{"limits by UUID for the second request", shared, `requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]
config: [{requests: [b], opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {GPU-aaa: 8Gi}}}}}}]`, nil, nil},
		{"a limit above the memory of every GPU", shared, one + config("sharing: {strategy: MPS, "+
			"mpsConfig: {defaultPinnedDeviceMemoryLimit: 1Ti}}"),
			nil, []string{"a memory limit of 1Ti is more than device NVIDIA H100 80GB HBM3 has"}},
		{"a limit above the memory of some GPUs", shared, one + config("sharing: {strategy: MPS, mpsConfig: "+
			"{defaultPinnedDeviceMemoryLimit: 60Gi}}"),
			nil, []string{"spec.devices.requests[0]: on NVIDIA L40S: device NVIDIA L40S: sharing.mpsConfig: a memory " +
				"limit of 60Gi is more than"}},
		{"a limit for a device that the claim does not have", shared,
			one + config(`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"1": 1Gi}}}`),
			nil, []string{"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[1]: the configuration is for 1 " +
				"devices"}},
		{"MPS while only replicas without isolation are published", []clustertest.SimNode{{Name: "r",
			Profile: "l40s-x4",
			Use:     gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4, Isolation: gpu.IsolationNone}}},
			one + config("sharing: {strategy: MPS}"), nil,
			[]string{"spec.devices.requests[0]: on NVIDIA L40S: "}},
		{"a limit for the second of two requests", shared,
			`requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]` +
				config(`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"1": 1Gi}}}`), nil,
			nil},
		{"a limit by UUID, which only the node knows", shared,
			one + config(`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {GPU-1234: 1Gi}}}`),
			nil, nil},
		{"MPS for all, also for who only looks after GPUs", shared,
			`requests: [{name: all, exactly: {deviceClassName: monitor.gpu.nvidia.com, adminAccess: true}}, {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]` +
				config("sharing: {strategy: MPS}"), nil, nil},
		{"a configuration for GPUs at a request for partitions", shared,
			`requests: [{name: part, exactly: {deviceClassName: mig.nvidia.com}}]
config: [{requests: [part], opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}}}]`,
			nil, []string{"MIG 7g.80gb of NVIDIA H100 80GB HBM3: spec.devices.config[0].opaque.parameters.kind: " +
				"Invalid value: \"GpuConfig\": device NVIDIA H100"}},

		{"a selector that fails", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "true"}}, {cel: {expression: "device.attributes['gpu.nvidia.com'].modelName == 'x'"}}]}}]`,
			nil, []string{"spec.devices.requests[0].exactly.selectors[1].cel.expression: no device has the attribute " +
				"modelName; there are addressingMode, architecture, brand, "}},
		{"a selector of an alternative that fails", shared,
			`requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.capacity['gpu.nvidia.com'].vram.isGreaterThan(quantity('1'))"}}]}]}]`,
			nil, []string{"spec.devices.requests[0].firstAvailable[1].selectors[0].cel.expression: no device has the " +
				"capacity vram; there are cores, memory (the selector fails on devices of the class, and then the " +
				"scheduler gives up on the pod)"}},
		{"a selector for one certain GPU", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].uuid == 'GPU-1'"}}]}}]` +
				config("sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {\"1\": 1Gi}}}"),
			nil, []string{"the configuration is for 1 devices"}},
		{"alternatives of which one works", shared,
			`requests: [{name: gpu, firstAvailable: [{name: shares, deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}}, {name: whole, deviceClassName: gpu.nvidia.com}]}]`,
			nil, []string{"spec.devices.requests[0]: on NVIDIA H100 80GB HBM3, NVIDIA L40S: "}},
		{"alternatives of which none works", shared,
			`requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}}, {name: never, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "false"}}]}]}]`,
			nil, []string{"a process has one set of limits"}},
		{"shares of all GPUs of a node, which may be one", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All, capacity: {requests: {memory: 5Gi}}}}]`,
			nil, []string{"a process has one set of limits"}},
		{"a GPU over the network, or a local one", shared, `requests: [` + overNetwork("gpu", "") +
			`, {name: more, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com},
			{name: b, deviceClassName: remote.gpu.nvidia.com}]}]`, nil, nil},
		{"two GPUs over the network", shared, `requests: [` + overNetwork("gpu", "count: 2") + `]`, []string{
			"spec.devices.requests[0].exactly.count: Invalid value: 2: must be 1: a claim has at most one GPU over " +
				"the network"}, nil},
		{"two of them by two requests", shared, `requests: [` + overNetwork("a", "") + `, {name: b, firstAvailable:
			[{name: x, deviceClassName: remote.gpu.nvidia.com}, {name: y, deviceClassName: remote.gpu.nvidia.com}]}]`,
			[]string{"spec.devices.requests[1].firstAvailable[0].deviceClassName: Invalid value: " +
				"\"remote.gpu.nvidia.com\": request a has this class, too: a claim has at most one GPU"}, nil},
		{"all GPUs over the network", shared, `requests: [` + overNetwork("gpu", "allocationMode: All") + `]`,
			[]string{"exactly.allocationMode: Invalid value: \"All\": must be ExactCount: a claim has"}, nil},
		{"admin access to a GPU over the network", shared, `requests: [` + overNetwork("gpu", "adminAccess: true") + `]`,
			[]string{"spec.devices.requests[0].exactly.adminAccess: Invalid value: true: must be false"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key := fmt.Sprintf("%+v", tc.cluster)
			v := views[key]
			if v == nil {
				v = clustertest.New(t, tc.cluster...)
				set(t, v, `{metadata: {name: nic.example.com}, spec: {}}`)
				set(t, v, `{metadata: {name: remote.gpu.nvidia.com}, spec: {selectors:
					[{cel: {expression: "device.driver == 'remote.gpu.nvidia.com'"}}]}}`)
				views[key] = v
			}
			checker := admission.Checker{View: v}
			got := checker.Claim(t.Context(), &clustertest.Claim(t, tc.devices).Spec, field.NewPath("spec"))
			var problems []string
			for _, p := range got.Problems {
				problems = append(problems, p.Error())
			}
			compare(t, "refused", problems, tc.refused)
			compare(t, "warned", got.Warnings, tc.warned)
		})
	}
}

// compare checks that each line contains the wanted text in its place.
func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		same = strings.Contains(got[i], want[i])
	}
	if !same {
		t.Errorf("%s: got\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// The selectors of a class with another name are evaluated, and its configuration applies to the claim.
func TestUserDefinedClass(t *testing.T) {
	v := clustertest.New(t, shared...)
	set(t, v, `{metadata: {name: half}, spec: {selectors: [{cel: {expression: "device.driver == \"gpu.nvidia.com\" && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}],
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 10Gi}}}}}]}}`)
	checker := admission.Checker{View: v}
	whole := checker.Claim(t.Context(), &clustertest.Claim(t,
		`requests: [{name: gpu, exactly: {deviceClassName: half}}]`).Spec, field.NewPath("spec"))
	if len(whole.Problems)+len(whole.Warnings) > 0 {
		t.Errorf("a whole GPU: got %v", whole)
	}
	share := checker.Claim(t.Context(), &clustertest.Claim(t,
		`requests: [{name: gpu, exactly: {deviceClassName: half, capacity: {requests: {memory: 5Gi}}}}]`).Spec,
		field.NewPath("spec"))
	if len(share.Problems) > 0 || len(share.Warnings) != 1 || !strings.Contains(share.Warnings[0],
		"the memory limit of a share is what its request asks for") {
		t.Errorf("a share: got %v, want one warning: the limits of the class", share)
	}
}

// 8,192 selectors that nobody has used before do not keep a webhook busy after its timeout: the machine may be slow, so
// the time of an eighth of them is the measure.
func TestManySelectors(t *testing.T) {
	checker := admission.Checker{View: clustertest.New(t, shared...)}
	check := func(ctx context.Context, requests, alternatives int) (admission.Verdict, time.Duration) {
		start := time.Now()
		v := checker.Claim(ctx, newSelectors(requests, alternatives), field.NewPath("spec"))
		return v, time.Since(start)
	}
	few, measure := check(t.Context(), 4, 8)
	compare(t, "warned of few", few.Warnings, nil)
	ctx, cancel := context.WithTimeout(t.Context(), measure)
	defer cancel()
	got, took := check(ctx, 32, 8)
	if took > 4*measure {
		t.Errorf("took %s, want little more than the timeout of %s", took, measure)
	}
	compare(t, "warned", got.Warnings, []string{"spec.devices: not all of it could be checked in time"})
	if len(got.Problems) > 0 {
		t.Errorf("got %v, want no problems", got.Problems)
	}
}

// newSelectors is a claim whose requests have alternatives with 32 selectors each, which differ by those numbers.
func newSelectors(requests, alternatives int) *resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	for r := range requests {
		request := resourceapi.DeviceRequest{Name: fmt.Sprint("r", r)}
		for a := range alternatives {
			sub := resourceapi.DeviceSubRequest{Name: fmt.Sprint("a", a), DeviceClassName: "gpu.nvidia.com"}
			for i := range 32 {
				sub.Selectors = append(sub.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
					Expression: fmt.Sprintf("%d == %[1]d && %d == %[2]d", requests, (r*8+a)*32+i)}})
			}
			request.FirstAvailable = append(request.FirstAvailable, sub)
		}
		spec.Devices.Requests = append(spec.Devices.Requests, request)
	}
	return &spec
}

func TestDeviceClass(t *testing.T) {
	for _, tc := range []struct{ name, spec, refused, warned string }{
		{"of the driver",
			`{selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}]}`, "", ""},
		{"of another driver",
			`{selectors: [{cel: {expression: "device.driver == 'nic.example.com' && device.attributes['nic.example.com'].speed > 5"}}]}`, "", ""},
		{"with a mistake",
			`{config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: mps}}}}]}`,
			"spec.config[0].opaque.parameters.sharing.strategy: Unsupported value: \"mps\"", ""},
		{"with a selector that fails",
			`{selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].gpuModel == 'x'"}}]}`, "",
			"spec.selectors[0].cel.expression: no device has the attribute gpuModel; there are addressingMode"},
		{"for GPUs that are not there", `{selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'"}}]}`,
			"", ""},
		{"with the extended resource of the chart's", `{extendedResourceName: nvidia.com/gpu, selectors: [{cel: ` +
			`{expression: "device.driver == 'gpu.nvidia.com'"}}]}`, "", "spec.extendedResourceName: class " +
			"gpu.nvidia.com has nvidia.com/gpu, too: the newest of them counts"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var spec resourceapi.DeviceClassSpec
			if err := yaml.UnmarshalStrict([]byte(tc.spec), &spec); err != nil {
				t.Fatal(err)
			}
			got := admission.Checker{View: clustertest.New(t, shared...)}.DeviceClass(t.Context(), "own", &spec,
				field.NewPath("spec"))
			var problems, refused, warned []string
			for _, p := range got.Problems {
				problems = append(problems, p.Error())
			}
			if tc.refused != "" {
				refused = []string{tc.refused}
			}
			if tc.warned != "" {
				warned = []string{tc.warned}
			}
			compare(t, "refused", problems, refused)
			compare(t, "warned", got.Warnings, warned)
		})
	}
}

func set(t *testing.T, v *cluster.View, class string) {
	t.Helper()
	var c resourceapi.DeviceClass
	if err := yaml.UnmarshalStrict([]byte(class), &c); err != nil {
		t.Fatal(err)
	}
	v.SetClass(&c)
}
