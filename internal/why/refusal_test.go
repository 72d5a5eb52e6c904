// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// share is the content of a claim for a share.
const share = ", capacity: {requests: {memory: 5Gi, cores: 30}}"

// configured adds a configuration of the driver to the claim.
func configured(c *resourceapi.ResourceClaim, sharing string) {
	c.Spec.Devices.Config = append(c.Spec.Devices.Config, resourceapi.DeviceClaimConfiguration{
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion": ` +
				`"resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": ` + sharing + `}`)}}}})
}

// What the node refuses does not fit. The rules are those of Prepare.
func TestWhatTheNodeRefusesDoesNotFit(t *testing.T) {
	host := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/shared"}}
	const limits = "a process has one set of limits and talks to one MPS daemon\nsmallest change: in Pod ns/p: "
	const together = limits + "give each container one of these shares, by a claim of its own or by naming one " +
		"request\n"
	for _, row := range []struct {
		name string
		pod  func(*testing.T, *Manifest) *corev1.Pod
		want string // the first two lines; a part of them
	}{
		{"a share alone", func(t *testing.T, m *Manifest) *corev1.Pod {
			return m.use(claim(t, "a", gpus(share)))
		}, "pod p fits now on 1 of 1 nodes\n"},
		{"a share, and a volume of the host at /dev/shm", func(t *testing.T, m *Manifest) *corev1.Pod {
			p := m.use(claim(t, "a", gpus(share)))
			mount(p, "/dev/shm", host)
			return p
		}, "pod p would get devices and not start, because its node refuses it: container main: its volume shm at " +
			"/dev/shm is no emptyDir: under MPS, the memory of the MPS daemon is mounted there\n" +
			"smallest change: in Pod ns/p: use an emptyDir, or leave the volume out\n"},
		{"a share, and an emptyDir at /dev/shm", func(t *testing.T, m *Manifest) *corev1.Pod {
			p := m.use(claim(t, "a", gpus(share)))
			mount(p, "/dev/shm", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
			return p
		}, "pod p fits now on 1 of 1 nodes\n"},
		{"a whole GPU, and a volume of the host at /dev/shm", func(t *testing.T, m *Manifest) *corev1.Pod {
			p := m.use(claim(t, "a", gpus("")))
			mount(p, "/dev/shm", host)
			return p
		}, "pod p fits now on 1 of 1 nodes\n"},
		{"two shares of one claim in a container", func(t *testing.T, m *Manifest) *corev1.Pod {
			return m.use(claim(t, "a", requests("[{name: x, exactly: {deviceClassName: gpu.nvidia.com"+share+
				"}}, {name: z, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 7Gi}}}}]")))
		}, together},
		{"two shares of one claim in two containers", func(t *testing.T, m *Manifest) *corev1.Pod {
			p := m.use(claim(t, "a", requests("[{name: x, exactly: {deviceClassName: gpu.nvidia.com"+share+
				"}}, {name: z, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 7Gi}}}}]")))
			p.Spec.Containers = append(p.Spec.Containers, *p.Spec.Containers[0].DeepCopy())
			p.Spec.Containers[1].Name = "second"
			p.Spec.Containers[0].Resources.Claims[0].Request = "x"
			p.Spec.Containers[1].Resources.Claims[0].Request = "z"
			return p
		}, "pod p fits now on 1 of 1 nodes\n"},
		{"two shares of two claims in a container", func(t *testing.T, m *Manifest) *corev1.Pod {
			return m.use(claim(t, "a", gpus(share)), claim(t, "b", gpus(share)))
		}, "container main: it also uses device gpu-3b-00-0 of claim b: " + limits + "use the device "},
		{"two shares in one request", func(t *testing.T, m *Manifest) *corev1.Pod {
			return m.use(claim(t, "a", gpus(share+", count: 2")))
		}, "because its node refuses it: devices gpu-3b-00-0, gpu-af-00-0: " + limits},
		{"two shares in one request, without a pod", func(t *testing.T, m *Manifest) *corev1.Pod {
			m.use(claim(t, "a", gpus(share+", count: 2")))
			return nil
		}, "smallest change: in ResourceClaim ns/a: give each container one of these shares"},
		{"a share of a template, and a GPU as an extended resource", func(t *testing.T, m *Manifest) *corev1.Pod {
			c := claim(t, "a", gpus(share))
			m.Templates = []*resourceapi.ResourceClaimTemplate{templateOf("ns", "t")}
			m.Templates[0].Spec.Spec = c.Spec
			p := pod("p")
			useTemplate(p, nil)
			all := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			p.Spec.Containers[0].Resources.Limits, p.Spec.Containers[0].Resources.Requests = all, all
			return p
		}, "container main: it also uses device gpu-af-00-0 of claim extended-resources: " + limits},
		{"a configuration for other devices", func(t *testing.T, m *Manifest) *corev1.Pod {
			c := claim(t, "a", gpus(share))
			configured(c, `{"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Gi"}}`)
			return m.use(c)
		}, "because its node refuses it: device gpu-3b-00-0: sharing.mpsConfig: the memory limit of a share"},
		{"limits by UUID, which only the node knows", func(t *testing.T, m *Manifest) *corev1.Pod {
			c := claim(t, "a", gpus(""))
			configured(c, `{"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"GPU-1": "1Gi"}}}`)
			return m.use(c)
		}, "pod p fits now on 1 of 1 nodes\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			var m Manifest
			if p := row.pod(t, &m); p != nil {
				p.UID = ""
				m.Pods = []*corev1.Pod{p}
			}
			r := Fit(t.Context(), s, m)[0]
			if got := text(t, r); !strings.Contains(got, row.want) {
				t.Errorf("got:\n%swant:\n%s", got, row.want)
			}
			fits := strings.Contains(row.want, "fits now")
			if fits != (r.Outcome == Fits) || !fits && len(r.Places) > 0 {
				t.Errorf("got the outcome %s with %d places", r.Outcome, len(r.Places))
			}
		})
	}
}

// use returns a pod that uses the claims, which are added to the manifest.
func (m *Manifest) use(claims ...*resourceapi.ResourceClaim) *corev1.Pod {
	m.Claims = append(m.Claims, claims...)
	return pod("p", claims...)
}

// A pod that some of its nodes would refuse may start on the others.
func TestWhatSomeNodesRefuse(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: gpu.SharingMode{Isolation: gpu.IsolationNone}},
		clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	var m Manifest
	p := m.use(claim(t, "a", gpus(share)))
	mount(p, "/dev/shm", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/shared"}})
	m.Pods = []*corev1.Pod{p}
	got := text(t, Fit(t.Context(), s, m)[0])
	const want = "note: pod p would not start on 1 of these nodes, such as b, because the node refuses it: container " +
		"main: its volume shm at /dev/shm is no emptyDir"
	if !strings.HasPrefix(got, "pod p fits now on 2 of 2 nodes\n") || !strings.Contains(got, want) {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// A change with which the pod gets devices, and does not start, is no advice while there is another.
func TestAdviceStarts(t *testing.T) {
	const onlyFree = `, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].isolation == 'none'"}}]`
	for _, row := range []struct{ name, claim, sharing, want string }{
		{"two shares, which the other node refuses", gpus(share + ", count: 2" + onlyFree), "",
			"without a change: wait until claim ns/h-0 has ended; and wait until claim ns/h-1 has ended\n" +
				"or: in ResourceClaim ns/a, request gpu: ask for 1 device instead of 2; and in "},
		{"other limits than those of the share", gpus(share + onlyFree),
			`{"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Gi"}}`,
			"note: with other changes it would get devices and not start, because its node refuses it: device "},
		{"a limit that every node refuses", gpus(onlyFree),
			`{"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "100Gi"}}`,
			"note: with that change it would get devices and not start, because its node refuses it: device "},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := twoIsolations(t)
			run(t, s, "h", "", "free/0 whole", "free/1 whole")
			c := claim(t, "a", row.claim)
			if row.sharing != "" {
				configured(c, row.sharing)
			}
			s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
			report, err := Pod(t.Context(), s, "ns", "p")
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, report); !strings.Contains(got, row.want) {
				t.Errorf("got:\n%swant:\n%s", got, row.want)
			}
		})
	}
}

// Where all nodes refuse the pod, and there are many, the answer still has a change and says so.
func TestAdviceOnManyNodesThatRefuse(t *testing.T) {
	defer func(before int) { advice.SearchAsked = before }(advice.SearchAsked)
	advice.SearchAsked = 500
	var nodes []clustertest.SimNode
	for i := range 60 {
		nodes = append(nodes, clustertest.SimNode{Name: "n" + string(rune('A'+i)), Profile: "t4-x2"})
	}
	s := fleet(t, nodes...)
	for i, n := range nodes { // they differ
		held := claim(t, "h-"+n.Name, gpus(", capacity: {requests: {memory: "+string(rune('1'+i%9))+"Gi, cores: "+
			string(rune('1'+i/9))+"}}"))
		if !holdOn(t, s, n.Name, wholeGPUs(s, n.Name)[0], held) {
			t.Fatal("no room")
		}
	}
	c := claim(t, "a", gpus(`, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].productName ==`+
		` 'x'"}}]`))
	configured(c, `{"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "100Gi"}}`)
	s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
	report, err := Pod(t.Context(), s, "ns", "p")
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, report); !strings.Contains(got, "smallest change: ") || !strings.Contains(got,
		"note: with that change it would get devices and not start") {
		t.Errorf("got:\n%swant a change, and the note", got[:min(len(got), 2000)])
	}
}
