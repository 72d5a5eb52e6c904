// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// pod returns a pod that waits and uses those claims.
func pod(name string, claims ...*resourceapi.ResourceClaim) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "pod"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c.Name,
			ResourceClaimName: ptr.To(c.Name)})
		use(p, c.Name)
	}
	return p
}

// use lets the container of the pod use a claim, or a request of it.
func use(p *corev1.Pod, claim string) {
	name, request, _ := strings.Cut(claim, "/")
	all := &p.Spec.Containers[0].Resources.Claims
	*all = append(*all, corev1.ResourceClaim{Name: name, Request: request})
}

// useTemplate lets the pod use the template t, from which the claim was generated, if there is one.
func useTemplate(p *corev1.Pod, generated *resourceapi.ResourceClaim) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
	p.Spec.Containers[0].Resources.Claims = nil
	use(p, "gpu")
	if generated != nil {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu",
			ResourceClaimName: &generated.Name}}
	}
}

// ask returns the content of a request for GPUs with an expression.
func ask(expression, more string) string {
	return gpus(fmt.Sprintf(", selectors: [{cel: {expression: %q}}]%s", expression, more))
}

// extended returns a fleet with a pod whose init container, if first is not empty, and container have that many GPUs as
// an extended resource.
func extended(t *testing.T, first, main string, nodes ...clustertest.SimNode) *cluster.Snapshot {
	s := fleet(t, nodes...)
	p := pod("p")
	of := func(amount string) corev1.ResourceRequirements {
		all := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(amount)}
		return corev1.ResourceRequirements{Limits: all, Requests: all}
	}
	p.Spec.Containers[0].Resources = of(main)
	if first != "" {
		p.Spec.InitContainers = []corev1.Container{{Name: "first", Resources: of(first)}}
	}
	s.Pods = append(s.Pods, p)
	return s
}

// offer adds a node whose device plugin offers that many GPUs.
func offer(s *cluster.Snapshot, node, amount string) {
	s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": resource.MustParse("110"),
			"nvidia.com/gpu": resource.MustParse(amount)}}})
}

// overQuota has a pod whose template asks for two GPUs, and a quota with room for one.
func overQuota(t *testing.T, name corev1.ResourceName) *cluster.Snapshot {
	t.Helper()
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	s.Pods = append(s.Pods, pod("p"))
	useTemplate(s.Pods[0], nil)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}}
	template.Spec.Spec = claim(t, "c", gpus(", count: 2")).Spec
	s.Templates = append(s.Templates, template)
	s.Quotas = []*corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
		Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{name: resource.MustParse("4")},
			Used: corev1.ResourceList{name: resource.MustParse("3")}}}}
	return s
}

// limited returns amounts from text such as "memory=40Gi gpus=3".
func limited(text string) corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, one := range strings.Fields(text) {
		name, n, _ := strings.Cut(one, "=")
		all[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return all
}

// gpuQuota has a pod whose template asks for 10 GiB of two GPUs, and a GPUQuota that has so much used.
func gpuQuota(t *testing.T, hard, used corev1.ResourceList) *cluster.Snapshot {
	t.Helper()
	s := overQuota(t, "count/pods")
	s.Templates[0].Spec.Spec = claim(t, "c", gpus(", count: 2, capacity: {requests: {memory: 10Gi}}")).Spec
	s.GPUQuotas = []*cluster.GPUQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
		Spec:   cluster.GPUQuotaSpec{Hard: hard},
		Status: cluster.GPUQuotaStatus{Used: used, Enforced: true, Driver: clustertest.Driver}}}
	s.Slices = fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2",
		Use: gpu.SharingMode{Isolation: gpu.IsolationNone}}).Slices
	return s
}

// twice has a node and a pod with two claims of one template.
func twice(t *testing.T, node clustertest.SimNode, devices string) *cluster.Snapshot {
	t.Helper()
	s := fleet(t, node)
	s.Pods = append(s.Pods, pod("p"))
	useTemplate(s.Pods[0], nil)
	again := s.Pods[0].Spec.ResourceClaims[0]
	again.Name = "again"
	use(s.Pods[0], again.Name)
	s.Pods[0].Spec.ResourceClaims = append(s.Pods[0].Spec.ResourceClaims, again)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}}
	template.Spec.Spec = claim(t, "c", devices).Spec
	s.Templates = append(s.Templates, template)
	return s
}

// templateOf returns an empty template.
func templateOf(namespace, name string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// rankedList is the content of a claim for the strongest GPU, as the controller writes it.
func rankedList(class string) string {
	list := []string{rank(class, "tflops-989", "device.attributes['gpu.nvidia.com'].?peakCompute.orValue(0) == 989")}
	for i := 1; i < 7; i++ {
		list = append(list, rank(class, fmt.Sprint("gap-", i), "false"))
	}
	list = append(list, rank(class, "any", "true"))
	return requests("[{name: gpu, firstAvailable: [" + strings.Join(list, ", ") + "]}]")
}

func rank(class, name, expression string) string {
	return fmt.Sprintf("{name: %s, deviceClassName: %s, selectors: [{cel: {expression: %q}}]}", name, class, expression)
}

// With the value of the taint, anybody could take the devices that are kept for a pod.
func TestPreemptionTaint(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	for i, pod := range []types.UID{"secret-a", "secret-b"} {
		s.Slices[0].Spec.Devices[i].Taints = []resourceapi.DeviceTaint{moves.PreemptionToken(pod)}
	}
	c := claim(t, "c", gpus(""))
	s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
	r, err := Pod(t.Context(), s, "ns", "p")
	if err != nil {
		t.Fatal(err)
	}
	const want = "pod p waits: request gpu of claim c: each of the 2 devices of class gpu.nvidia.com is kept for a " +
		"pod that preempted others (the taint gpu.nvidia.com/preemption)"
	if r.Cause != want || len(r.Change) > 0 {
		t.Errorf("got the cause %q and the change %+v, want %q and none", r.Cause, r.Change, want)
	}
	if all, err := json.Marshal(r); err != nil || strings.Contains(string(all), "secret") {
		t.Errorf("got %s, %v, want no value of a taint", all, err)
	}
}

// A constant of another type is told with the right form, and the clause is never advised to be removed.
func TestWrongTypes(t *testing.T) {
	const of, memory = "device.attributes['gpu.nvidia.com'].", "device.capacity['gpu.nvidia.com'].memory"
	const attribute, capacity = `device.attributes["gpu.nvidia.com"].`, `device.capacity["gpu.nvidia.com"].memory`
	for _, row := range []struct{ expression, want, fix string }{
		{of + "cudaComputeCapability >= '7.0'", "cudaComputeCapability is a version: write ",
			attribute + `cudaComputeCapability.compareTo(semver("7.0.0")) >= 0`},
		{of + "cudaComputeCapability >= 7.5", "cudaComputeCapability is a version: write ",
			attribute + `cudaComputeCapability.compareTo(semver("7.5.0")) >= 0`},
		{of + "cudaComputeCapability.compareTo(semver('7.0')) >= 0", "7.0 is no version: write ",
			attribute + `cudaComputeCapability.compareTo(semver("7.0.0")) >= 0`},
		{of + "driverVersion.isGreaterThan(semver('470.65.06'))", "470.65.06 is no version: write ",
			attribute + `driverVersion.compareTo(semver("470.65.6")) > 0`},
		{of + "multiprocessors >= '10'", "multiprocessors is a number: write ", attribute + "multiprocessors >= 10"},
		{memory + " >= '10Gi'", "memory is a quantity: write ", capacity + `.compareTo(quantity("10Gi")) >= 0`},
		{of + "productName == 5", "productName is a text: write ", ""},
		{of + "productName", "productName is a text: compare it", attribute + `productName == "Tesla T4"`},
		{of + "productName == 'Tesla T4' && " + of + "multiprocessors > '10'", "multiprocessors is a number: write ",
			attribute + "multiprocessors > 10"},
		{of + "profile == '1g.10gb'", "profile is of partitions: use the class mig-1g.10gb.nvidia.com", ""},
	} {
		s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
		s.Claims = append(s.Claims, claim(t, "c", ask(row.expression, "")))
		r, err := Claim(t.Context(), s, "ns", "c")
		if err != nil {
			t.Fatal(err)
		}
		cause, _ := strings.CutPrefix(r.Cause, "claim c waits: request gpu of claim c: ")
		if !strings.HasPrefix(cause, row.want) {
			t.Errorf("%s: got the cause %q, want %q", row.expression, r.Cause, row.want)
		}
		if row.fix != "" && !strings.HasPrefix(r.Advice(),
			"smallest change: in ResourceClaim ns/c, request gpu: write "+row.fix+" instead of ") {
			t.Errorf("%s: got the advice %q, want to write %s", row.expression, r.Advice(), row.fix)
		}
		if row.fix != "" && strings.Contains(text(t, r), "remove ") {
			t.Errorf("%s: got\n%s\nwant nothing to remove", row.expression, text(t, r))
		}
	}
}

// TestPartitionsOnDemand: a pod fits on a GPU whose partitions are not published, and the answer says what it needs.
func TestPartitionsOnDemand(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100",
		Use: gpu.SharingMode{Partitions: gpu.PartitionsOnDemand}})
	first := fmt.Sprintf("device.attributes['%s'].parentUUID == '%s'", clustertest.Driver,
		*s.Slices[0].Spec.Devices[0].Attributes["uuid"].StringValue)
	for _, row := range []struct{ selector, note string }{
		{first, "is not published yet"},
		{"true", ""},
	} {
		c := claim(t, "c", fmt.Sprintf("requests: [{name: r, exactly: {deviceClassName: mig-1g.10gb.nvidia.com, "+
			"selectors: [{cel: {expression: %q}}]}}]", row.selector))
		s.Claims = []*resourceapi.ResourceClaim{c}
		s.Pods = []*corev1.Pod{pod("p", c)}
		answer, err := Pod(t.Context(), s, "ns", "p")
		if err != nil || answer.Outcome != Fits {
			t.Fatalf("%s: got %+v, %v, want that it fits", row.selector, answer, err)
		}
		if got := strings.Join(answer.Notes, "\n"); !strings.Contains(got, row.note) || row.note == "" && got != "" {
			t.Errorf("%s: got notes %q, want %q", row.selector, got, row.note)
		}
	}
}

// A profile in a selector of whole GPUs is that of a class of partitions.
func TestProfileOfWholeGPUs(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
	s.Claims = append(s.Claims, claim(t, "c", ask("device.attributes['gpu.nvidia.com'].profile == '1g.10gb'", "")))
	r, err := Claim(t.Context(), s, "ns", "c")
	const want = `smallest change: in ResourceClaim ns/c, request gpu: use the class mig-1g.10gb.nvidia.com, without ` +
		`device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`
	if err != nil || r.Advice() != want || strings.Contains(text(t, r), "remove") {
		t.Errorf("got %v and\n%s\nwant the advice %q, and nothing to remove", err, text(t, r), want)
	}
}

// Whoever tolerates a taint of the driver gets a GPU that does not work, or one of others.
func TestAdviceNeverToleratesTaintsOfTheDriver(t *testing.T) {
	taints := []resourceapi.DeviceTaint{moves.DefragTaint, {Key: cluster.ReservedTaint, Value: "vision"},
		{Key: cluster.PreemptionTaint}, {Key: remote.ServerLostTaint(driver)}}
	for _, own := range inventory.AllTaints {
		taints = append(taints, resourceapi.DeviceTaint{Key: own.Key, Value: "79"})
	}
	for _, taint := range taints {
		taint.Effect = resourceapi.DeviceTaintEffectNoExecute
		s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
		for i := range s.Slices[0].Spec.Devices {
			s.Slices[0].Spec.Devices[i].Taints = []resourceapi.DeviceTaint{taint}
		}
		s.Claims = append(s.Claims, claim(t, "c", gpus("")))
		r, err := NewExplainer(s, Options{HideOthers: true}).Claim(t.Context(), "ns", "c")
		if err != nil {
			t.Fatal(err)
		}
		if all := text(t, r); strings.Contains(all, "tolerate") || strings.Contains(all, "vision") {
			t.Errorf("%s: got\n%s\nwant no toleration and no team", taint.Key, all)
		}
	}
}

// Those who hold the devices: of the own namespace first, five in the text; of others none if their names are hidden.
func TestHolders(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100", Use: exclusive})
	for i := range 8 {
		of := claim(t, fmt.Sprint("held-", i), gpus(""))
		of.Namespace = "another"
		if i == 7 {
			of.Namespace = "ns"
		}
		if !hold(t, s, of) {
			t.Fatal("no room")
		}
	}
	s.Claims = append(s.Claims, claim(t, "c", gpus("")))
	for hide, want := range map[bool]int{true: 1, false: 8} {
		r, err := NewExplainer(s, Options{HideOthers: hide}).Claim(t.Context(), "ns", "c")
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Holders) != want || r.Holders[0].Claim != "ns/held-7" {
			t.Errorf("hidden %t: got %d holders, %+v, want %d, the own first", hide, len(r.Holders), r.Holders, want)
		}
		all := text(t, r)
		if got := strings.Count(all, "  claim "); got != min(want, 5) || strings.Contains(all, "and others") == hide {
			t.Errorf("hidden %t: got %d holders in\n%s\nwant %d", hide, got, all, min(want, 5))
		}
	}
}

// A row says what the first lines of the answer are.
func TestText(t *testing.T) {
	const memory = "device.capacity['gpu.nvidia.com'].memory"
	one := func(t *testing.T, use clustertest.SimNode, devices string) (*cluster.Snapshot, *resourceapi.ResourceClaim) {
		s := fleet(t, use)
		c := claim(t, "c", devices)
		s.Claims = append(s.Claims, c)
		s.Pods = append(s.Pods, pod("p", c))
		return s, c
	}
	t4 := clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive}
	for _, row := range []struct {
		name  string
		world func(t *testing.T) *cluster.Snapshot
		want  string
	}{
		{"no GPU has that much memory", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, ask(memory+".compareTo(quantity('1Ti')) >= 0", ""))
			return s
		}, `
pod p waits: request gpu of claim c: none of the 2 devices of class gpu.nvidia.com meets device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) >= 0
smallest change: in ResourceClaim ns/c, request gpu: write device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("15Gi")) >= 0 instead of device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) >= 0`},
		{"two clauses that no GPU meets together", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, clustertest.SimNode{Name: "a", Profile: "mixed", Use: exclusive},
				ask("device.attributes['gpu.nvidia.com'].productName == 'Tesla T4' && "+
					memory+".compareTo(quantity('40Gi')) > 0", ""))
			return s
		}, `
pod p waits: request gpu of claim c: none of the 4 devices of class gpu.nvidia.com is left: 3 do not meet device.attributes["gpu.nvidia.com"].productName == "Tesla T4", 1 does not meet device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) > 0
smallest change: in ResourceClaim ns/c, request gpu: write device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("15Gi")) >= 0 instead of device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) > 0`},
		{"all GPUs are held", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			mustHold(t, s, claim(t, "x", gpus("")), claim(t, "y", gpus("")))
			c := claim(t, "c", gpus(""))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c: the 2 devices of class gpu.nvidia.com are held by other claims
no single change of this pod helps; it would fit when claim ns/x has ended, which has had its devices since 2026-01-02T03:04:05Z`},
		{"both GPUs of a node are wanted, and two claims hold them", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			mustHold(t, s, claim(t, "x", gpus("")), claim(t, "y", gpus("")))
			c := claim(t, "c", gpus(", count: 2"))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c: the 2 devices of class gpu.nvidia.com are held by other claims
without a change: wait until claim ns/x has ended, which has had its devices since 2026-01-02T03:04:05Z; and wait until claim ns/y has ended, which has had its devices since 2026-01-02T03:04:05Z`},
		{"more GPUs than a node has", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(", count: 4"))
			return s
		}, `
pod p waits: request gpu of claim c: it wants 4 devices of one node, and no node has more than 2 for it
smallest change: in ResourceClaim ns/c, request gpu: ask for 2 devices instead of 4`},
		{"a taint", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			setTaint(s, "gpu-3b-00-0")
			setTaint(s, "gpu-af-00-0")
			return s
		}, `
pod p waits: request gpu of claim c: each of the 2 devices of class gpu.nvidia.com has the taint gpu.nvidia.com/xid=79:NoSchedule
no change of this pod helps: it waits until the taints have gone`},
		{"a taint of an administrator", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			for i := range s.Slices[0].Spec.Devices {
				s.Slices[0].Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "example.com/maintenance",
					Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			return s
		}, `
pod p waits: request gpu of claim c: each of the 2 devices of class gpu.nvidia.com has the taint example.com/maintenance:NoSchedule
smallest change: in ResourceClaim ns/c, request gpu: tolerate the taint example.com/maintenance:NoSchedule of the device, if who set it agrees`},
		{"GPUs that are kept for somebody else", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			for i := range s.Slices[0].Spec.Devices {
				s.Slices[0].Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: cluster.ReservedTaint,
					Value: "vision", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			return s
		}, `
pod p waits: request gpu of claim c: each of the 2 devices of class gpu.nvidia.com is kept for vision by kubectl gpu reserve (the taint gpu.nvidia.com/reserved=vision:NoSchedule)
no change of this pod helps: it waits until the taints have gone`},
		{"a GPU that is kept for a preemption, and a sick one", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			setTaint(s, "gpu-3b-00-0")
			s.Slices[0].Spec.Devices[1].Taints = []resourceapi.DeviceTaint{moves.PreemptionToken("uid")}
			return s
		}, `
pod p waits: request gpu of claim c: none of the 2 devices of class gpu.nvidia.com is left: 1 is kept for a pod that preempted others (the taint gpu.nvidia.com/preemption), 1 has the taint gpu.nvidia.com/xid=79:NoSchedule
no change of this pod helps: it waits until the taints have gone`},
		{"a constraint", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, clustertest.SimNode{Name: "a", Profile: "mixed", Use: exclusive}, gpus(", count: 4")+
				"\nconstraints: [{matchAttribute: gpu.nvidia.com/productName}]")
			return s
		}, `
pod p waits: no node has devices for claim c that meet the constraint matchAttribute: gpu.nvidia.com/productName
smallest change: in ResourceClaim ns/c, request gpu: ask for 1 device instead of 4`},
		{"a share of more than is left", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			mustHold(t, s, claim(t, "x", gpus(", capacity: {requests: {memory: 9Gi}}")),
				claim(t, "y", gpus(", capacity: {requests: {memory: 9Gi}}")))
			c := claim(t, "c", gpus(", capacity: {requests: {memory: 10Gi}}"))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c: the 2 devices of class gpu.nvidia.com are held by other claims
smallest change: in ResourceClaim ns/c, request gpu: ask for 6Gi memory instead of 10Gi (capacity.requests.memory)`},
		{"a fraction of a capacity", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			for _, slice := range s.Slices {
				for i := range slice.Spec.Devices {
					slice.Spec.Devices[i].Capacity["slots"] = resourceapi.DeviceCapacity{Value: resource.MustParse("1"),
						RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("200m")),
							ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("200m")),
								Step: ptr.To(resource.MustParse("100m"))}}}
				}
			}
			const part = ", capacity: {requests: {memory: 1Gi, slots: 250m}}"
			mustHold(t, s, claim(t, "x", gpus(part)), claim(t, "y", gpus(part)))
			c := claim(t, "c", gpus(part))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p fits now on 1 of 1 nodes`},
		{"a whole GPU beside shares", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			mustHold(t, s, claim(t, "x", gpus(", capacity: {requests: {memory: 9Gi}}")),
				claim(t, "y", gpus(", capacity: {requests: {memory: 9Gi}}")))
			c := claim(t, "c", gpus(""))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c: the 2 devices of class gpu.nvidia.com are held by other claims
smallest change: in ResourceClaim ns/c, request gpu: ask for 6Gi memory instead of all of it (capacity.requests.memory)`},
		{"all GPUs of a node, beside a share", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			mustHold(t, s, claim(t, "x", gpus(", capacity: {requests: {memory: 9Gi}}")))
			c := claim(t, "c", gpus(", allocationMode: All"))
			s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c: it wants all devices that match, and on no node can it have all; 1 is held by other claims
smallest change: in ResourceClaim ns/c, request gpu: ask for 1 device instead of all (allocationMode: ExactCount)`},
		{"a partition of a GPU that is held whole", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "rtxpro6000-x2"})
			mustHold(t, s, claim(t, "x", gpus(", count: 2")))
			c := claim(t, "c", requests("[{name: mig, exactly: {deviceClassName: mig.nvidia.com}}]"))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request mig of claim c: the 60 devices of class mig.nvidia.com are held by other claims
no single change of this pod helps; it would fit when claim ns/x has ended, which has had its devices since 2026-01-02T03:04:05Z`},
		{"an attribute that one GPU lacks", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, ask("device.attributes['gpu.nvidia.com'].rack == 'r1'", ""))
			s.Slices[0].Spec.Devices[1].Attributes["rack"] = resourceapi.DeviceAttribute{StringValue: ptr.To("r1")}
			return s
		}, `
pod p waits: the scheduler gives up with an error: claim ns/c: selector #0 on device gpu.nvidia.com/a/gpu-3b-00-0: CEL runtime error: no such key: rack. consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields
smallest change: in ResourceClaim ns/c, request gpu: test that the device has the attribute first: has(device.attributes["gpu.nvidia.com"].rack) && device.attributes["gpu.nvidia.com"].rack == "r1"`},
		{"a change that fits on one node and has an error on another", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4, clustertest.SimNode{Name: "b", Profile: "l40s-x4", Use: exclusive})
			const never = "device.attributes['gpu.nvidia.com'].never == 'x'"
			const l40s = "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L40S' && " + never
			c := claim(t, "c", requests(fmt.Sprintf(`[
{name: one, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: %q}}]}},
{name: two, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: %q}}]},
  {name: b, deviceClassName: gpu.nvidia.com}]}]`, never, l40s)))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request one of claim c: no device has the attribute never; there are addressingMode, architecture, brand, cudaComputeCapability, cudaDriverVersion, driverVersion, fabricDomain, index, iommuGroup, isolation, mdevUUID, memoryBandwidth, migCapable, minor, multiprocessors, nvlinkDomain, parentUUID, partitionsOnDemand, pciDeviceID, pciVendorID, peakCompute, productName, profile, sharedOnly, sharing, type, uuid, vgpu, vgpuHostDriverVersion, vgpuLicense (the selector fails on devices of the class, and then the scheduler gives up on the pod)
smallest change: in ResourceClaim ns/c, request two/a: test that the device has the attribute first: has(device.attributes["gpu.nvidia.com"].never) && device.attributes["gpu.nvidia.com"].never == "x"; and in ResourceClaim ns/c, request one: remove device.attributes["gpu.nvidia.com"].never == "x"`},
		{"a pool that lacks a slice", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Slices[0].Spec.Pool.ResourceSliceCount = 2
			return s
		}, `
pod p waits: request gpu of claim c: none of the 2 devices of class gpu.nvidia.com can be had: pool a has 1 of 2 slices
no change of this pod helps, and no end of other claims`},
		{"two claims that do not fit on one node", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			c, d := claim(t, "c", gpus(", count: 2")), claim(t, "d", gpus(""))
			s.Claims = append(s.Claims, c, d)
			s.Pods = append(s.Pods, pod("p", c, d))
			return s
		}, `
pod p waits: each of its claims fits on some node, but no node has the devices of all
smallest change: in ResourceClaim ns/c, request gpu: ask for 1 device instead of 2`},
		{"two requests that do not fit on one node", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, requests("[{name: one, exactly: {deviceClassName: gpu.nvidia.com}}, "+
				"{name: two, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]"))
			return s
		}, `
pod p waits: each request of claim c fits on some node, but no node has the devices of all
smallest change: in ResourceClaim ns/c, request two: ask for 1 device instead of 2`},
		{"two alternatives", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, requests(`[{name: gpu, firstAvailable: [{name: b200, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'"}}]}, {name: four, deviceClassName: gpu.nvidia.com, count: 4}]}]`))
			return s
		}, `
pod p waits: request gpu of claim c: no alternative fits: none of the 2 devices of class gpu.nvidia.com meets device.attributes["gpu.nvidia.com"].productName == "NVIDIA B200"; it wants 4 devices of one node, and no node has more than 2 for it
smallest change: in ResourceClaim ns/c, request gpu/four: ask for 2 devices instead of 4`},
		{"a node selector", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.NodeSelector = map[string]string{"zone": "z1"}
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: the node selector zone=z1
smallest change: in Pod ns/p: remove the node selector zone=z1`},
		{"a node selector of an empty value", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.NodeSelector = map[string]string{"zone": ""}
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: the node selector zone=
smallest change: in Pod ns/p: remove the node selector zone=`},
		{"a node that is being deleted", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Nodes[0].DeletionTimestamp = &since
			return s
		}, `
pod p fits now on 1 of 1 nodes`},
		{"nodes that have neither the devices nor a label", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(", count: 3"))
			s.Pods[0].Spec.NodeSelector = map[string]string{"zone": "z1"}
			return s
		}, `
pod p waits: the pod excludes all 1 nodes, most often by the node selector zone=z1; none of them has the devices
smallest change: in ResourceClaim ns/c, request gpu: ask for 2 devices instead of 3; and in Pod ns/p: remove the node selector zone=z1`},
		{"a taint of the node", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Nodes[0].Spec.Unschedulable = true
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: the taint node.kubernetes.io/unschedulable:NoSchedule
no change of this pod helps, and no end of other claims`},
		{"a taint of the node that an administrator has set", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: the taint nvidia.com/gpu:NoSchedule
smallest change: in Pod ns/p: tolerate the taint nvidia.com/gpu:NoSchedule of the node`},
		{"more processors than the node has left", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("50")}
			other := pod("other")
			other.Spec.NodeName = "a"
			other.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("20")}
			s.Pods = append(s.Pods, other)
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: too little cpu
smallest change: in Pod ns/p: request 44 cpu for the pod instead of 50`},
		{"more processors than are left beside the overhead of the pod", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1")}
			s.Pods[0].Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("80")}
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: too little cpu
smallest change: in Pod ns/p: request 63 cpu for the pod instead of 80`},
		{"less processors than the overhead of the pod", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("65")}
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: too little cpu
no change of this pod helps, and no end of other claims`},
		{"a pod that is to get less, and has not yet", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("50")}
			other := pod("other")
			other.Spec.NodeName = "a"
			other.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
			other.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main",
				AllocatedResources: corev1.ResourceList{"cpu": resource.MustParse("20")}}}
			s.Pods = append(s.Pods, other)
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: too little cpu
smallest change: in Pod ns/p: request 44 cpu for the pod instead of 50`},
		{"more storage than the node has left, which only containers request", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Nodes[0].Status.Allocatable["ephemeral-storage"] = resource.MustParse("64Gi")
			s.Pods[0].Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				"ephemeral-storage": resource.MustParse("50Gi")}
			other := pod("other")
			other.Spec.NodeName = "a"
			other.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				"ephemeral-storage": resource.MustParse("20Gi")}
			s.Pods = append(s.Pods, other)
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: too little ephemeral-storage
smallest change: in Pod ns/p: request 44Gi ephemeral-storage for all containers together instead of 50Gi`},
		{"a node of which more is used than it has", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
			other := pod("other")
			other.Spec.NodeName = "a"
			other.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("70")}
			s.Pods = append(s.Pods, other)
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: too little cpu
smallest change: in Pod ns/p: request 0 cpu for the pod instead of 1`},
		{"a claim of the pod that has devices on another node", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4, clustertest.SimNode{Name: "b", Profile: "l40s-x4", Use: exclusive})
			has, c := claim(t, "has", gpus("")), claim(t, "c", gpus(", count: 4"))
			mustHold(t, s, has)
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", has, c))
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: claim has, whose devices are elsewhere
smallest change: in ResourceClaim ns/c, request gpu: ask for 1 device instead of 4`},
		{"two claims of one template, of which no GPU has that much memory", func(t *testing.T) *cluster.Snapshot {
			return twice(t, t4, ask(memory+".compareTo(quantity('1Ti')) >= 0", ""))
		}, `
pod p waits: request gpu of claim gpu: none of the 2 devices of class gpu.nvidia.com meets device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) >= 0
smallest change: in ResourceClaimTemplate ns/t, request gpu: write device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("15Gi")) >= 0 instead of device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) >= 0`},
		{"two claims of one template for more than half of a GPU", func(t *testing.T) *cluster.Snapshot {
			s := twice(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
				gpus(", capacity: {requests: {memory: 10Gi}}"))
			mustHold(t, s, claim(t, "x", gpus("")))
			return s
		}, `
pod p waits: each of its claims fits on some node, but no node has the devices of all
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 7680Mi memory instead of 10Gi (capacity.requests.memory)`},
		{"a quota", func(t *testing.T) *cluster.Snapshot {
			return overQuota(t, "gpu.nvidia.com.deviceclass.resource.k8s.io/devices")
		}, `
pod p waits: the quota q allows 4 of gpu.nvidia.com.deviceclass.resource.k8s.io/devices, 3 are used and 2 more are wanted
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 1 device instead of 2`},
		{"a quota of an extended resource counts claims of its class", func(t *testing.T) *cluster.Snapshot {
			return overQuota(t, "requests.nvidia.com/gpu")
		}, `
pod p waits: the quota q allows 4 of requests.nvidia.com/gpu, 3 are used and 2 more are wanted
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 1 device instead of 2`},
		{"so does one of the extended resource that a class has by its name", func(t *testing.T) *cluster.Snapshot {
			return overQuota(t, "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com")
		}, `
pod p waits: the quota q allows 4 of requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com, 3 are used and 2 more are wanted
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 1 device instead of 2`},
		{"also without another extended resource", func(t *testing.T) *cluster.Snapshot {
			s := overQuota(t, "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com")
			for _, class := range s.Classes {
				class.Spec.ExtendedResourceName = nil
			}
			return s
		}, `
pod p waits: the quota q allows 4 of requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com, 3 are used and 2 more are wanted
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 1 device instead of 2`},
		{"a quota of a class counts the claim for an extended resource", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "2", t4)
			s.Quotas = overQuota(t, "gpu.nvidia.com.deviceclass.resource.k8s.io/devices").Quotas
			return s
		}, `
pod p waits: the quota q allows 4 of gpu.nvidia.com.deviceclass.resource.k8s.io/devices, 3 are used and 2 more are wanted
smallest change: in Pod ns/p, request container-0-request-0: ask for 1 device instead of 2`},
		{"which there is none for where a device plugin offers it", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "2", t4)
			offer(s, "plugin", "2")
			s.Quotas = overQuota(t, "gpu.nvidia.com.deviceclass.resource.k8s.io/devices").Quotas
			return s
		}, `
pod p fits now on 1 of 2 nodes
  plugin`},
		{"a quota of the extended resource has counted the pod", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "2", t4)
			s.Quotas = overQuota(t, "requests.nvidia.com/gpu").Quotas
			return s
		}, `
pod p fits now on 1 of 1 nodes`},
		{"a GPUQuota", func(t *testing.T) *cluster.Snapshot {
			return gpuQuota(t, limited("memory=50Gi"), limited("memory=40Gi"))
		}, `
pod p waits: the GPUQuota q allows 50Gi of memory, 40Gi are used and up to 20Gi more are wanted
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 5Gi memory instead of 10Gi (capacity.requests.memory)`},
		{"a GPUQuota, and GPUs that have no shares", func(t *testing.T) *cluster.Snapshot {
			s := gpuQuota(t, limited("memory=22Gi"), limited("memory=0"))
			s.Slices = fleet(t, t4).Slices
			return s
		}, `
pod p waits: the GPUQuota q allows 22Gi of memory, 0 are used and up to 30Gi more are wanted; it may get a whole Tesla T4, which has no shares: for a share of another one, add the selector device.attributes['gpu.nvidia.com'].sharing == 'fractional'
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 1 device instead of 2`},
		{"a GPUQuota of a namespace without the label", func(t *testing.T) *cluster.Snapshot {
			s := gpuQuota(t, limited("memory=50Gi"), limited("memory=40Gi"))
			s.GPUQuotas[0].Status.Enforced = false
			return s
		}, `
pod p fits now on 1 of 1 nodes`},
		{"a GPUQuota and the claim that the scheduler creates for an extended resource", func(
			t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", t4)
			s.GPUQuotas = gpuQuota(t, limited("gpus=4 memory=100Gi"), limited("gpus=4 memory=0")).GPUQuotas
			return s
		}, `
pod p waits: the GPUQuota q allows 4 of gpus, 4 are used and up to 1 more are wanted
no change of this pod helps, and no end of other claims`},
		{"a claim that was created from a template after the claims were read", func(t *testing.T) *cluster.Snapshot {
			s := gpuQuota(t, limited("memory=50Gi"), limited("memory=0"))
			s.Pods[0].Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{
				Name: s.Pods[0].Spec.ResourceClaims[0].Name, ResourceClaimName: new("p-gpu-x7zq2")}}
			return s
		}, `
pod p fits now on 1 of 1 nodes`},
		{"a GPUQuota and a GPU over the network", func(t *testing.T) *cluster.Snapshot {
			s := gpuQuota(t, limited("memory=40Gi"), limited("memory=0"))
			name := remote.Driver(clustertest.Driver)
			s.Classes = append(s.Classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
					CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + name + "'"}}}}})
			size := resource.MustParse("80Gi")
			s.Slices = append(s.Slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "remote"},
				Spec: resourceapi.ResourceSliceSpec{Driver: name, AllNodes: new(true),
					Pool: resourceapi.ResourcePool{Name: "remote", ResourceSliceCount: 1},
					Devices: []resourceapi.Device{{Name: "server", AllowMultipleAllocations: new(true),
						Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
							"sharing": {StringValue: new("fractional")}},
						Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: size,
							RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &size}}}}}}})
			s.Templates[0].Spec.Spec = claim(t, "c",
				requests("[{name: gpu, exactly: {deviceClassName: "+name+"}}]")).Spec
			return s
		}, `
pod p waits: the GPUQuota q allows 40Gi of memory, 0 are used and up to 80Gi more are wanted`},
		{"an extended resource", func(t *testing.T) *cluster.Snapshot {
			return extended(t, "", "3", t4)
		}, `
pod p waits: request container-0-request-0 of the pod's extended resources: it wants 3 devices of one node, and no node has more than 2 for it
smallest change: in Pod ns/p, request container-0-request-0: ask for 2 devices instead of 3`},
		{"an extended resource of two classes, of which the newer one has no device", func(
			t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", t4)
			newer := &resourceapi.DeviceClass{}
			newer.Name, newer.CreationTimestamp = "team-b300", since
			newer.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
			newer.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: "false"}}}
			s.Classes = append(s.Classes, newer)
			return s
		}, `
pod p waits: no node offers nvidia.com/gpu: of the classes with this extendedResourceName the newest counts, team-b300, and no device is of it`},
		{"resources of HAMi", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", t4)
			s.Pods[0].Spec.Containers[0].Resources.Requests["nvidia.com/gpumem"] = resource.MustParse("3k")
			return s
		}, `
pod p waits: nvidia.com/gpumem is a resource of HAMi: label the namespace gpu.nvidia.com/convert=on, and create the pod again; it is then converted to a claim (docs/migrate/old-manifests.md)`},
		{"an extended resource whose class the scheduler has forgotten", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", t4)
			s.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}}
			return s
		}, `
pod p fits now on 1 of 1 nodes; but when the scheduler last tried, it said: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.
  a: container-0-request-0 gets gpu-3b-00-0

note: if that stays so, the scheduler has forgotten class gpu.nvidia.com, as it does when another class of the same extendedResourceName was deleted: kubectl annotate deviceclass gpu.nvidia.com changed="$(date)" --overwrite, and create the pod again`},
		{"a pod that fits, and whose volume does not exist", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Message: "persistentvolumeclaim \"data\" not found"}}
			return s
		}, `
pod p fits now on 1 of 1 nodes; but when the scheduler last tried, it said: persistentvolumeclaim "data" not found`},
		{"an extended resource that a device plugin of another node offers", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "3", t4)
			offer(s, "plugin", "2")
			return s
		}, `
pod p waits: request container-0-request-0 of the pod's extended resources: it wants 3 devices of one node, and no node has more than 2 for it
smallest change: in Pod ns/p, request container-0-request-0: ask for 2 devices instead of 3`},
		{"an extended resource of a class, and on another node of a plugin", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "2", t4)
			offer(s, "plugin", "1")
			return s
		}, `
pod p fits now on 1 of 2 nodes
  a: container-0-request-0 gets gpu-3b-00-0, container-0-request-0 gets gpu-af-00-0`},
		{"an extended resource that only a device plugin has enough of", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "3", t4)
			offer(s, "plugin", "3")
			return s
		}, `
pod p fits now on 1 of 2 nodes
  plugin`},
		{"an extended resource of a device plugin that has too little", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "3")
			offer(s, "plugin", "2")
			return s
		}, `
pod p waits: the pod excludes all 1 nodes, most often by too little nvidia.com/gpu; none of them has the devices
smallest change: in Pod ns/p, request container-0-request-0: ask for 2 devices instead of 3`},
		{"an extended resource of a device plugin of a node with a taint", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "3")
			offer(s, "plugin", "3")
			s.Nodes[0].Spec.Unschedulable = true
			return s
		}, `
pod p waits: 1 node has the devices, and the pod cannot run there: the taint node.kubernetes.io/unschedulable:NoSchedule
no change of this pod helps, and no end of other claims`},
		{"an init container uses the devices of a later container", func(t *testing.T) *cluster.Snapshot {
			return extended(t, "1", "2", t4)
		}, `
pod p fits now on 1 of 1 nodes
  a: container-1-request-0 gets gpu-3b-00-0, container-1-request-0 gets gpu-af-00-0`},
		{"an init container that needs more than a later container", func(t *testing.T) *cluster.Snapshot {
			return extended(t, "2", "1", t4)
		}, `
pod p fits now on 1 of 1 nodes
  a: container-0-request-0 gets gpu-3b-00-0, container-1-request-0 gets gpu-af-00-0`},
		{"a sidecar has its devices beside those of a later container", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "1", "2", t4)
			s.Pods[0].Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			return s
		}, `
pod p waits: each request of the pod's extended resources fits on some node, but no node has the devices of all
smallest change: in Pod ns/p, request container-1-request-0: ask for 1 device instead of 2`},
		{"an extended resource whose devices have a taint", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", t4)
			setTaint(s, "gpu-3b-00-0")
			setTaint(s, "gpu-af-00-0")
			return s
		}, `
pod p waits: request container-0-request-0 of the pod's extended resources: each of the 2 devices of class gpu.nvidia.com has the taint gpu.nvidia.com/xid=79:NoSchedule
no change of this pod helps: it waits until the taints have gone`},
		{"an extended resource is no share", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			mustHold(t, s, claim(t, "x", gpus(", capacity: {requests: {memory: 9Gi}}")),
				claim(t, "y", gpus(", capacity: {requests: {memory: 9Gi}}")))
			return s
		}, `
pod p waits: request container-0-request-0 of the pod's extended resources: the 2 devices of class gpu.nvidia.com are held by other claims
no single change of this pod helps; it would fit when claim ns/x has ended, which has had its devices since 2026-01-02T03:04:05Z`},
		{"a container and an init container that uses its devices", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "2", "2", t4)
			setTaint(s, "gpu-3b-00-0")
			return s
		}, `
pod p waits: request container-1-request-0 of the pod's extended resources: it wants 2 devices of one node, and no node has more than 1 for it; of the others, 1 has the taint gpu.nvidia.com/xid=79:NoSchedule
smallest change: in Pod ns/p, request container-0-request-0: ask for 1 device instead of 2; and in Pod ns/p, request container-1-request-0: ask for 1 device instead of 2`},
		{"an extended resource, and no right to read classes", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "3", t4)
			s.Classes, s.Unread[cluster.Classes] = nil, errors.New("forbidden")
			return s
		}, `
no answer without the right to list deviceclasses.resource.k8s.io: forbidden`},
		{"an extended resource, and no right to read nodes", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "3", t4)
			s.Nodes, s.Unread[cluster.Nodes] = nil, errors.New("forbidden")
			return s
		}, `
no answer without the right to list nodes: forbidden`},
		{"a class that does not exist", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, requests("[{name: gpu, exactly: {deviceClassName: gpu.example.com}}]"))
			return s
		}, `
pod p waits: request gpu of claim c asks for the class gpu.example.com, which does not exist
smallest change: in ResourceClaim ns/c, request gpu: use the class gpu.nvidia.com`},
		{"no slices", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Slices = nil
			return s
		}, `
pod p waits: no node offers devices: there is no ResourceSlice
no change of this pod helps, and no end of other claims`},
		{"a class of which there is no device", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, requests("[{name: mig, exactly: {deviceClassName: mig.nvidia.com}}]"))
			return s
		}, `
pod p waits: request mig of claim c: no node has a device of class mig.nvidia.com
no change of this pod helps, and no end of other claims`},
		{"no template", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p"))
			useTemplate(s.Pods[0], nil)
			return s
		}, `
pod p waits: template t of its claim gpu does not exist in namespace ns; a pod uses only templates of its own namespace. It may have been refused when it was applied`},
		{"a template with another name", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p"))
			useTemplate(s.Pods[0], nil)
			s.Pods[0].Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("one-gpus")
			s.Templates = append(s.Templates, templateOf("ns", "one-gpu"))
			return s
		}, `
pod p waits: template one-gpus of its claim gpu does not exist in namespace ns; did you mean one-gpu?`},
		{"a template beside others", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p"))
			useTemplate(s.Pods[0], nil)
			s.Templates = append(s.Templates, templateOf("ns", "large"), templateOf("ns", "fast"),
				templateOf("other", "t"))
			return s
		}, `
pod p waits: template t of its claim gpu does not exist in namespace ns; there are fast, large. It may have been refused when it was applied`},
		{"a template in place of a claim", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p", claim(t, "one-gpu", gpus(""))))
			s.Templates = append(s.Templates, templateOf("ns", "one-gpu"))
			return s
		}, `
pod p waits: claim one-gpu does not exist in namespace ns; there is a template of that name: write resourceClaimTemplateName instead of resourceClaimName`},
		{"a claim in place of a template", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p"))
			useTemplate(s.Pods[0], nil)
			s.Claims = append(s.Claims, claim(t, "t", gpus("")))
			return s
		}, `
pod p waits: template t of its claim gpu does not exist in namespace ns; there is a claim of that name: write resourceClaimName instead of resourceClaimTemplateName`},
		{"a claim of another namespace", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p", claim(t, "shared", gpus(""))))
			other := claim(t, "shared", gpus(""))
			other.Namespace = "other"
			s.Claims = append(s.Claims, other)
			return s
		}, `
pod p waits: claim shared does not exist in namespace ns; a pod uses only claims of its own namespace, and shared is in other`},
		{"a misspelt claim", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p", claim(t, "shard", gpus(""))))
			s.Claims = append(s.Claims, claim(t, "shared", gpus("")))
			return s
		}, `
pod p waits: claim shard does not exist in namespace ns; did you mean shared?`},
		{"a container that names no claim", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Containers[0].Resources.Claims = nil
			return s
		}, `
pod p fits now on 1 of 1 nodes; besides, container main does not name claim c in resources.claims, and so gets none of its devices`},
		{"several containers that name no claim, of a pod that failed", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Containers[0].Resources.Claims = nil
			s.Pods[0].Spec.Containers = append(s.Pods[0].Spec.Containers, corev1.Container{Name: "side"})
			s.Pods[0].Spec.NodeName, s.Pods[0].Status.Phase = "a", corev1.PodFailed
			s.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError",
					Message: "exec: \"nvidia-smi\": executable file not found in $PATH\n"}}}}
			return s
		}, `
pod p has ended: its phase is Failed; no container names claim c in resources.claims, and so gets none of its devices; container main has ended with exit code 128: StartError: exec: "nvidia-smi": executable file not found in $PATH`},
		{"a container that names a request which the claim does not have", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.Containers[0].Resources.Claims = nil
			use(s.Pods[0], "c/gpus")
			s.Pods[0].Spec.NodeName, s.Pods[0].Status.Phase = "a", corev1.PodRunning
			return s
		}, `
pod p is on node a; container main names the request gpus of claim c, which has only gpu; did you mean gpu?`},
		{"a pod whose image cannot be pulled", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			c := claim(t, "c", gpus(""))
			mustHold(t, s, c)
			s.Pods = append(s.Pods, pod("p", c))
			s.Pods[0].Spec.NodeName = "a"
			s.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}}}}
			return s
		}, `
pod p is on node a; container main waits: ImagePullBackOff: Back-off pulling image`},
		{"a class that is misspelt", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, requests("[{name: gpu, exactly: {deviceClassName: gpu.nvidia.org}}]"))
			return s
		}, `
pod p waits: request gpu of claim c asks for the class gpu.nvidia.org, which does not exist; did you mean gpu.nvidia.com?
smallest change: in ResourceClaim ns/c, request gpu: use the class gpu.nvidia.com`},
		{"a class of a profile that does not exist", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"},
				requests("[{name: gpu, exactly: {deviceClassName: mig-5g.50gb.nvidia.com}}]"))
			return s
		}, `
pod p waits: request gpu of claim c asks for the class mig-5g.50gb.nvidia.com, which does not exist; the nearest that is offered is mig-4g.40gb.nvidia.com
smallest change: in ResourceClaim ns/c, request gpu: use the class mig-4g.40gb.nvidia.com`},
		{"a class of a profile that no GPU offers", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"},
				requests("[{name: gpu, exactly: {deviceClassName: mig-1g.23gb.nvidia.com}}]"))
			return s
		}, `
pod p waits: request gpu of claim c: no node has a device of class mig-1g.23gb.nvidia.com; the nearest that is offered is mig-1g.20gb.nvidia.com
smallest change: in ResourceClaim ns/c, request gpu: use the class mig-1g.20gb.nvidia.com`},
		{"a class of a profile where nothing is partitioned", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, requests("[{name: gpu, exactly: {deviceClassName: mig-5g.50gb.nvidia.com}}]"))
			return s
		}, `
pod p waits: request gpu of claim c asks for the class mig-5g.50gb.nvidia.com, which does not exist
no change of this pod helps, and no end of other claims`},
		{"an attribute that is misspelt", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, ask("device.attributes['gpu.nvidia.com'].product == 'Tesla T4'", ""))
			return s
		}, `
pod p waits: request gpu of claim c: no device has the attribute product; did you mean device.attributes["gpu.nvidia.com"].productName? (the selector fails on devices of the class, and then the scheduler gives up on the pod)
smallest change: in ResourceClaim ns/c, request gpu: write device.attributes["gpu.nvidia.com"].productName instead of device.attributes["gpu.nvidia.com"].product`},
		{"an attribute that is misspelt in two clauses", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, ask("has(device.attributes['gpu.nvidia.com'].ProductName) && "+
				"device.attributes['gpu.nvidia.com'].ProductName == 'Tesla T4'", ""))
			return s
		}, `
pod p waits: request gpu of claim c: no device has the attribute ProductName; did you mean device.attributes["gpu.nvidia.com"].productName?
smallest change: in ResourceClaim ns/c, request gpu: write device.attributes["gpu.nvidia.com"].productName instead of device.attributes["gpu.nvidia.com"].ProductName`},
		{"a part of a product's name", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4"},
				ask("device.attributes['gpu.nvidia.com'].productName == 'L40S'", ""))
			return s
		}, `
pod p waits: request gpu of claim c: no device has the productName "L40S"; did you mean "NVIDIA L40S"?
smallest change: in ResourceClaim ns/c, request gpu: write device.attributes["gpu.nvidia.com"].productName == "NVIDIA L40S" instead of device.attributes["gpu.nvidia.com"].productName == "L40S"`},
		{"the strongest GPU, while all are held", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			mustHold(t, s, claim(t, "a", gpus(", count: 2")))
			c := claim(t, "c", rankedList("strongest.gpu.nvidia.com"))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c gets the strongest device that is free, and none is: the 2 devices of class strongest.gpu.nvidia.com are held by other claims
no single change of this pod helps; it would fit when claim ns/a has ended, which has had its devices since 2026-01-02T03:04:05Z`},
		{"an alternative that matches nothing", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			mustHold(t, s, claim(t, "a", gpus(", count: 2")))
			c := claim(t, "c", requests(`[{name: gpu, firstAvailable: [{name: never, deviceClassName: gpu.nvidia.com, `+
				`selectors: [{cel: {expression: "false"}}]}, {name: some, deviceClassName: gpu.nvidia.com}]}]`))
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, pod("p", c))
			return s
		}, `
pod p waits: request gpu of claim c: the 2 devices of class gpu.nvidia.com are held by other claims
no single change of this pod helps; it would fit when claim ns/a has ended, which has had its devices since 2026-01-02T03:04:05Z`},
		{"an extended resource that nothing offers", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
			all := corev1.ResourceList{"nvidia.com/mig-5g.50gb": resource.MustParse("1")}
			s.Pods[0].Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: all, Requests: all}
			for _, c := range s.Classes {
				if profile, ok := strings.CutSuffix(c.Name, ".nvidia.com"); ok && strings.HasPrefix(profile, "mig-") {
					c.Spec.ExtendedResourceName = ptr.To("nvidia.com/" + profile)
				}
			}
			return s
		}, `
pod p waits: no node offers nvidia.com/mig-5g.50gb; the nearest that is offered is nvidia.com/mig-4g.40gb`},
		{"an extended resource that is misspelt", func(t *testing.T) *cluster.Snapshot {
			s := extended(t, "", "1", t4)
			all := corev1.ResourceList{"nvidia.com/gpus": resource.MustParse("1")}
			s.Pods[0].Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: all, Requests: all}
			return s
		}, `
pod p waits: no node offers nvidia.com/gpus; did you mean nvidia.com/gpu?`},
		{"a claim that was deleted", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Claims = nil
			return s
		}, `
pod p waits: claim c does not exist in namespace ns; a pod uses only claims of its own namespace`},
		{"a claim that is not known, because claims cannot be read", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Claims, s.Unread[cluster.Claims] = nil, errors.New("forbidden")
			return s
		}, `
no answer without the right to list resourceclaims.resource.k8s.io: forbidden`},
		{"a claim of a namespace of which claims were not read", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Claims = nil
			s.Unread[cluster.Claims] = &cluster.PartialError{Namespace: "other", Err: errors.New("forbidden")}
			return s
		}, `
no answer without the right to list resourceclaims.resource.k8s.io: only those of namespace other are known: forbidden`},
		{"a claim that does not exist in a namespace of which claims were read", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Claims = nil
			s.Unread[cluster.Claims] = &cluster.PartialError{Namespace: "ns", Err: errors.New("forbidden")}
			return s
		}, `
pod p waits: claim c does not exist in namespace ns; a pod uses only claims of its own namespace`},
		{"a template that is not known", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p"))
			useTemplate(s.Pods[0], nil)
			s.Unread[cluster.Templates] = errors.New("forbidden")
			return s
		}, `
no answer without the right to list resourceclaimtemplates.resource.k8s.io: forbidden`},
		{"a claim that as many pods use as can", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			has := claim(t, "has", gpus(""))
			mustHold(t, s, has)
			has.Status.ReservedFor = make([]resourceapi.ResourceClaimConsumerReference,
				resourceapi.ResourceClaimReservedForMaxSize)
			s.Pods = append(s.Pods, pod("p", has))
			return s
		}, `
pod p waits: claim has is used by 256 pods already, which is the limit`},
		{"a claim that is being deleted", func(t *testing.T) *cluster.Snapshot {
			s, c := one(t, t4, gpus(""))
			c.DeletionTimestamp = &since
			return s
		}, `
pod p waits: claim c is being deleted; create it again when it has gone`},
		{"a claim that is being deleted, and that pods use", func(t *testing.T) *cluster.Snapshot {
			s, c := one(t, t4, gpus(""))
			c.DeletionTimestamp = &since
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "x"},
				{Resource: "pods", Name: "y"}}
			return s
		}, `
pod p waits: claim c is being deleted, and stays until those end that use it (x, y); create it again when it has gone`},
		{"more GPUs than a node has, of which one is held", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(", count: 3"))
			mustHold(t, s, claim(t, "x", gpus("")))
			return s
		}, `
pod p waits: request gpu of claim c: it wants 3 devices of one node, and no node has more than 2, or more than 1 free
smallest change: in ResourceClaim ns/c, request gpu: ask for 1 device instead of 3`},
		{"a rolling update that waits for itself", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			mustHold(t, s, claim(t, "x", gpus(", count: 2")))
			c := claim(t, "c", gpus(""))
			s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c), pod("old", s.Claims[0]))
			s.Claims[0].Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods",
				Name: "old"}}
			s.Pods[1].Spec.NodeName = "a"
			for i, hash := range []string{"6d5", "7f9"} {
				s.Pods[i].Labels = map[string]string{"pod-template-hash": hash}
				s.Pods[i].OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "roll-" + hash,
					Controller: ptr.To(true)}}
			}
			return s
		}, `
pod p waits: request gpu of claim c: the 2 devices of class gpu.nvidia.com are held by other claims
smallest change: in Deployment ns/roll: set strategy.type: Recreate, or maxSurge: 0: pod old has the devices, and ends when this pod is ready`},
		{"a claim of another pod", func(t *testing.T) *cluster.Snapshot {
			s, c := one(t, t4, gpus(""))
			useTemplate(s.Pods[0], c)
			return s
		}, `
pod p waits: ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)`},
		{"a claim of the pod group", func(t *testing.T) *cluster.Snapshot {
			s, c := one(t, t4, gpus(", count: 3"))
			s.Pods[0].Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
			useTemplate(s.Pods[0], c)
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup",
				Name: "g", Controller: ptr.To(true)}}
			return s
		}, `
pod p waits: request gpu of claim c: it wants 3 devices of one node, and no node has more than 2 for it
smallest change: in ResourceClaimTemplate ns/t, request gpu: ask for 2 devices instead of 3`},
		{"a scheduling gate", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
			return s
		}, `
pod p has the scheduling gate example.com/quota: the scheduler ignores it until another program removes that`},
		{"a pod that has a node", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			c := claim(t, "c", gpus(""))
			mustHold(t, s, c)
			s.Pods = append(s.Pods, pod("p", c))
			s.Pods[0].Spec.NodeName = "a"
			return s
		}, `
pod p is on node a`},
		{"a pod that names its node, and bypasses the scheduler", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.NodeName = "a"
			return s
		}, `
pod p is on node a, and its claim c has no devices: spec.nodeName bypasses the scheduler, which allocates devices; write nodeSelector: {kubernetes.io/hostname: a} instead, and create the pod again`},
		{"a pod that names its node, and whose claim is not generated yet", func(t *testing.T) *cluster.Snapshot {
			s := overQuota(t, "count/pods")
			s.Pods[0].Spec.NodeName = "a"
			return s
		}, `
pod p is on node a, and its claim gpu has no devices: spec.nodeName bypasses the scheduler, which allocates devices; write nodeSelector: {kubernetes.io/hostname: a} instead, and create the pod again`},
		{"a pod that has ended", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Status.Phase = corev1.PodSucceeded
			return s
		}, `
pod p has ended: its phase is Succeeded`},
		{"a pod that fits", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			return s
		}, `
pod p fits now on 1 of 1 nodes`},
		{"a share on a GPU without shares", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(", capacity: {requests: {memory: 5Gi}}"))
			return s
		}, `
pod p fits now on 1 of 1 nodes
  a: gpu gets gpu-3b-00-0 (all of it, not memory 5Gi: the GPU has no shares)`},
		{"no right to read slices", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Slices, s.Unread[cluster.Slices] = nil, errors.New("forbidden")
			return s
		}, `
no answer without the right to list resourceslices.resource.k8s.io: forbidden`},
		{"no right to read nodes", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(", count: 3"))
			s.Nodes, s.Unread[cluster.Nodes] = nil, errors.New("forbidden")
			return s
		}, `
pod p waits: request gpu of claim c: it wants 3 devices of one node, and no node has more than 2 for it
smallest change: in ResourceClaim ns/c, request gpu: ask for 2 devices instead of 3`},
		{"a pod that fits, unless a node keeps it away that may not be read", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Pods[0].Spec.NodeSelector = map[string]string{"zone": "z1"}
			s.Pods[0].Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.
					NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone",
					Operator: corev1.NodeSelectorOpExists}}}}}}}
			s.Nodes, s.Unread[cluster.Nodes] = nil, errors.New("forbidden")
			return s
		}, `
pod p fits now on 1 of 1 nodes, unless labels, taints or resources of the nodes keep the pod away`},
		{"a pod without claims, and no right to read nodes", func(t *testing.T) *cluster.Snapshot {
			s := fleet(t, t4)
			s.Pods = append(s.Pods, pod("p"))
			s.Nodes, s.Unread[cluster.Nodes] = nil, errors.New("forbidden")
			return s
		}, `
no answer without the right to list nodes: forbidden`},
		{"no slices, and no right to read nodes", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Slices, s.Nodes, s.Unread[cluster.Nodes] = nil, nil, errors.New("forbidden")
			return s
		}, `
pod p waits: no node offers devices: there is no ResourceSlice
no change of this pod helps, and no end of other claims`},
		{"a pod that fits, unless there are claims that may not be read", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(""))
			s.Unread[cluster.Claims] = errors.New("forbidden")
			return s
		}, `
pod p fits now on 1 of 1 nodes, unless claims of other namespaces hold the devices`},
		{"a pod that does not fit, whatever claims there are", func(t *testing.T) *cluster.Snapshot {
			s, _ := one(t, t4, gpus(", count: 3"))
			s.Unread[cluster.Claims] = errors.New("forbidden")
			return s
		}, `
pod p waits: request gpu of claim c: it wants 3 devices of one node, and no node has more than 2 for it
smallest change: in ResourceClaim ns/c, request gpu: ask for 2 devices instead of 3, unless claims of other namespaces hold the devices`},
	} {
		t.Run(row.name, func(t *testing.T) {
			r, err := Pod(t.Context(), row.world(t), "ns", "p")
			if err != nil {
				t.Fatal(err)
			}
			all := text(t, r)
			if got := "\n" + all; !strings.HasPrefix(got, row.want+"\n") {
				t.Errorf("got\n%s\nwant first\n%s", got, row.want)
			}
		})
	}
}

// The claim of a pod that bypasses the scheduler is not allocated, unless for another pod.
func TestClaimOfBypassedScheduler(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	c := claim(t, "c", gpus(""))
	bound := pod("bound", c)
	bound.Spec.NodeName = "a"
	s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, bound)
	for _, row := range []struct {
		want  string
		other *corev1.Pod // comes then
	}{
		{"claim c waits: pod bound is on node a, and its claim c has no devices: spec.nodeName bypasses", pod("p", c)},
		{"pod p fits now on 1 of 1 nodes", nil},
	} {
		r, err := Claim(t.Context(), s, "ns", "c")
		if err != nil || !strings.HasPrefix(r.Cause, row.want) {
			t.Errorf("got %v, %v, want %s", r, err, row.want)
		}
		s.Pods = append(s.Pods, row.other)
	}
}

// A pod that is to be created with a node gets no devices. One that exists may have it from the scheduler.
func TestFitNodeName(t *testing.T) {
	c, held := claim(t, "c", gpus("")), claim(t, "held", gpus(""))
	for _, row := range []struct {
		name   string
		pod    *corev1.Pod
		exists bool
		want   Outcome
		cause  string
	}{
		{"a claim", pod("p", c), false, Waits, "pod p would get no devices: spec.nodeName bypasses the scheduler"},
		{"an extended resource", extended(t, "", "1").Pods[0], false, Waits, "pod p would get no devices"},
		{"no devices", pod("p"), false, Fits, "pod p fits now"},
		{"a pod that exists", pod("p", c), true, Fits, "pod p fits now"},
		{"a claim that has devices", pod("p", held), false, Fits, "pod p fits now"},
		{"of a device plugin", extended(t, "", "1").Pods[0], false, Fits, "pod p fits now"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := extended(t, "", "1", clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			s.Pods = nil
			if !hold(t, s, held) {
				t.Fatal("no GPU is free")
			}
			if row.name == "of a device plugin" {
				s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
			}
			row.pod.Spec.NodeName = "a"
			if !row.exists {
				row.pod.UID = ""
			}
			m := Manifest{Pods: []*corev1.Pod{row.pod}, Claims: []*resourceapi.ResourceClaim{c}}
			if r := Fit(t.Context(), s, m)[0]; r.Outcome != row.want || !strings.HasPrefix(r.Cause, row.cause) {
				t.Errorf("got %s, %s, want %s, %s", r.Outcome, r.Cause, row.want, row.cause)
			}
		})
	}
}

// A claim is explained with its pod, and alone if there is none.
func TestClaim(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	c := claim(t, "c", gpus(", count: 3"))
	c.ResourceVersion = "7"
	s.Claims = append(s.Claims, c)
	for _, row := range []struct{ cause, note string }{
		{"claim c waits: request gpu of claim c: it wants 3", "no pod that waits uses this claim"},
		{"pod p waits: request gpu of claim c: it wants 3", "claim c waits for a node of pod p"},
	} {
		r, err := Claim(t.Context(), s, "ns", "c")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(r.Cause, row.cause) || len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], row.note) {
			t.Errorf("got %q with notes %q, want %q with %q", r.Cause, r.Notes, row.cause, row.note)
		}
		if r.Kind != "ResourceClaim" || r.UID != "c" || r.ResourceVersion != "7" {
			t.Errorf("the answer is about %s %s of version %s, want the claim", r.Kind, r.UID, r.ResourceVersion)
		}
		s.Pods = append(s.Pods, pod("p", c))
	}
	gated, leaving := pod("gated", c), pod("leaving", c)
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
	leaving.DeletionTimestamp = &since
	for _, row := range []struct {
		pods []*corev1.Pod
		want string
	}{
		{[]*corev1.Pod{leaving, gated, s.Pods[0]}, "pod p waits: "},
		{[]*corev1.Pod{leaving, gated}, "pod gated has the scheduling gate "},
		{[]*corev1.Pod{leaving}, "claim c waits: "},
	} {
		of := *s
		of.Pods = row.pods
		if r, err := Claim(t.Context(), &of, "ns", "c"); err != nil || !strings.HasPrefix(r.Cause, row.want) {
			t.Errorf("of %d pods: got %+v, %v, want the cause %q", len(row.pods), r, err, row.want)
		}
	}
	if _, err := Claim(t.Context(), s, "ns", "missing"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

// Without all pods, it is not known whether one uses the claim.
func TestClaimWithoutPods(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	s.Claims = append(s.Claims, claim(t, "c", gpus(", count: 3")))
	s.Unread[cluster.Pods] = errors.New("forbidden")
	r, err := Claim(t.Context(), s, "ns", "c")
	if err != nil {
		t.Fatal(err)
	}
	const want = "pods cannot be read, so it is not known whether one waits for this claim: forbidden"
	if got := r.Notes[len(r.Notes)-1]; got != want {
		t.Errorf("got the note %q, want %q", got, want)
	}
}

// What is about to be created counts for quotas, and on an empty cluster it counts alone.
func TestFitQuota(t *testing.T) {
	const devices = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
	for _, row := range []struct {
		name       string
		hard, used string
		exists     bool
		empty      bool
		want       Outcome
	}{
		{"the quota has room", "4", "2", false, false, Fits},
		{"the quota has no room", "4", "3", false, false, Waits},
		{"the claim exists, and has been counted", "4", "4", true, false, Fits},
		{"on an empty cluster, nothing has been counted", "4", "3", false, true, Fits},
		{"the quota is too small for an empty cluster", "1", "0", false, true, Waits},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			s.Quotas = []*corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
				Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{devices: resource.MustParse(row.hard)},
					Used: corev1.ResourceList{devices: resource.MustParse(row.used)}}}}
			c := claim(t, "c", gpus(", count: 2"))
			if row.exists {
				s.Claims = append(s.Claims, c)
			}
			if row.empty {
				for _, resource := range []string{cluster.Claims, cluster.Pods} {
					s.Unread[resource] = errors.New("forbidden")
				}
				s = Empty(s)
			}
			m := Manifest{Claims: []*resourceapi.ResourceClaim{c}}
			for _, with := range []string{"the claim", "the pod"} {
				r := Fit(t.Context(), s, m)
				if len(r) != 1 || r[0].Outcome != row.want {
					t.Errorf("%s: got %+v, want %s", with, r[0], row.want)
				}
				if row.empty && len(r[0].Notes) > 0 && with == "the pod" {
					t.Errorf("got the notes %q of what does not count on an empty cluster", r[0].Notes)
				}
				m.Pods = []*corev1.Pod{pod("p", c)}
			}
		})
	}
}

// No scope is for claims, so a quota with scopes does not count them. It may count the pod that names an extended
// resource.
func TestFitQuotaWithScopes(t *testing.T) {
	const classDevices = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
	scopes := corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}}
	selector := corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{
		MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: corev1.ResourceQuotaScopePriorityClass,
			Operator: corev1.ScopeSelectorOpExists}}}}
	for _, row := range []struct {
		name     string
		spec     corev1.ResourceQuotaSpec
		extended bool // the pod has the extended resource, not a claim
		resource corev1.ResourceName
		want     Outcome
		note     string
	}{
		{"a claim, and no scope", corev1.ResourceQuotaSpec{}, false, classDevices, Waits, ""},
		{"a claim, and scopes", scopes, false, classDevices, Fits, ""},
		{"a claim, and a selector of scopes", selector, false, "requests.nvidia.com/gpu", Fits, ""},
		{"an extended resource, and no scope", corev1.ResourceQuotaSpec{}, true, "requests.nvidia.com/gpu", Waits, ""},
		{"an extended resource, and a selector of scopes", selector, true, "requests.nvidia.com/gpu", Fits,
			"quotas with scopes are not considered: q"},
		{"an extended resource, and scopes for its class", scopes, true, classDevices, Fits, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := extended(t, "", "1", clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			p := s.Pods[0]
			s.Pods = nil
			s.Quotas = []*corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
				Spec:   row.spec,
				Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{row.resource: resource.MustParse("0")}}}}
			m := Manifest{Pods: []*corev1.Pod{p}}
			if !row.extended {
				m = Manifest{Claims: []*resourceapi.ResourceClaim{claim(t, "c", gpus(""))}}
			}
			r := Fit(t.Context(), s, m)[0]
			if r.Outcome != row.want || strings.Join(r.Notes, "; ") != row.note {
				t.Errorf("got %s (%s) with the notes %q, want %s with %q", r.Outcome, r.Cause, r.Notes, row.want,
					row.note)
			}
		})
	}
}

// What the API server refuses is said, if the labels of the namespace are known.
func TestFitAdminAccess(t *testing.T) {
	labeled := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		resourceapi.DRAAdminNamespaceLabelKey: "true"}}}
	const needs = "adminAccess needs the label resource.kubernetes.io/admin-access=true of namespace ns"
	for _, row := range []struct {
		name        string
		class       string // and what else the request has
		namespace   *corev1.Namespace
		exists      bool
		cause, note string
	}{
		{"a label", "gpu.nvidia.com, adminAccess: true", labeled, false, "claim c fits now", ""},
		{"no label", "gpu.nvidia.com, adminAccess: true", &corev1.Namespace{}, false,
			"claim ns/c is refused: " + needs, ""},
		{"no right to read it", "gpu.nvidia.com, adminAccess: true", nil, false, "claim c fits now",
			needs + ", which could not be read"},
		{"no label any more", "gpu.nvidia.com, adminAccess: true", &corev1.Namespace{}, true, "claim c fits now", ""},
		{"no adminAccess", "gpu.nvidia.com", &corev1.Namespace{}, false, "claim c fits now", ""},
		{"the monitor device", "monitor.gpu.nvidia.com, adminAccess: true", labeled, false, "claim c fits now", ""},
		{"the monitor device without adminAccess", "monitor.gpu.nvidia.com", labeled, false, "claim c would get " +
			"devices and not start, because its node refuses it: device monitor gives every GPU of the node: set " +
			"adminAccess: true in the request", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "monitor.gpu.nvidia.com"}}
			class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: "device.driver == 'gpu.nvidia.com' && " +
					"device.attributes['gpu.nvidia.com'].type == 'monitor'"}}}
			s.Classes = append(s.Classes, class)
			c := claim(t, "c", requests("[{name: gpu, exactly: {deviceClassName: "+row.class+"}}]"))
			if row.exists {
				s.Claims = append(s.Claims, c)
			}
			m := Manifest{Claims: []*resourceapi.ResourceClaim{c},
				Namespaces: map[string]*corev1.Namespace{"ns": row.namespace}}
			for _, subject := range []string{"claim c ", "pod p "} {
				r := Fit(t.Context(), s, m)
				want := row.cause
				if subject == "pod p " {
					want = strings.Replace(want, "claim c ", subject, 1)
					if strings.HasPrefix(want, "claim") {
						want = "pod p waits: " + want
					}
				}
				if len(r) != 1 || !strings.HasPrefix(r[0].Cause, want) || strings.Join(r[0].Notes, "; ") != row.note ||
					(r[0].Outcome == Fits) != strings.Contains(want, "fits") {
					t.Errorf("got %+v, want %s with the note %q", r[0], want, row.note)
				}
				m.Pods = []*corev1.Pod{pod("p", c)}
			}
		})
	}
}

// What limits say, and requests do not, counts as the API server writes it into the pod.
func TestFitLimits(t *testing.T) {
	cpus := func(amount string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(amount)}
	}
	for _, row := range []struct {
		name      string
		container corev1.ResourceRequirements
		pod       corev1.ResourceRequirements
		want      Outcome
	}{
		{"a container is limited to more than a node has", corev1.ResourceRequirements{Limits: cpus("80")},
			corev1.ResourceRequirements{}, Waits},
		{"it requests less", corev1.ResourceRequirements{Limits: cpus("80"), Requests: cpus("1")},
			corev1.ResourceRequirements{}, Fits},
		{"the pod is limited to more than a node has", corev1.ResourceRequirements{},
			corev1.ResourceRequirements{Limits: cpus("80")}, Waits},
		{"the pod requests less", corev1.ResourceRequirements{},
			corev1.ResourceRequirements{Limits: cpus("80"), Requests: cpus("1")}, Fits},
		{"its container requests less", corev1.ResourceRequirements{Requests: cpus("1")},
			corev1.ResourceRequirements{Limits: cpus("80")}, Fits},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := pod("p")
			p.Spec.Containers[0].Resources, p.Spec.Resources = row.container, &row.pod
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			if r := Fit(t.Context(), s, Manifest{Pods: []*corev1.Pod{p}}); r[0].Outcome != row.want {
				t.Errorf("got %s: %s, want %s", r[0].Outcome, r[0].Cause, row.want)
			}
		})
	}
}

// A search that reaches its limit says so, and what it did not try.
func TestLimit(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	c := claim(t, "c", ask("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Ti')) >= 0", ", count: 3"))
	s.Claims = append(s.Claims, c)
	before := advice.SearchAsked
	defer func() { advice.SearchAsked = before }()
	for _, row := range []struct {
		questions int
		complete  bool
		notTried  string
	}{
		{1, false, "2 of 3 single changes, and sets of changes"},
		{3, false, "some sets of changes"},
		{1000, true, ""},
	} {
		advice.SearchAsked = row.questions
		r, err := Claim(t.Context(), s, "ns", "c")
		if err != nil {
			t.Fatal(err)
		}
		r.Search.Asked = 0
		if r.Search.Complete != row.complete || r.Search.NotTried != row.notTried {
			t.Errorf("after %d questions: got %+v, want complete: %t, not tried: %q", row.questions, r.Search,
				row.complete, row.notTried)
		}
		if row.complete != (len(r.Change) == 2) {
			t.Errorf("after %d questions: got the changes %v", row.questions, r.Change)
		}
	}
}

// Nodes with equal devices and equal use are asked once. What tells them apart is what the claim reads.
func TestGroups(t *testing.T) {
	const uuid = "device.attributes['gpu.nvidia.com'].uuid != 'x'"
	for _, row := range []struct {
		name    string
		devices string
		change  func(t *testing.T, s *cluster.Snapshot)
		want    int
	}{
		{"equal nodes", gpus(", count: 3"), func(*testing.T, *cluster.Snapshot) {}, 1},
		{"one node has a claim", gpus(", count: 3"), func(t *testing.T, s *cluster.Snapshot) {
			mustHold(t, s, claim(t, "x", gpus("")))
		}, 2},
		{"all nodes have the same use", gpus(", count: 3"), func(t *testing.T, s *cluster.Snapshot) {
			for i := range 6 {
				mustHold(t, s, claim(t, fmt.Sprint("x", i), gpus("")))
			}
		}, 1},
		{"one node has a taint", gpus(", count: 3"), func(_ *testing.T, s *cluster.Snapshot) {
			s.Slices[0].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: "NoSchedule"}}
		}, 2},
		{"a pool is not complete, and the slice before it was", gpus(", count: 3"), func(_ *testing.T,
			s *cluster.Snapshot) {
			for i, slice := range s.Slices {
				old := slice.DeepCopy()
				slice.Spec.Pool.Generation++
				if i == 0 {
					slice.Spec.Pool.ResourceSliceCount++
				}
				s.Slices = append([]*resourceapi.ResourceSlice{old}, s.Slices...)
			}
		}, 2},
		{"an attribute differs that the claim does not read", gpus(", count: 3"),
			func(_ *testing.T, s *cluster.Snapshot) { setUUIDs(s) }, 1},
		{"an attribute differs that the claim reads", ask(uuid, ", count: 3"),
			func(_ *testing.T, s *cluster.Snapshot) { setUUIDs(s) }, 3},
		{"an attribute differs that the claim may read", ask(
			"cel.bind(a, device.attributes['gpu.nvidia.com'], a.uuid != 'x')", ", count: 3"),
			func(_ *testing.T, s *cluster.Snapshot) { setUUIDs(s) }, 3},
		{"an attribute differs that a class reads, which may be used instead of one that does not exist", requests(
			"[{name: gpu, exactly: {deviceClassName: missing, count: 3}}]"), func(_ *testing.T, s *cluster.Snapshot) {
			setUUIDs(s)
			class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
			class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: uuid}}}
			s.Classes = append(s.Classes, class)
		}, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			var nodes []clustertest.SimNode
			for i := range 3 {
				nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprint("n", i), Profile: "t4-x2", Use: exclusive})
			}
			s := fleet(t, nodes...)
			row.change(t, s)
			s.Claims = append(s.Claims, claim(t, "c", row.devices))
			r, err := Claim(t.Context(), s, "ns", "c")
			if err != nil {
				t.Fatal(err)
			}
			if r.Nodes.Groups != row.want || r.Nodes.Total != 3 {
				t.Errorf("got %d groups of %d nodes, want %d of 3", r.Nodes.Groups, r.Nodes.Total, row.want)
			}
		})
	}
}

// What the scheduler considers, and the answer does not, is noted.
func TestNotesOfPod(t *testing.T) {
	port := []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	for _, row := range []struct {
		name   string
		change func(*corev1.PodSpec)
		want   []string
	}{
		{"nothing", func(p *corev1.PodSpec) { p.SchedulerName = corev1.DefaultSchedulerName }, nil},
		{"a host port of a container", func(p *corev1.PodSpec) { p.Containers[0].Ports = port },
			[]string{"host ports are not considered"}},
		{"a host port of a sidecar", func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Ports: port,
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		}, []string{"host ports are not considered"}},
		{"another scheduler", func(p *corev1.PodSpec) { p.SchedulerName = "batch" },
			[]string{"the scheduler batch of the pod may decide in another way"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
			s.Pods = append(s.Pods, pod("p"))
			row.change(&s.Pods[0].Spec)
			r, err := Pod(t.Context(), s, "ns", "p")
			if err != nil || !slices.Equal(r.Notes, row.want) {
				t.Errorf("got %+v, %v, want the notes %q", r, err, row.want)
			}
		})
	}
}

// Kubernetes' scheduler takes a toleration without an effect for every effect, and its eviction for none.
func TestNoteOfTolerationWithoutEffect(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	for tolerations, want := range map[string]string{"[{operator: Exists}]": "a toleration of claim c, request gpu: " +
		cluster.NoEffect, "[{operator: Exists, effect: NoExecute}]": ""} {
		r := Fit(t.Context(), s, Manifest{Claims: []*resourceapi.ResourceClaim{claim(t, "c",
			gpus(", tolerations: "+tolerations))}})[0]
		if got := strings.Join(r.Notes, "; "); got != want {
			t.Errorf("%s: got the notes %q, want %q", tolerations, got, want)
		}
	}
}

// What could not be read and may change the answer is noted.
func TestNotesOfUnread(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	c := claim(t, "c", gpus(""))
	s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
	s.Unread = map[string]error{cluster.Quotas: errors.New("no quotas"), cluster.TaintRules: errors.New("no rules")}
	r, err := Pod(t.Context(), s, "ns", "p")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"DeviceTaintRules cannot be read, so devices may have more taints: no rules",
		"quotas cannot be read, and are not considered: no quotas"}
	if !slices.Equal(r.Notes, want) {
		t.Errorf("got notes %q, want %q", r.Notes, want)
	}
}
