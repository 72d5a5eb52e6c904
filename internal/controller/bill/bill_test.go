// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// leader returns a leader with that view, on the ConfigMap of the API.
func leader(v *cluster.View, api client.Client) *biller {
	return &biller{name: configMap, Controller: &feature.Controller{View: v, Direct: api, Guard: feature.NewGuard()}}
}

func newAPI(data map[string]string) client.Client {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: configMap.Namespace, Name: configMap.Name}, Data: data}).Build()
}

// rounds looks after each of these times.
func (b *biller) rounds(t *testing.T, at ...time.Duration) {
	t.Helper()
	for _, after := range at {
		if err := b.round(t.Context(), start.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
}

// holds returns a claim of the namespace ml: "gpu-3b-00-0 3840Mi".
func holds(name, text string) *resourceapi.ResourceClaim {
	device, memory, shared := strings.Cut(text, " ")
	r := resourceapi.DeviceRequestAllocationResult{Driver: clustertest.Driver, Pool: "a", Device: device}
	if shared {
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}}}
}

// text returns the seconds of each state, sorted: "used gpu ml 10".
func (b *biller) text() string {
	var lines []string
	for k, seconds := range b.account.totals {
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %.1f", k.State, k.Reason, k.Device,
			k.Namespace, seconds)), " "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestStates(t *testing.T) {
	t4, h100 := clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "a", Profile: "dgx-h100",
		Use: gpu.SharingMode{Partitions: gpu.PartitionsDynamic}}
	unlimited := t4
	unlimited.Use.Sharing = gpu.Unlimited
	for _, tc := range []struct {
		name  string
		node  clustertest.SimNode
		held  string // comma-separated
		short string // what the node lacks
		want  string
	}{
		{"nobody has anything", t4, "", "", "free 20.0"},
		{"four shares of a quarter are one GPU", t4,
			"gpu-3b-00-0 3840Mi,gpu-3b-00-0 3840Mi,gpu-3b-00-0 3840Mi,gpu-3b-00-0 3840Mi", "",
			"free 10.0\nused share ml 10.0"},
		{"a node without CPU", t4, "gpu-3b-00-0 3840Mi", "cpu", "stranded cpu 17.5\nused share ml 2.5"},
		{"the rest of two partitions is too small for another", h100,
			"gpu-1b-00-0-mig-3g40gb-0,gpu-1b-00-0-mig-3g40gb-4", "",
			"free 70.0\nstranded fragmentation 0.1\nused 3g.40gb ml 9.9"},
		{"the rest of one partition is free", h100, "gpu-1b-00-0-mig-3g40gb-0", "", "free 75.0\nused 3g.40gb ml 5.0"},
		{"claims without limits have equal parts", unlimited, "gpu-3b-00-0 1Gi,gpu-3b-00-0 8Gi", "",
			"free 10.0\nused share ml 10.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := leader(clustertest.New(t, tc.node), newAPI(nil))
			b.Short = func(string) string { return tc.short }
			for i, text := range strings.FieldsFunc(tc.held, func(r rune) bool { return r == ',' }) {
				b.View.SetClaim(holds(fmt.Sprint(i), text))
			}
			b.rounds(t, 0, 5*time.Second, 15*time.Second)
			if got := b.text(); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// The next leader goes on where the one before has stored, and the time in between counts once.
func TestLeaders(t *testing.T) {
	v, api := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}), newAPI(nil)
	v.SetClaim(holds("train", "gpu-3b-00-0"))
	first := leader(v, api)
	first.rounds(t, 0, 5*time.Second, 35*time.Second, 50*time.Second) // the last look is not stored
	second := leader(v, api)
	second.rounds(t, 95*time.Second)
	if got, want := second.text(), "free 90.0\nused gpu ml 90.0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := first.round(t.Context(), start.Add(100*time.Second)); err == nil {
		t.Error("a leader that was replaced stores what another has counted")
	}
	first.rounds(t, 105*time.Second)
	if got, want := first.text(), "free 100.0\nused gpu ml 100.0"; got != want {
		t.Errorf("got %s of the first leader, want %s", got, want)
	}
	third := leader(v, api)
	third.rounds(t, 100*time.Second) // its clock is behind
	third.rounds(t, 105*time.Second+maxGap+time.Second)
	if got, want := third.text(), "free 100.0\nunknown 1202.0\nused gpu ml 100.0"; got != want {
		t.Errorf("got %s after a long time without a leader, want %s", got, want)
	}
}

// A rule that keeps a GPU and evicts is no sickness.
func TestKeptByEviction(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	v.SetClaim(holds("train", "gpu-3b-00-0"))
	v.SetTaintRule(&resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(clustertest.Driver)},
			Taint: resourceapi.DeviceTaint{Key: "gpu.nvidia.com/reserved", Value: "vision",
				Effect: resourceapi.DeviceTaintEffectNoExecute}}})
	b := leader(v, newAPI(nil))
	b.rounds(t, 0, 5*time.Second, 15*time.Second)
	if got, want := b.text(), "reserved vision 10.0\nused gpu ml 10.0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What is above the number of counters is counted together.
func TestManyCounters(t *testing.T) {
	a := resume(State{}, start)
	at := func(i int) Key {
		return Key{Model: "m", State: Used, Namespace: fmt.Sprint("ns-", i), Owner: "Pod/" + strings.Repeat("x", 240)}
	}
	for i := range maxTotals + 10 {
		a.add([]part{{Key: at(i), Size: 1}}, time.Second)
	}
	if n := len(a.totals); n != maxTotals+1 {
		t.Errorf("got %d counters, want %d and one for the others", n, maxTotals)
	}
	if got := a.totals[Key{Model: "m", State: Used, Namespace: Others}]; got != 10 {
		t.Errorf("got %v seconds of others, want 10", got)
	}
	var owned float64
	for _, of := range a.owners {
		owned += of.seconds
	}
	if owned != maxTotals+10 || a.ownerBytes > maxOwnerBytes {
		t.Errorf("got %v seconds of owners with %d bytes of names, want all, and at most %d bytes", owned, a.ownerBytes,
			maxOwnerBytes)
	}
	text, err := a.state().encode()
	if err != nil || len(text) > maxStored {
		t.Errorf("got %d bytes, %v, want at most %d", len(text), err, maxStored)
	}
}

// An account of tens of thousands of GPUs fits into a ConfigMap, without the parts of GPUs.
func TestLargeAccount(t *testing.T) {
	s := State{At: start}
	for i := range 60_000 {
		key := Key{Model: "m", State: Used, Namespace: fmt.Sprint(i % 50), Owner: fmt.Sprintf("Pod/%x", i*7919)}
		claim := types.NamespacedName{Namespace: "ml", Name: fmt.Sprintf("%x-%x", i*104729, i*31)}
		node := fmt.Sprint("node-", i/8)
		s.GPUs = append(s.GPUs, storedGPU{gpuID{node, node, fmt.Sprint(i % 8)}, counted{"m", []part{{key, claim, 1}}}})
	}
	text, err := s.encode()
	if err != nil || len(text) > maxStored {
		t.Fatalf("got %d bytes, %v, want at most %d", len(text), err, maxStored)
	}
	back, err := decode(text)
	if err != nil || len(back.GPUs) != len(s.GPUs) || back.GPUs[0].Parts != nil || s.GPUs[0].Parts == nil {
		t.Errorf("got %d GPUs, %v, want %d without parts", len(back.GPUs), err, len(s.GPUs))
	}
}

func TestPrices(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	claim := holds("train", "gpu-3b-00-0")
	claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "train-0"}}
	v.SetClaim(claim)
	b := leader(v, newAPI(map[string]string{pricesKey: `{"Tesla T4": 0.35, "*": 1}`, currencyKey: "EUR"}))
	if n := testutil.CollectAndCount(Collector{b.told.Load}); n != 0 {
		t.Errorf("got %d metrics of a replica that does not lead, want none", n)
	}
	b.rounds(t, 0, 5*time.Second, 35*time.Second)
	const want = `
# HELP gpu_dra_cluster_gpu_price The price of an hour of a GPU, as in the chart's value controller.bill.prices. There is none for a model without one.
# TYPE gpu_dra_cluster_gpu_price gauge
gpu_dra_cluster_gpu_price{currency="EUR",model="Tesla T4"} 0.35
# HELP gpu_dra_cluster_owner_gpu_seconds_total Those of these seconds in which claims held something, by the owner of the claim: its pod, or the claim itself if pods share it. Two hours after its end an owner is left out.
# TYPE gpu_dra_cluster_owner_gpu_seconds_total counter
gpu_dra_cluster_owner_gpu_seconds_total{device="gpu",model="Tesla T4",namespace="ml",owner="Pod/train-0",state="used"} 30
`
	if err := testutil.CollectAndCompare(Collector{b.told.Load}, strings.NewReader(want), "gpu_dra_cluster_gpu_price",
		"gpu_dra_cluster_owner_gpu_seconds_total"); err != nil {
		t.Error(err)
	}
	if _, ok := (&Told{}).price("Tesla T4"); ok {
		t.Error("a model without a price has one")
	}
	wrong := leader(v, newAPI(map[string]string{pricesKey: "T4: 1"}))
	if err := wrong.round(t.Context(), start); err == nil || !strings.Contains(err.Error(), "data[prices]") {
		t.Errorf("got %v, want an error that names the key", err)
	}
}
