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

	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/view"
	"github.com/gpudra/gpu-dra-driver/internal/controller/viewtest"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// The clusters of the tests.
var (
	shared  = []viewtest.Node{{Name: "a", Profile: "l40s-x4"}, {Name: "b", Profile: "dgx-h100"}}
	mixed   = append(shared, viewtest.Node{Name: "c", Profile: "t4-x2", Use: gpu.Use{Sharing: gpu.Exclusive}})
	nothing []viewtest.Node

	exclusive = []viewtest.Node{{Name: "c", Profile: "l40s-x4", Use: gpu.Use{Sharing: gpu.Exclusive}}}
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

func TestClaim(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cluster []viewtest.Node
		devices string
		refused []string // each in a problem of its own, in this order
		warned  []string
	}{
		{"a GPU", shared, one, nil, nil},
		{"a GPU in an empty cluster", nothing, one + config("sharing: {strategy: MPS, mpsConfig: "+
			"{defaultPinnedDeviceMemoryLimit: 1Ti}}"), nil, nil},
		{"a share", shared, fraction, nil, nil},
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
		{"more replicas than are published", append(shared, viewtest.Node{Name: "r", Profile: "t4-x2",
			Use: gpu.Use{Sharing: gpu.Replicated, Replicas: 4}}),
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 5}}}}]`,
			nil, []string{"requests[shares]: no device that is published now, and that the selectors accept, has so " +
				"much; the most is 4 (Tesla T4)"}},
		{"replicas of some GPUs", append(shared, viewtest.Node{Name: "r", Profile: "t4-x2",
			Use: gpu.Use{Sharing: gpu.Replicated, Replicas: 4}}),
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 1}}}}]`,
			nil, nil},
		{"replicas in an empty cluster", nothing,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: 1}}}}]`,
			nil, nil},
		{"engines of a whole GPU", exclusive,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {decoders: 1}}}}]`,
			nil, []string{"requests[decoders]: no device that is published now, and that the selectors accept, has " +
				"this capacity"}},
		{"MPS on an unlimited GPU", []viewtest.Node{{Name: "u", Profile: "l40s-x4",
			Use: gpu.Use{Sharing: gpu.Unlimited}}}, one + config("sharing: {strategy: MPS}"), nil,
			[]string{"spec.devices.requests[0]: on NVIDIA L40S: device NVIDIA L40S: sharing.strategy MPS: the " +
				"administrator lets any number of claims use this GPU"}},
		{"an amount of an unlimited GPU", []viewtest.Node{{Name: "u", Profile: "l40s-x4",
			Use: gpu.Use{Sharing: gpu.Unlimited}}}, fraction, nil, nil},

		{"shares of two GPUs in one container", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi, cores: 30}}}}]`,
			nil, []string{"spec.devices.requests[0]: on NVIDIA H100 80GB HBM3, NVIDIA L40S: devices NVIDIA H100 80GB " +
				"HBM3, NVIDIA H100 80GB HBM3 (2): a process has one set of limits and talks to one MPS daemon: give " +
				"each container one of these shares"}},
		{"the same with a claim without limits", shared,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}}}]` +
				config("sharing: {strategy: TimeSlicing}"), nil, nil},
		{"the same with some exclusive GPUs", mixed,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}}}]`,
			nil, []string{"spec.devices.requests[0]: on NVIDIA H100 80GB HBM3, NVIDIA L40S: devices NVIDIA H100"}},
		{"the same with selectors for exclusive GPUs", mixed,
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5Gi}}, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].sharing == 'exclusive'"}}]}}]`,
			nil, nil},
		{"two shares in two requests", shared,
			`requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 6Gi}}}}]`,
			nil, []string{"spec.devices.requests: their devices have limits of their own"}},

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
			nil, []string{"spec.devices.requests: their devices have limits of their own"}},
		{"limits for GPUs of different sizes, in the order of the claim", mixed,
			`requests: [{name: large, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}}]}}, {name: a-small-one, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Turing'"}}]}}]` +
				config(
					`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"0": 40Gi, "1": 8Gi}}}`),
			nil, nil},
		{"limits for two GPUs, one of them absent", []viewtest.Node{{Name: "t", Profile: "t4-x2"}},
			`requests: [{name: large, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}}]}}, {name: small, exactly: {deviceClassName: gpu.nvidia.com}}]` +
				config(
					`sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"0": 8Gi, "1": 8Gi}}}`),
			nil, []string{"the configuration is for 1 devices"}},
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
		{"MPS while only replicas without isolation are published", []viewtest.Node{{Name: "r", Profile: "l40s-x4",
			Use: gpu.Use{Sharing: gpu.Replicated, Replicas: 4, Isolation: gpu.IsolationNone}}},
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
			nil, []string{"spec.devices.requests[0].exactly.selectors[1].cel.expression: no such key: modelName"}},
		{"a selector of an alternative that fails", shared,
			`requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.capacity['gpu.nvidia.com'].vram.isGreaterThan(quantity('1'))"}}]}]}]`,
			nil, []string{"spec.devices.requests[0].firstAvailable[1].selectors[0].cel.expression: no such key: vram"}},
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
	} {
		t.Run(tc.name, func(t *testing.T) {
			checker := admission.Checker{View: viewtest.New(t, tc.cluster...)}
			got := checker.Claim(t.Context(), &viewtest.Claim(t, tc.devices).Spec, field.NewPath("spec"))
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
	v := viewtest.New(t, shared...)
	set(t, v, `{metadata: {name: half}, spec: {selectors: [{cel: {expression: "device.driver == \"gpu.nvidia.com\" && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}],
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 10Gi}}}}}]}}`)
	checker := admission.Checker{View: v}
	whole := checker.Claim(t.Context(), &viewtest.Claim(t,
		`requests: [{name: gpu, exactly: {deviceClassName: half}}]`).Spec, field.NewPath("spec"))
	if len(whole.Problems)+len(whole.Warnings) > 0 {
		t.Errorf("a whole GPU: got %v", whole)
	}
	share := checker.Claim(t.Context(), &viewtest.Claim(t,
		`requests: [{name: gpu, exactly: {deviceClassName: half, capacity: {requests: {memory: 5Gi}}}}]`).Spec,
		field.NewPath("spec"))
	if len(share.Problems) > 0 || len(share.Warnings) != 1 || !strings.Contains(share.Warnings[0],
		"the memory limit of a share is what its request asks for") {
		t.Errorf("a share: got %v, want one warning: the limits of the class", share)
	}
}

// 8,192 selectors that nobody has used before do not keep a webhook busy after its timeout.
func TestManySelectors(t *testing.T) {
	var spec resourceapi.ResourceClaimSpec
	for r := range 32 {
		request := resourceapi.DeviceRequest{Name: fmt.Sprint("r", r)}
		for a := range 8 {
			sub := resourceapi.DeviceSubRequest{Name: fmt.Sprint("a", a), DeviceClassName: "gpu.nvidia.com"}
			for i := range 32 {
				sub.Selectors = append(sub.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
					Expression: fmt.Sprintf("%d == %d", (r*8+a)*32+i, (r*8+a)*32+i)}})
			}
			request.FirstAvailable = append(request.FirstAvailable, sub)
		}
		spec.Devices.Requests = append(spec.Devices.Requests, request)
	}
	checker := admission.Checker{View: viewtest.New(t, shared...)}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	got := checker.Claim(ctx, &spec, field.NewPath("spec"))
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s, want little more than the timeout of 200ms", took)
	}
	compare(t, "warned", got.Warnings, []string{"spec.devices: not all of it could be checked in time"})
	if len(got.Problems) > 0 {
		t.Errorf("got %v, want no problems", got.Problems)
	}
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
			"spec.selectors[0].cel.expression: no such key: gpuModel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var spec resourceapi.DeviceClassSpec
			if err := yaml.UnmarshalStrict([]byte(tc.spec), &spec); err != nil {
				t.Fatal(err)
			}
			got := admission.Checker{View: viewtest.New(t, shared...)}.DeviceClass(t.Context(), &spec,
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

func set(t *testing.T, v *view.View, class string) {
	t.Helper()
	var c resourceapi.DeviceClass
	if err := yaml.UnmarshalStrict([]byte(class), &c); err != nil {
		t.Fatal(err)
	}
	v.SetClass(&c)
}
