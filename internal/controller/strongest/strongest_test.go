// SPDX-License-Identifier: Apache-2.0

package strongest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

const class = "strongest.gpu.nvidia.com"

// ask returns a request for the class with additional fields.
func ask(more string) string {
	return "requests: [{name: gpu, exactly: {deviceClassName: " + class + more + "}}]"
}

// names returns the subrequests of a claim's requests, gaps as dots.
func names(c *resourceapi.ResourceClaim) string {
	var all []string
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil {
			all = append(all, r.Name+" exactly")
			continue
		}
		text := r.Name
		for _, sub := range r.FirstAvailable {
			if strings.HasPrefix(sub.Name, "gap-") {
				sub.Name = "."
			}
			text += " " + sub.Name
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func TestExpand(t *testing.T) {
	h100 := clustertest.SimNode{Name: "h", Profile: "dgx-h100"}
	l40s := clustertest.SimNode{Name: "l", Profile: "l40s-x4"}
	t4 := clustertest.SimNode{Name: "t", Profile: "t4-x2"}
	eight := []clustertest.SimNode{h100, l40s, t4, {Name: "b", Profile: "hgx-b200"}, {Name: "a", Profile: "dgx-a100"},
		{Name: "v", Profile: "dgx1-v100"},
		{Name: "g", Profile: "gb200-nvl4"}, {Name: "m", Profile: "a30-x2"}}
	all8 := "gpu tflops-2500 tflops-2250 tflops-989 tflops-362 tflops-312 tflops-165 tflops-125 any"
	for _, tc := range []struct {
		name    string
		ranks   int
		cluster []clustertest.SimNode
		devices string
		want    string
	}{
		{"nothing is known", 4, nil, ask(""), "gpu exactly"},
		{"one model: any is the strongest", 4, []clustertest.SimNode{t4}, ask(""), "gpu exactly"},
		{"two", 4, []clustertest.SimNode{t4, h100}, ask(""), "gpu tflops-989 . . . . . . any"},
		{"three", 4, []clustertest.SimNode{t4, h100, l40s}, ask(""), "gpu tflops-989 . . . . tflops-362 . any"},
		{"eight in four ranks", 4, eight, ask(""), "gpu tflops-2500 . . . tflops-2250 . tflops-989 any"},
		{"eight in eight ranks", 8, eight, ask(""), all8},
		{"only those that the selectors leave", 4, eight,
			ask(`, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].architecture == 'Ampere'"}}]`),
			"gpu tflops-312 . . . . . . any"},
		{"a selector for a place leaves all", 4, []clustertest.SimNode{t4, h100},
			ask(`, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].index == 7"}}]`),
			"gpu tflops-989 . . . . . . any"},
		{"only those with so much memory", 4, []clustertest.SimNode{t4, h100, l40s},
			ask(", capacity: {requests: {memory: 40Gi}}"), "gpu tflops-989 . . . . . . any"},
		{"a replica of a stronger GPU is no whole GPU", 4, []clustertest.SimNode{{Name: "h", Profile: "dgx-h100",
			Use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 10}}, {Name: "a", Profile: "dgx-a100"}, t4},
			ask(""), "gpu tflops-312 . . . . . . any"},
		{"nor of the same model", 4, []clustertest.SimNode{{Name: "r", Profile: "dgx-h100",
			Use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 10}}, h100, t4}, ask(""),
			"gpu tflops-989 . . . . . . any"},
		{"administrators see what is there", 4, []clustertest.SimNode{t4, h100}, ask(", adminAccess: true"),
			"gpu exactly"},
		{"all GPUs of a node stay all", 4, []clustertest.SimNode{t4, h100}, ask(", allocationMode: All"),
			"gpu exactly"},
		{"no room for one selector more", 4, []clustertest.SimNode{t4, h100},
			ask(`, selectors: [` + strings.Join(slices.Repeat([]string{`{cel: {expression: "true"}}`}, 32), ", ") +
				`]`), "gpu exactly"},
		{"another class", 4, []clustertest.SimNode{t4, h100},
			`requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]`, "gpu exactly"},
		{"a list of the user's own", 4, []clustertest.SimNode{t4, h100},
			`requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: ` + class + `}]}]`, "gpu a"},
		{"beside others", 4, []clustertest.SimNode{t4, h100},
			`requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: ` +
				class + `}}]`,
			"a exactly; b tflops-989 . . . . . . any"},
		{"four requests have fewer ranks", 4, []clustertest.SimNode{t4, h100, l40s}, "requests: [" + requests(4) + "]",
			strings.Join(slices.Repeat([]string{"r tflops-989 . . . . . . any"}, 4), "; ")},
		{"seven have none", 4, []clustertest.SimNode{t4, h100, l40s}, "requests: [" + requests(7) + "]",
			strings.Join(slices.Repeat([]string{"r exactly"}, 7), "; ")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := clustertest.Claim(t, tc.devices)
			before := names(claim)
			e := Expander{View: clustertest.New(t, tc.cluster...), Class: class, Ranks: tc.ranks}
			changed := e.Expand(t.Context(), &claim.Spec)
			if got := names(claim); got != tc.want || changed != (got != before) {
				t.Errorf("got %s (changed: %t), want %s", got, changed, tc.want)
			}
			if e.Expand(t.Context(), &claim.Spec) {
				t.Error("expanded a second time")
			}
		})
	}
}

func TestUnranked(t *testing.T) {
	e := Expander{View: clustertest.New(t, clustertest.SimNode{Name: "h", Profile: "dgx-h100"},
		clustertest.SimNode{Name: "t", Profile: "t4-x2"}), Class: class, Ranks: 4}
	own := clustertest.Claim(t, `requests: [{name: gpu, firstAvailable: [{name: two, deviceClassName: `+class+
		`, count: 2}, {name: mig, deviceClassName: mig.nvidia.com}]}]`)
	got := e.Unranked(&own.Spec, field.NewPath("spec"))
	if want := "spec.devices.requests[0].firstAvailable[0].deviceClassName: " + class +
		" stands for any whole GPU in a list: ranked is a request that names it under exactly"; !slices.Equal(got,
		[]string{want}) {
		t.Errorf("got %q, want %q", got, want)
	}
	ranked := clustertest.Claim(t, ask(""))
	if !e.Expand(t.Context(), &ranked.Spec) {
		t.Fatal("not expanded")
	}
	for _, claim := range []*resourceapi.ResourceClaim{ranked, clustertest.Claim(t, ask("")),
		clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]")} {
		if got := e.Unranked(e.Collapse(&claim.Spec), field.NewPath("spec")); len(got) > 0 {
			t.Errorf("%s: got %q, want nothing", names(claim), got)
		}
	}
}

// The class itself accepts no replicas and no unlimited GPUs, so neither does any alternative, and neither does a claim
// that is not ranked.
func TestClassAcceptsNoReplicas(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "r", Profile: "dgx-h100",
		Use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 10}},
		clustertest.SimNode{Name: "h", Profile: "l40s-x4"},
		clustertest.SimNode{Name: "u", Profile: "t4-x2", Use: gpu.SharingMode{Sharing: gpu.Unlimited}})
	c, _ := v.Class(class)
	for _, kind := range v.Kinds() {
		accepted := v.AcceptsAll(t.Context(), kind, c.Spec.Selectors)
		if want := kind.Type() == gpu.TypeGPU && kind.Sharing() == "fractional"; accepted != want {
			t.Errorf("%s (%s): got accepted: %t, want %t", kind, kind.Sharing(), accepted, want)
		}
	}
}

func requests(n int) string {
	return strings.Join(slices.Repeat([]string{"{name: r, exactly: {deviceClassName: " + class + "}}"}, n), ", ")
}

// Every subrequest asks for what the request asked for. Each but the last is limited to one rank.
func TestExpandKeepsTheRequest(t *testing.T) {
	claim := clustertest.Claim(t, ask(
		`, count: 2, capacity: {requests: {memory: 10Gi}}, tolerations: [{key: a, operator: Exists}], selectors: [{cel: {expression: "true"}}]`)+
		"\nconstraints: [{requests: [gpu], matchAttribute: gpu.nvidia.com/nvlinkDomain}]")
	before := claim.DeepCopy()
	e := Expander{View: clustertest.New(t, clustertest.SimNode{Name: "h", Profile: "dgx-h100"},
		clustertest.SimNode{Name: "t", Profile: "t4-x2"}), Class: class, Ranks: 4}
	if !e.Expand(t.Context(), &claim.Spec) {
		t.Fatal("not expanded")
	}
	if got := e.Collapse(&claim.Spec); !reflect.DeepEqual(*got, before.Spec) {
		t.Errorf("collapsed: got %+v, want %+v", *got, before.Spec)
	}
	was, list := before.Spec.Devices.Requests[0].Exactly, claim.Spec.Devices.Requests[0].FirstAvailable
	if len(list) != maxAlternatives {
		t.Fatalf("got %d alternatives, want %d", len(list), maxAlternatives)
	}
	for i, sub := range []resourceapi.DeviceSubRequest{list[0], list[7]} {
		rank := []string{"device.driver == 'gpu.nvidia.com' && " +
			"device.attributes['gpu.nvidia.com'].?peakCompute.orValue(0) == 989", ""}[i]
		if sub.Count != 2 || !reflect.DeepEqual(sub.Capacity, was.Capacity) || !reflect.DeepEqual(sub.Tolerations,
			was.Tolerations) || sub.Selectors[0] != was.Selectors[0] && sub.Selectors[0].CEL.Expression != "true" {
			t.Errorf("%s: got %+v, want all that the request had: %+v", sub.Name, sub, was)
		}
		var own []string
		for _, s := range sub.Selectors[1:] {
			own = append(own, s.CEL.Expression)
		}
		if strings.Join(own, "") != rank {
			t.Errorf("%s: got selectors %q, want %q", sub.Name, own, rank)
		}
	}
	claim.Spec.Devices.Requests, before.Spec.Devices.Requests = nil, nil
	if !reflect.DeepEqual(claim.Spec, before.Spec) {
		t.Errorf("got %+v, want nothing else changed", claim.Spec)
	}
}

// A subrequest has all fields of a request, except those that prevent expansion. A new field of the API fails here.
func TestAlternativesHaveAllFields(t *testing.T) {
	fields := func(of any) (all []string) {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
			all = append(all, f.Name)
		}
		slices.Sort(all)
		return all
	}
	want := slices.DeleteFunc(fields(resourceapi.ExactDeviceRequest{}),
		func(name string) bool { return name == "AdminAccess" })
	got := slices.DeleteFunc(fields(resourceapi.DeviceSubRequest{}), func(name string) bool { return name == "Name" })
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: copy the new one in list", got, want)
	}
	if known := []string{"AllocationMode", "Capacity", "Count", "DerivedAttributes", "DeviceClassName", "Selectors",
		"Tolerations"}; !slices.Equal(got, known) {
		t.Errorf("got %v, want %v: copy the new one in list, then name it here", got, known)
	}
}

// The table of positions is optimal: the smallest ratio of neighboring scores is as large as possible.
func TestPositions(t *testing.T) {
	smallest := func(at []int) float64 {
		ratio := 100.0
		for i := 1; i < len(at); i++ {
			ratio = min(ratio, float64(maxAlternatives-at[i-1])/float64(maxAlternatives-at[i]))
		}
		return ratio
	}
	for n := 2; n <= maxAlternatives; n++ {
		best := 0.0
		for set := range 1 << maxAlternatives {
			var at []int
			for i := range maxAlternatives {
				if set>>i&1 == 1 {
					at = append(at, i)
				}
			}
			if len(at) == n {
				best = max(best, smallest(at))
			}
		}
		if got := smallest(positions[n]); len(positions[n]) != n || got != best {
			t.Errorf("%d ranks at %v: the smallest ratio is %.2f, want %.2f", n, positions[n], got, best)
		}
	}
}

func TestRank(t *testing.T) {
	for _, tc := range []struct {
		tiers string // strongest first; a capital letter has room
		most  int
		want  string
	}{
		{"ABC", 4, "A B C"},
		{"ABCDEFGH", 4, "A B C DEFGH"},
		{"ABCDEFGH", 8, "A B C D E F G H"},
		{"aBCDE", 4, "a B C DE"},
		{"abcDEFGH", 4, "abc D E FGH"},
		{"abcdefgH", 4, "a b cdefg H"},
		{"abcdefGh", 4, "a bcdef G h"},
		{"abcde", 4, "a b c de"},
		{"aBcDe", 2, "aB cDe"},
		{"abcD", 2, "abc D"},
		{"ABC", 2, "A BC"},
		{"abcdefghI", 8, "a b c d e f gh I"},
	} {
		var tiers []tier
		for i, letter := range tc.tiers {
			tiers = append(tiers, tier{peak: int64(100 - i), free: letter < 'a'})
		}
		var got []string
		for _, rank := range rank(tiers, tc.most) {
			text := ""
			for _, t := range rank {
				text += string(tc.tiers[100-t.peak])
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s in %d: got %s, want %s", tc.tiers, tc.most, strings.Join(got, " "), tc.want)
		}
	}
}

// Allocated devices are not free, and neither are those that earlier claims are about to get.
func TestFreeDevices(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "h", Profile: "dgx-h100"}, clustertest.SimNode{Name: "t",
		Profile: "t4-x2"})
	e := Expander{View: v, Class: class, Ranks: 4}
	room := func(count int64, tolerations ...resourceapi.DeviceToleration) string {
		var text []string
		spec := clustertest.Claim(t, ask("")).Spec
		asked := cluster.Subrequests(&spec)[0]
		*asked.Count, *asked.Tolerations = count, tolerations
		tiers := e.tiers(t.Context(), asked)
		e.findFree(tiers, asked)
		for _, t := range tiers {
			text = append(text, fmt.Sprintf("%d:%t", t.peak, t.free))
		}
		return strings.Join(text, " ")
	}
	same := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	same("all are free", room(1), "989:true 65:true")
	same("nobody has nine of them", room(9), "989:false 65:false")
	var taken []*cluster.GPU
	for g := range v.GPUs {
		if g.Node == "h" {
			taken = append(taken, g)
		}
	}
	for i, g := range taken[:7] {
		c := clustertest.Claim(t, "")
		c.Name = fmt.Sprint(i)
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: clustertest.Driver, Pool: g.Node, Device: g.Name}}}}
		v.SetClaim(c)
	}
	same("one is left", room(1), "989:true 65:true")
	same("not two", room(2), "989:false 65:true")
	waiting := clustertest.Claim(t, ask(""))
	waiting.Name = "waiting"
	waiting.CreationTimestamp = metav1.Now()
	v.SetClaim(waiting)
	same("somebody waits for it", room(1), "989:false 65:true")
	v.DeleteClaim(types.NamespacedName{Namespace: waiting.Namespace, Name: waiting.Name})
	v.SetTaintRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: ptr.To("h")},
		Taint: resourceapi.DeviceTaint{Key: cluster.ReservedTaint, Value: "vision",
			Effect: resourceapi.DeviceTaintEffectNoSchedule}}})
	same("it is kept for a team", room(1), "989:false 65:true")
	same("the team asks", room(1, resourceapi.DeviceToleration{Key: cluster.ReservedTaint,
		Operator: resourceapi.DeviceTolerationOpExists}), "989:true 65:true")
}
