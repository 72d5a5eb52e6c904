// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// fabricOn returns nodes and a fabric with devices for them. The claim c of pod p has all of these, and the scheduler
// waits.
func fabricOn(t *testing.T, devices int) *cluster.Snapshot {
	t.Helper()
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "mixed", Use: exclusive},
		clustertest.SimNode{Name: "b", Profile: "t4-x2", Use: exclusive})
	pool := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "fabric"}}
	pool.Spec = resourceapi.ResourceSliceSpec{
		Driver: driver, Pool: resourceapi.ResourcePool{Name: "fabric", Generation: 1, ResourceSliceCount: 1},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpExists}}}}}}
	for i := range devices {
		pool.Spec.Devices = append(pool.Spec.Devices, resourceapi.Device{Name: []string{"far-0", "far-1"}[i],
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}, "productName": {StringValue: ptr.To("Far")}},
			BindsToNode: ptr.To(true), BindingConditions: []string{"Ready"},
			BindingFailureConditions: []string{"Failed", "Again"}})
	}
	s.Slices = append(s.Slices, pool)
	c := claim(t, "c", ask("device.attributes['gpu.nvidia.com'].productName == 'Far'",
		map[int]string{1: "", 2: ", count: 2"}[devices]))
	mustHold(t, s, c)
	p := pod("p", c)
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: p.UID}}
	s.Pods = append(s.Pods, p)
	return s
}

// setCondition sets a condition of the device of claim c.
func setCondition(s *cluster.Snapshot, device, condition string, status metav1.ConditionStatus) {
	s.Claims[0].Status.Devices = append(s.Claims[0].Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: driver,
		Pool: "fabric", Device: device, Conditions: []metav1.Condition{{Type: condition, Status: status,
			Reason: "Fabric", Message: "port 3", LastTransitionTime: metav1.NewTime(since.Add(time.Minute))}}})
}

// A row says how the answer begins about the pod, and about its claim if there is one.
func TestBinding(t *testing.T) {
	const has = " has device far-0 of pool fabric of driver gpu.nvidia.com for node a since 2026-01-02T03:04:05Z; its "
	const pod, unset = "pod p waits: claim c" + has, "binding condition Ready is not set"
	const says = " since 2026-01-02T03:05:05Z: Fabric: port 3\n"
	const gives = "\nthe scheduler gives up 10m after the allocation, at 2026-01-02T03:14:05Z, " +
		"unless its bindingTimeout is another, and tries again\n"
	const back = "the scheduler takes the devices of the claim back, unless other pods use it, and tries again\n"
	condition := func(device, name string, status metav1.ConditionStatus) func(*testing.T, *cluster.Snapshot) {
		return func(_ *testing.T, s *cluster.Snapshot) { setCondition(s, device, name, status) }
	}
	for _, row := range []struct {
		name        string
		devices     int
		change      func(t *testing.T, s *cluster.Snapshot)
		ofPod, ofIt string
	}{
		{"the condition is not set", 1, func(*testing.T, *cluster.Snapshot) {}, pod + unset + gives,
			"claim c waits: it" + has + unset + gives},
		{"the condition is false", 1, condition("far-0", "Ready", metav1.ConditionFalse),
			pod + "binding condition Ready is False" + says, ""},
		{"the condition of another device is true", 1, condition("far-1", "Ready", metav1.ConditionTrue),
			pod + unset + gives, ""},
		{"the condition is true", 1, condition("far-0", "Ready", metav1.ConditionTrue),
			"pod p fits now on 1 of 2 nodes\n  a\n", "claim c has its devices: far-0\n"},
		{"a failure condition is true", 1, condition("far-0", "Again", metav1.ConditionTrue),
			pod + "binding failure condition Again is True" + says + back, ""},
		{"it has failed, and the scheduler no longer waits", 1, func(t *testing.T, s *cluster.Snapshot) {
			condition("far-0", "Failed", metav1.ConditionTrue)(t, s)
			s.Claims[0].Status.ReservedFor = nil
		}, pod + "binding failure condition Failed is True" + says + back, ""},
		{"a second device is ready", 2, condition("far-1", "Ready", metav1.ConditionTrue), pod + unset + gives, ""},
		{"the first device is waited for before it is seen that the second has failed", 2,
			condition("far-1", "Failed", metav1.ConditionTrue),
			pod + unset + "; 1 more device is not ready" + gives, ""},
		{"no right to read nodes", 1, func(_ *testing.T, s *cluster.Snapshot) {
			s.Nodes, s.Unread[cluster.Nodes] = nil, errors.New("forbidden")
		}, pod + unset + gives, ""},
		{"the device is for every node, and the scheduler has chosen one", 1, func(_ *testing.T, s *cluster.Snapshot) {
			s.Claims[0].Status.Allocation.NodeSelector = nil
			s.Claims[0].Status.Allocation.AllocationTimestamp = nil
			s.Pods[0].Status.NominatedNodeName = "b"
		}, "pod p waits: claim c has device far-0 of pool fabric of driver gpu.nvidia.com for node b; its " + unset +
			"\nthe scheduler gives up 10m after the allocation, unless",
			"claim c waits: it has device far-0 of pool fabric of driver gpu.nvidia.com; its " + unset},
		{"another pod waits for the claim, and this one cannot run there", 1, func(_ *testing.T, s *cluster.Snapshot) {
			s.Claims[0].Status.ReservedFor = nil
			s.Pods[0].Spec.NodeSelector = map[string]string{corev1.LabelHostname: "b"}
		}, "pod p waits: 2 nodes have what else the pod needs, and the pod cannot run there: claim c, whose devices " +
			"are elsewhere; ", ""},
		{"a second claim of the pod does not fit", 1, func(t *testing.T, s *cluster.Snapshot) {
			d := claim(t, "d", ask("device.attributes['gpu.nvidia.com'].productName == 'Farther'", ""))
			s.Claims = append(s.Claims, d)
			s.Pods[0].Spec.ResourceClaims = append(s.Pods[0].Spec.ResourceClaims, corev1.PodResourceClaim{Name: "d",
				ResourceClaimName: ptr.To("d")})
			use(s.Pods[0], "d")
		}, "pod p waits: request gpu of claim d: ", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fabricOn(t, row.devices)
			row.change(t, s)
			ofPod, err := Pod(t.Context(), s, "ns", "p")
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, ofPod); !strings.HasPrefix(got, row.ofPod) {
				t.Errorf("of the pod: got\n%s\nwant\n%s", got, row.ofPod)
			}
			ofIt, err := Claim(t.Context(), s, "ns", "c")
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, ofIt); !strings.HasPrefix(got, row.ofIt) {
				t.Errorf("of the claim: got\n%s\nwant\n%s", got, row.ofIt)
			}
		})
	}
}

// Programs read the same from JSON.
func TestBindingJSON(t *testing.T) {
	s := fabricOn(t, 1)
	setCondition(s, "far-0", "Failed", metav1.ConditionTrue)
	r, err := Pod(t.Context(), s, "ns", "p")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(r.Binding)
	const want = `[{"claim":"c","driver":"gpu.nvidia.com","pool":"fabric","device":"far-0","node":"a",` +
		`"since":"2026-01-02T03:04:05Z","missing":[{"type":"Ready","status":"","lastTransitionTime":null,"reason":"",` +
		`"message":""}],"failed":{"type":"Failed","status":"True","lastTransitionTime":"2026-01-02T03:05:05Z",` +
		`"reason":"Fabric","message":"port 3"}}]`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}
