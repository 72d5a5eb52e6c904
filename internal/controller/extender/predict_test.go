// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// What pods ask of the driver beside other things.
func TestAsk(t *testing.T) {
	const nic = "nic.example.com"
	foreign := &resourceapi.DeviceClass{}
	foreign.Name = nic
	foreign.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.driver == 'nic.example.com'"}}}
	for _, tc := range []struct {
		name, claim string
		resources   map[corev1.ResourceName]string
		want        string
	}{
		{"nothing", "", nil, "a"},
		{"a claim of another driver", "{name: nic, exactly: {deviceClassName: nic.example.com}}", nil, "a"},
		{"a GPU and a NIC", "{name: nic, exactly: {deviceClassName: nic.example.com}}, " +
			"{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}", nil, "a gpu-3b-00-0:1000"},
		{"a NIC or a GPU", "{name: any, firstAvailable: [{name: nic, deviceClassName: nic.example.com}, " +
			"{name: gpu, deviceClassName: gpu.nvidia.com}]}", nil, "a"},
		{"admin access", "{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true}}", nil, "a"},
		{"the monitor device", "{name: m, exactly: {deviceClassName: monitor.gpu.nvidia.com, adminAccess: true}}", nil,
			"a"},
		{"extended resources", "", map[corev1.ResourceName]string{"nvidia.com/gpu": "2"},
			"a gpu-3b-00-0:1000 gpu-af-00-0:1000"},
		{"a class as an extended resource", "", map[corev1.ResourceName]string{
			"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}, "a gpu-3b-00-0:1000"},
		{"an extended resource of somebody else", "", map[corev1.ResourceName]string{"nic.example.com/nic": "9"}, "a"},
		{"more than there is", "", map[corev1.ResourceName]string{"nvidia.com/gpu": "3"}, "nothing fits"},
		{"a class that does not exist", "{name: gpu, exactly: {deviceClassName: no-such-class}}", nil, "a"},
		{"a quarter of the cores and half of the memory", "{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, " +
			"capacity: {requests: {memory: 7680Mi, cores: 25}}}}", nil, "a gpu-3b-00-0:500"},
		{"a tenth of the memory and half of the cores", "{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, " +
			"capacity: {requests: {memory: 1536Mi, cores: 50}}}}", nil, "a gpu-3b-00-0:500"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			w.addClass(foreign)
			pod := newPod("p", 1)
			if tc.claim != "" {
				pod = w.pod("p", 1, "requests: ["+tc.claim+"]")
			}
			for name, amount := range tc.resources {
				for _, list := range []*corev1.ResourceList{&pod.Spec.Containers[0].Resources.Requests,
					&pod.Spec.Containers[0].Resources.Limits} {
					if *list == nil {
						*list = corev1.ResourceList{}
					}
					(*list)[name] = resource.MustParse(amount)
				}
			}
			nodes, _ := w.best(pod)
			got := "nothing fits"
			if p := w.usage.proposals[pod.UID]; p != nil {
				got = p.node
				for _, take := range p.takes {
					got += fmt.Sprintf(" %s:%d", take.GPU.Name, take.Amount)
				}
			}
			if got != tc.want || len(nodes) == 0 != (got == "nothing fits") {
				t.Errorf("got %s, best %v, want %s", got, nodes, tc.want)
			}
		})
	}
}

// GPUs that are kept for a team count for its pods, and for nobody else's: on a node of their own, and beside others on
// a node, where the team's pod packs.
func TestReservedGPUs(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "kept", Profile: "t4-x2"},
		clustertest.SimNode{Name: "open", Profile: "l40s-x4"})
	for _, s := range w.slices[:1] {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: cluster.ReservedTaint, Value: "vision",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		w.view.SetSlice(w.view.SlimSlice(s))
	}
	tolerating := func(value, rest string) string {
		return `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com` + rest + `, tolerations: [{key: ` +
			cluster.ReservedTaint + `, operator: Equal, value: ` + value + `, effect: NoSchedule}]}}]`
	}
	for _, row := range []struct {
		name, devices string
		want          string // where it fits
	}{
		{"a pod of the team", tolerating("vision", ""), "kept open"},
		{"a share of the team", tolerating("vision", ", capacity: {requests: {memory: 5Gi}}"), "kept open"},
		{"a pod of another team", tolerating("speech", ""), "open"},
		{"anybody's pod", oneGPU, "open"},
	} {
		pod := w.pod(strings.ReplaceAll(row.name, " ", "-"), 1, row.devices)
		var fits []string
		for _, s := range w.Prioritize(t.Context(), pod, w.nodes) {
			if s.Score > 0 {
				fits = append(fits, s.Host)
			}
		}
		if got := strings.Join(fits, " "); got != row.want {
			t.Errorf("%s: got scores on %s, want on %s", row.name, got, row.want)
		}
		w.schedule(pod) // the allocator gives it what was expected
	}
}

// Taints of devices keep new pods away, as do slices that are gone; the scheduler judges cordons and taints of nodes
// before it asks.
func TestTaintedAndUnpublishedGPUs(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	taint := resourceapi.DeviceTaint{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	for _, s := range w.slices {
		if s.Spec.Pool.Name == "a" {
			for i := range s.Spec.Devices {
				if s.Spec.Devices[i].Name == "gpu-3b-00-0" {
					s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{taint}
				}
			}
			w.view.SetSlice(w.view.SlimSlice(s))
		}
	}
	pod := w.pod("p", 1, oneGPU)
	points := func() string {
		var all []string
		for _, s := range w.Prioritize(t.Context(), pod, []string{"a", "b", "without-plugin"}) {
			all = append(all, fmt.Sprint(s.Score))
		}
		return strings.Join(all, " ")
	}
	if got := points(); got != "100 86 0" {
		t.Errorf("one of two GPUs of a is tainted: got %s, want a before b", got)
	}
	if got := w.schedule(pod); got != "a gpu-af-00-0" {
		t.Errorf("got %s, want the GPU without the taint", got)
	}
	pod = w.pod("q", 1, oneGPU)
	if got := points(); got != "0 100 0" {
		t.Errorf("a has one tainted GPU and one in use: got %s, want b alone", got)
	}
	for _, s := range w.slices {
		w.view.DeleteSlice(s.Name)
	}
	if got := points(); got != "0 0 0" {
		t.Errorf("without slices: got %s, want nothing", got)
	}
	if nodes, _ := w.best(newPod("cpu", 1)); !slices.Equal(nodes, []string{"a"}) {
		t.Errorf("a pod without GPUs: got %v, want the node with less idle CPU", nodes)
	}
}

// The node that would refuse the devices, so that the pod never starts there, is the worst.
func TestNodesThatRefuse(t *testing.T) {
	const share = "deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}"
	one := "requests: [{name: r, exactly: {" + share + "}}]"
	two := "requests: [{name: r, exactly: {" + share + "}}, {name: s, exactly: {" + share + "}}]"
	for _, row := range []struct {
		name, claim string
		hostMemory  bool
		want        []string
	}{
		{"a share", one, false, []string{"mps"}},
		{"a share, beside a volume of the host where MPS has its memory", one, true, []string{"none"}},
		{"two requests in a container", two, false, []string{"none"}},
		{"two shares in a container", "requests: [{name: r, exactly: {" + share + ", count: 2}}]", false,
			[]string{"none"}},
	} {
		w := newWorld(t, clustertest.SimNode{Name: "mps", Profile: "t4-x2"}, clustertest.SimNode{Name: "none",
			Profile: "t4-x2", Use: gpu.SharingMode{Isolation: gpu.IsolationNone}})
		p := w.pod("p", 1, row.claim)
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "p"}}
		if row.hostMemory {
			p.Spec.Volumes = []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/shared"}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "shm", MountPath: "/dev/shm"}}
		}
		got, expected := w.best(w.exists(p))
		if !slices.Equal(got, row.want) || !strings.HasPrefix(expected, row.want[0]) {
			t.Errorf("%s: got the best score on %v, want on %v", row.name, got, row.want)
		}
	}
}
