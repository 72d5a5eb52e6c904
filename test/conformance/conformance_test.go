// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// results runs the checks with these IDs, or all, and returns the results by ID.
func results(t *testing.T, config Config, access Access, only ...string) map[string]Result {
	t.Helper()
	config.Only = only
	byID := map[string]Result{}
	must(t, Run(t.Context(), config, access, func(r Result) { byID[r.ID] = r }))
	return byID
}

// TestSound: no check fails with a driver that does all right, and these do not apply to it.
func TestSound(t *testing.T) {
	t.Parallel()
	_, config, access := newWorld(t, deviceCap, faults{})
	config.Timeout = time.Minute
	for id, r := range results(t, config, access) {
		want := Pass
		if id == "share-id" || id == "generation-rises" {
			want = Skip
		}
		if r.Status != want {
			t.Errorf("%s: got %s (%s), want %s", id, r.Status, r.Detail, want)
		}
	}
}

// A node with one device: what needs two is skipped.
func TestOneDevice(t *testing.T) {
	t.Parallel()
	_, config, access := newWorld(t, 1, faults{})
	config.Timeout = time.Minute
	for id, r := range results(t, config, access) {
		if r.Status == Fail {
			t.Errorf("%s: %s", id, r.Detail)
		}
	}
}

// fault is what a driver does wrong, and the check that must see it.
type fault struct {
	name   string
	faults faults
	// slices changes what is published, and returns more slices.
	slices func(*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice
	check  string
	says   string
}

var planted = []fault{
	{"no device", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Spec.Devices = nil
		return nil
	}, "slices-published", "have no device"},
	{"an attribute that the class needs is missing", faults{}, func(
		s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Annotations = map[string]string{"class": "device.attributes['" + driverName + "'].type == 'gpu'"}
		return nil
	}, "class-selects", "no such key: type"},
	{"the class selects nothing", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Annotations = map[string]string{"class": "false"}
		return nil
	}, "class-selects", "selects none of 4"},
	{"a slice is missing", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Spec.Pool.ResourceSliceCount = 2
		return nil
	}, "pool-complete", "there are 1 slices"},
	{"a slice of an old generation stays", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		old := slice("slice-0", 1)
		old.Spec.Pool.Generation = 0
		return []*resourceapi.ResourceSlice{old}
	}, "pool-generation", "has generation 0"},
	{"two nodes write one pool", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		other := slice("slice-0", 1)
		other.Spec.NodeName = ptr.To("node-2")
		return []*resourceapi.ResourceSlice{other}
	}, "pool-node", "are not of the same node"},
	{"a device is there twice", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		return []*resourceapi.ResourceSlice{slice("slice-0", 1)}
	}, "device-names", "device dev-0 is in slice-0 and in slice-1"},
	{"too many devices", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		*s = *slice(s.Name, 65)
		s.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "a"}}
		return nil
	}, "slice-limits", "65 devices, more than 64"},
	{"too many attributes", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Spec.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for i := range 33 {
			s.Spec.Devices[0].Attributes[resourceapi.QualifiedName(fmt.Sprint("a", i))] = resourceapi.DeviceAttribute{}
		}
		return nil
	}, "slice-limits", "33 attributes"},
	{"a counter that is not there", faults{}, consumes("other", "1"), "counters", "which is not there"},
	{"more of a counter than there is", faults{}, consumes("memory", "9"), "counters", "can never be allocated"},
	{"a counter set twice", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set"}, {Name: "set"}}
		return nil
	}, "counters", "two counter sets set"},
	{"no owner", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.OwnerReferences = nil
		return nil
	}, "slice-owner", "no owner reference"},
	{"a NUMA node as text", faults{}, func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Spec.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/numaNode": {StringValue: ptr.To("0")}}
		return nil
	}, "standard-attributes", "of another type"},

	{"Prepare fails", faults{refusesAll: true}, nil, "pod-starts", "FailedPrepareDynamicResources"},
	{"Unprepare fails", faults{neverUnprepares: true}, nil, "pod-ends", "ends: not within"},
	{"Prepare fails", faults{refusesAll: true}, nil, "pods-at-once", "FailedPrepareDynamicResources"},
	{"containers see all devices", faults{sharesEverything: true}, nil, "pods-at-once", "see the same"},
	{"a second pod is refused", faults{refusesSecondPod: true}, nil, "shared-claim", "in use"},
	{"Unprepare fails", faults{neverUnprepares: true, leaks: true}, nil, "force-deleted", "not within"},

	{"another device", faults{wrongDevice: true}, nil, "prepare-answers", "prepared [node-1/other for request device]"},
	{"one answer", faults{answersOnce: true}, nil, "prepare-several", "has no answer"},
	{"a second Prepare fails", faults{prepareTwice: true}, nil, "prepare-twice", "the second time"},
	{"a second Prepare has another answer", faults{prepareTwiceOther: true}, nil, "prepare-twice", "first"},
	{"Prepare after Unprepare fails", faults{prepareAgain: true}, nil, "prepare-again", "after Unprepare"},
	{"the UID is not compared", faults{ignoresUID: true}, nil, "prepare-uid", "with another UID is prepared"},
	{"a second Unprepare fails", faults{unprepareUnknown: true}, nil, "unprepare-twice", "the second time"},
	{"an unknown claim", faults{unprepareUnknown: true}, nil, "unprepare-unknown", "claim unknown: not now"},
	{"Unprepare reads the claim", faults{unprepareNeedsAPI: true}, nil, "unprepare-deleted", "no such claim"},
	{"one call at a time", faults{exclusiveCalls: true}, nil, "calls-at-once", "not now"},
	{"no share ID", faults{dropsShareID: true}, nil, "share-id", "prepared [], allocated [node-1/dev-0 share"},
	{"a CDI device twice", faults{duplicateCDI: true}, nil, "cdi-names", "is there twice"},
	{"an unqualified CDI device", faults{cdiName: "gpu-0"}, nil, "cdi-names", "is not a name"},
	{"no CDI file", faults{noCDIFile: true}, nil, "cdi-resolves", "no file in the CDI directory defines"},
	{"the CDI file stays", faults{keepsCDIFile: true}, nil, "cdi-removed", "still defines"},
	{"the CDI file is not written again", faults{trustsRecord: true}, nil, "cdi-recreated", "no file"},
	{"a forgotten claim keeps its device", faults{leaks: true}, nil, "forgotten-claim", "in use by"},

	{"the plugin's restart ends pods", faults{restartsContainers: true}, nil, "plugin-restart", "was restarted"},
	{"the plugin's restart publishes nothing", faults{losesDevices: true}, nil, "plugin-restart", "missing"},
	{"the plugin's restart loses claims", faults{forgetsOnRestart: true}, nil, "plugin-restart", "ends: not within"},
	{"the plugin's restart publishes what was not there", faults{findsDevices: true}, nil, "plugin-restart",
		"new: [node-1/new]"},
	{"Prepare fails", faults{refusesAll: true}, nil, "plugin-restart-start", "not now"},
	{"no plugin while it is replaced", faults{refusesInUpgrade: true}, nil, "upgrade-seamless", "no plugin"},
	{"Unprepare fails", faults{neverUnprepares: true}, nil, "plugin-restart-end", "not within"},
	{"the plugin's restart writes slices", faults{rewritesSlices: true}, nil, "plugin-restart-quiet", "slice-1@111"},
	{"the kubelet's restart ends pods", faults{restartsContainers: true}, nil, "kubelet-restart", "was restarted"},
	{"an upgrade loses claims", faults{forgetsOnRestart: true}, nil, "plugin-upgrade", "ends: not within"},

	{"admin access takes the device", faults{adminTakes: true}, nil, "admin-access", "and now all"},
	{"no status", faults{noStatus: true}, nil, "device-status", "writes no status"},
	{"a status of another device", faults{wrongStatus: true}, nil, "device-status", "allocated are"},
	{"no health service", faults{noHealth: true}, nil, "health", "no health service"},
	{"no device in the health", faults{emptyHealth: true}, nil, "health", "has no device"},
	{"health of another device", faults{healthOfOthers: true}, nil, "health", "which no slice has"},
	{"a tainted pod stays", faults{ignoresTaint: true}, nil, "taints", "is evicted: not within"},
	{"pods without claims do not start", faults{noExtended: true}, nil, "extended-resource", "not within"},
	{"no metadata", faults{noMetadata: true}, nil, "metadata", "the container has no"},
	{"metadata of another device", faults{wrongMetadata: true}, nil, "metadata", "the metadata is of"},
	{"parameters are refused", faults{refusesAll: true}, nil, "config-accepted", "not now"},
	{"parameters are not read", faults{acceptsAll: true}, nil, "config-refused", "a pod runs with"},
	{"wrong parameters end the plugin", faults{crashesOnRefusal: true}, nil, "config-refused", "not now"},
	{"alternatives have no parameters", faults{dropsAlternatives: true}, nil, "config-alternatives", "a pod runs with"},
	{"alternatives have no parameters, by what containers see", faults{dropsAlternatives: true, showsParameters: true},
		nil, "config-alternatives", "parameters=false"},
	{"any node", faults{anyNode: true}, nil, "own-node", "may write slices of another node"},
	{"one sick device taints all", faults{sickTaintsAll: true}, nil, "sick-device", "all devices of the node unusable"},
	{"a restart heals", faults{sickForgotten: true}, nil, "sick-device", "after a restart"},
	{"a device stays sick", faults{neverWell: true}, nil, "sick-device", "is usable again"},
}

// consumes lets a device consume an amount of a counter of a set that has 8 of memory.
func consumes(counter, amount string) func(*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	return func(s *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set",
			Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("8")}}}}
		s.Spec.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "set",
			Counters: map[string]resourceapi.Counter{counter: {Value: resource.MustParse(amount)}}}}
		return nil
	}
}

// TestPlanted: each check fails on a fault of its kind.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for _, p := range planted {
		t.Run(p.check+"/"+p.name, func(t *testing.T) {
			t.Parallel()
			w, config, access := newWorld(t, deviceCap, p.faults)
			config.Claimed = []string{p.check}
			if p.slices != nil {
				w.publish(func(s *resourceapi.ResourceSlice) {
					for _, more := range p.slices(s) {
						must(t, w.client.Tracker().Add(more))
					}
					w.setSelector(t, s.Annotations["class"])
				})
			}
			got := results(t, config, access, p.check)[p.check]
			if got.Status != Fail || !strings.Contains(got.Detail, p.says) {
				t.Errorf("got %s: %s, want fail with %q", got.Status, got.Detail, p.says)
			}
		})
	}
}

// TestEveryCheckCanFail: each check has a planted fault. TestGenerationRises has the one that needs two looks.
func TestEveryCheckCanFail(t *testing.T) {
	for _, id := range IDs() {
		if id != "generation-rises" && !slices.ContainsFunc(planted, func(p fault) bool { return p.check == id }) {
			t.Errorf("%s has no planted fault", id)
		}
	}
}

func TestGenerationRises(t *testing.T) {
	for _, test := range []struct {
		name       string
		generation int64
		want       string
	}{
		{"another generation", 2, ""},
		{"the same generation", 1, "generation 1 had 1 slices and then 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &suite{history: map[string][]seen{}}
			s.observe([]resourceapi.ResourceSlice{*slice("a", 1)})
			a, b := slice("a", 1), slice("b", 0)
			for _, one := range []*resourceapi.ResourceSlice{a, b} {
				one.Spec.Pool.Generation, one.Spec.Pool.ResourceSliceCount = test.generation, 2
			}
			s.observe([]resourceapi.ResourceSlice{*a, *b})
			_, err := generationRises(t.Context(), s)
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestOthersHoldDevices: devices that others hold are not asked for.
func TestOthersHoldDevices(t *testing.T) {
	t.Parallel()
	w, config, access := newWorld(t, deviceCap, faults{})
	other := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "other"}}
	other.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driverName, Pool: nodeName, Device: "dev-0"}}}}
	must(t, w.client.Tracker().Add(other))
	got := results(t, config, access, "pods-at-once")["pods-at-once"]
	if got.Status != Pass || got.Detail != "3 pods" {
		t.Errorf("got %s: %s, want 3 pods", got.Status, got.Detail)
	}
}

// TestOptional: a feature that the driver does not have is skipped, and fails only if the driver claims it.
func TestOptional(t *testing.T) {
	t.Parallel()
	_, config, access := newWorld(t, deviceCap, faults{noStatus: true})
	for _, claimed := range []bool{false, true} {
		want := Skip
		if config.Claimed = nil; claimed {
			config.Claimed, want = []string{"device-status"}, Fail
		}
		got := results(t, config, access, "device-status")["device-status"]
		if got.Status != want || Failed([]Result{got}, config.Claimed) != claimed {
			t.Errorf("claimed %v: got %s, want %s", claimed, got.Status, want)
		}
	}
}

// TestPage: the page has a row for each check, with its level.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/project/conformance.md")
	must(t, err)
	for _, c := range checks {
		if row := fmt.Sprintf("\n| `%s` | %s | ", c.id, c.level); strings.Count(string(page), row) != 1 {
			t.Errorf("the page does not have the row %q once", row)
		}
	}
}

func TestUnknownCheck(t *testing.T) {
	err := Run(t.Context(), Config{Only: []string{"nonsense"}}, Access{}, nil)
	if !errors.Is(err, ErrUnknownCheck) {
		t.Errorf("got %v, want %v", err, ErrUnknownCheck)
	}
}

func TestReport(t *testing.T) {
	all := []Result{{ID: "a", Level: Required, Status: Pass}, {ID: "b", Level: Optional, Expect: "It works.",
		By: "KEP-1", Status: Fail, Detail: "first\nsecond"}}
	if Failed(all, nil) {
		t.Error("an optional check that fails is not told as optional")
	}
	if !Failed(append(slices.Clone(all), Result{Level: Required, Status: Fail}), nil) {
		t.Error("a required check that fails is not told")
	}
	var text, object bytes.Buffer
	must(t, WriteText(&text, all))
	const want = `CHECK  LEVEL     RESULT  DETAIL
a      required  pass    
b      optional  fail    first

b (optional): It works.
  expected by: KEP-1
  seen: first
  second

1 passed, 1 failed, 0 skipped
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	must(t, WriteJSON(&object, all))
	var back []Result
	must(t, json.Unmarshal(object.Bytes(), &back))
	if !slices.Equal(back, all) {
		t.Errorf("got %v, want %v", back, all)
	}
}
