// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// asText prints an amount, with ? for what is unknown.
func asText(a cluster.Amount, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	text := ""
	for _, name := range []string{"gpus", "memory", "cores", "tflops"} {
		n, known := a[corev1.ResourceName(name)]
		switch {
		case !known:
			text += name + "=? "
		case name == "memory":
			text += fmt.Sprintf("memory=%dMi ", n>>20)
		default:
			text += fmt.Sprintf("%s=%d ", name, n)
		}
	}
	return text[:len(text)-1]
}

// What claims count before they have devices: the most that they can get.
func TestAmountOfPendingClaims(t *testing.T) {
	four := gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4, SharedOnly: true}
	v := clustertest.New(t, clustertest.SimNode{Name: "t4", Profile: "t4-x2"},
		clustertest.SimNode{Name: "h100", Profile: "dgx-h100"},
		clustertest.SimNode{Name: "replicas", Profile: "a30-x2", Use: four},
		clustertest.SimNode{Name: "exclusive", Profile: "l40s-x4", Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	foreign := &resourceapi.DeviceClass{}
	foreign.Name = "nic.example.com"
	foreign.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.driver == 'nic.example.com'"}}}
	v.SetClass(foreign)
	request := func(text string) string { return "requests: [{name: gpu, exactly: {" + text + "}}]" }
	first := func(text string) string { return "requests: [{name: gpu, firstAvailable: [" + text + "]}]" }
	of := func(model string) string {
		return `, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].productName == '` + model +
			`'"}}]`
	}
	for _, row := range []struct{ name, devices, want string }{
		{"any whole GPU counts as the largest, and the fastest", request("deviceClassName: gpu.nvidia.com"),
			"gpus=1 memory=81559Mi cores=100 tflops=989"},
		{"a model", request("deviceClassName: gpu.nvidia.com, count: 2" + of("Tesla T4")),
			"gpus=2 memory=30720Mi cores=200 tflops=130"},
		{"a share, which may be a GPU that is not shared", request("deviceClassName: gpu.nvidia.com, count: 2, " +
			`capacity: {requests: {memory: 5Gi, cores: "30"}}`),
			"gpus=2 memory=92136Mi cores=200 tflops=724"},
		{"a share of a GPU that is shared", request("deviceClassName: gpu.nvidia.com, " +
			`capacity: {requests: {memory: 5Gi, cores: "30"}}` + of("Tesla T4")), "gpus=1 memory=5120Mi cores=30 tflops=19"},
		{"memory alone has no cores of its own", request(`deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: ` +
			`5Gi}}` + of("Tesla T4")), "gpus=1 memory=5120Mi cores=0 tflops=0"},
		{"all memory of a T4 is the whole T4", request(`deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: ` +
			`15Gi}}` + of("Tesla T4")), "gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"a replica", request("deviceClassName: shared.gpu.nvidia.com"), "gpus=1 memory=6144Mi cores=25 tflops=41"},
		{"a partition", request("deviceClassName: mig-1g.10gb.nvidia.com, count: 3"),
			"gpus=3 memory=29952Mi cores=36 tflops=357"},
		{"the largest alternative", "requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: " +
			"gpu.nvidia.com" + of("Tesla T4") + ", count: 3}, {name: b, deviceClassName: mig-1g.10gb.nvidia.com}]}]",
			"gpus=3 memory=46080Mi cores=300 tflops=195"},
		{"an alternative of another driver before", first("{name: a, deviceClassName: nic.example.com}, {name: b, " +
			"deviceClassName: gpu.nvidia.com" + of("B200") + "}"), "gpus=1 memory=? cores=100 tflops=?"},
		{"an alternative that is never met, behind", first("{name: a, deviceClassName: gpu.nvidia.com" + of("B200") +
			`}, {name: b, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "false"}}]}`),
			"gpus=1 memory=? cores=100 tflops=?"},
		{"a monitor before", first("{name: a, deviceClassName: monitor.gpu.nvidia.com}, {name: b, deviceClassName: " +
			"gpu.nvidia.com" + of("B200") + "}"), "gpus=1 memory=? cores=100 tflops=?"},
		{"a monitor, and admin access", request("deviceClassName: gpu.nvidia.com, adminAccess: true"),
			"gpus=0 memory=0Mi cores=0 tflops=0"},
		{"all monitors", request("deviceClassName: monitor.gpu.nvidia.com, allocationMode: All"),
			"gpus=0 memory=0Mi cores=0 tflops=0"},
		{"another driver", request("deviceClassName: nic.example.com, count: 8"), "gpus=0 memory=0Mi cores=0 tflops=0"},
		{"a GPU that nobody publishes", request("deviceClassName: gpu.nvidia.com, count: 2" + of("B200")),
			"gpus=2 memory=? cores=200 tflops=?"},
		{"an alternative that nobody publishes", "requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: " +
			"gpu.nvidia.com" + of("B200") + "}, {name: b, deviceClassName: gpu.nvidia.com" + of("Tesla T4") + "}]}]",
			"gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"a selector that computes the name of an attribute", request("deviceClassName: gpu.nvidia.com, selectors: " +
			`[{cel: {expression: "device.attributes['gpu.nvidia.com']['uu' + 'id'] == 'x'"}}]`),
			"gpus=1 memory=81559Mi cores=100 tflops=989"},
		{"a selector that fails for some devices", request("deviceClassName: gpu.nvidia.com, selectors: [{cel: " +
			`{expression: "device.attributes['gpu.nvidia.com'].index > 5 || device.attributes['gpu.nvidia.com'].no"}}]`),
			"gpus=1 memory=81559Mi cores=100 tflops=989"},
		{"a list of models, and a pattern", request("deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: " +
			`"device.attributes['gpu.nvidia.com'].productName in ['Tesla T4', 'x'] && ` +
			`device.attributes[\"gpu.nvidia.com\"].productName.matches('^Tesla [A-Z]4$')"}}]`),
			"gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"all GPUs of a node", request("deviceClassName: gpu.nvidia.com, allocationMode: All"),
			"error: request gpu: allocationMode All: how many devices it gets is not known before; write a count"},
		{"a class that does not exist", request("deviceClassName: gpu.nvidia.co"),
			"error: request gpu: there is no DeviceClass gpu.nvidia.co"},
		{"a count that no claim can get", request("deviceClassName: gpu.nvidia.com, count: 4611686018427387904" +
			of("Tesla T4")), "gpus=32 memory=491520Mi cores=3200 tflops=2080"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := asText(v.AmountOf(t.Context(), clustertest.Claim(t, row.devices))); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// Claims for a GPU without limits count all of it, whatever they ask for: they may use all of it.
func TestAmountOfUnlimitedGPUs(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "t4", Profile: "t4-x2",
		Use: gpu.SharingMode{Sharing: gpu.Unlimited}})
	share := "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}]"
	for _, row := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  string
	}{
		{"nothing", clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]"),
			"gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"memory", clustertest.Claim(t, share), "gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"allocated some memory", claim("c", "t4", "gpu-3b-00-0", "memory=1Mi", "cores=0"),
			"gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"allocated nothing", claim("c", "t4", "gpu-3b-00-0", "memory=0", "cores=0"),
			"gpus=1 memory=15360Mi cores=100 tflops=65"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := asText(v.AmountOf(t.Context(), row.claim)); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// What claims count that have devices.
func TestAmountOfAllocatedClaims(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "t4", Profile: "t4-x2"},
		clustertest.SimNode{Name: "h100", Profile: "dgx-h100"})
	for _, row := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  string
	}{
		{"a share", claim("c", "t4", "gpu-3b-00-0", "memory=5Gi", "cores=30"),
			"gpus=1 memory=5120Mi cores=30 tflops=19"},
		{"a whole GPU", claim("c", "t4", "gpu-3b-00-0", "memory=15Gi", "cores=0"),
			"gpus=1 memory=15360Mi cores=100 tflops=65"},
		{"a partition", claim("c", "h100", "gpu-1b-00-0-mig-1g10gb-0"), "gpus=1 memory=9984Mi cores=12 tflops=119"},
		{"a GPU that is not published", claim("c", "away", "gpu-3b-00-0", "memory=5Gi"),
			"gpus=1 memory=? cores=? tflops=?"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := asText(v.AmountOf(t.Context(), row.claim)); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}
