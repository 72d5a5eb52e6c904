// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

func TestNewPlan(t *testing.T) {
	inv := inventory.New([]gpu.Device{{Name: "gpu-01-00-0", UUID: "GPU-1"}, {Name: "gpu-02-00-0", UUID: "GPU-2"}})
	train := Holder{Claim{"ml", "train", "uid-1"}, Plan{Assignments: []Assignment{{Device: "gpu-01-00-0"}}}}
	exporter := Holder{Claim{"ops", "exporter", "uid-2"}, Plan{Assignments: []Assignment{
		{Device: "monitor", AdminAccess: true}, {Device: "gpu-02-00-0", AdminAccess: true}}}}
	for _, row := range []struct {
		name    string
		results string // request=device; "!" at the end: with admin access
		others  []Holder
		want    string
	}{
		{"a free GPU is given", "a=gpu-01-00-0", nil, "a gpu-01-00-0 GPU-1"},
		{"two requests get two GPUs in their order", "b=gpu-02-00-0 a=gpu-01-00-0", nil,
			"b gpu-02-00-0 GPU-2\na gpu-01-00-0 GPU-1"},
		{"a claim on another GPU does not conflict", "a=gpu-02-00-0", []Holder{train}, "a gpu-02-00-0 GPU-2"},
		{"nothing allocated gives an empty plan", "", []Holder{train}, ""},
		{"a GPU in use is refused with its holder", "a=gpu-01-00-0", []Holder{train},
			"error: request a: device gpu-01-00-0 is held by claim ml/train (UID uid-1): device in use"},
		{"one GPU for two requests is refused", "a=gpu-01-00-0 b=gpu-01-00-0", nil,
			"error: request b: device gpu-01-00-0 is held by request a of the same claim: device in use"},
		{"a missing GPU is named", "a=gpu-03-00-0", nil,
			"error: request a: device gpu-03-00-0: no such device on this node"},
		{"the monitor device is not a GPU", "a=monitor!", nil, "a monitor admin"},
		{"the monitor device while a GPU is taken", "a=monitor!", []Holder{train}, "a monitor admin"},
		{"the monitor device while another claim has it", "a=monitor!", []Holder{exporter}, "a monitor admin"},
		{"two shares of the monitor device in one claim", "a=monitor! b=monitor!", nil,
			"a monitor admin\nb monitor admin"},
		{"a holder of the monitor device holds no GPU", "a=gpu-01-00-0", []Holder{exporter}, "a gpu-01-00-0 GPU-1"},
		{"the monitor device is refused without admin access", "a=monitor", nil,
			"error: request a: device monitor gives every GPU of the node: set adminAccess: true in the request, " +
				"in a namespace with the label resource.kubernetes.io/admin-access=true: device is for admin access " +
				"only"},
		{"admin access to a GPU in use", "a=gpu-01-00-0!", []Holder{train}, "a gpu-01-00-0 GPU-1 admin"},
		{"admin access to a GPU of the same claim", "a=gpu-01-00-0 b=gpu-01-00-0!", nil,
			"a gpu-01-00-0 GPU-1\nb gpu-01-00-0 GPU-1 admin"},
		{"admin access does not block other claims", "a=gpu-02-00-0", []Holder{exporter}, "a gpu-02-00-0 GPU-2"},
		{"admin access to a missing GPU", "a=gpu-03-00-0!", nil,
			"error: request a: device gpu-03-00-0: no such device on this node"},
		{"every problem is reported", "a=gpu-01-00-0 b=gpu-03-00-0", []Holder{train},
			"error: request a: device gpu-01-00-0 is held by claim ml/train (UID uid-1): device in use\n" +
				"request b: device gpu-03-00-0: no such device on this node"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := planText(NewPlan(parseResults(row.results), inv, row.others)); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestMonitorWithLostGPUs(t *testing.T) {
	inv := inventory.New([]gpu.Device{{Name: "gpu-01-00-0", UUID: "GPU-1", Lost: true}})
	want := "error: request a: device monitor: no such device on this node"
	if got := planText(NewPlan(parseResults("a=monitor!"), inv, nil)); got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
}

func TestFulfils(t *testing.T) {
	plan := Plan{Assignments: []Assignment{{Request: "a", Device: "gpu-01-00-0"},
		{Request: "b", Device: "gpu-02-00-0"}}}
	for results, want := range map[string]bool{
		"a=gpu-01-00-0 b=gpu-02-00-0":  true,
		"a=gpu-01-00-0":                false,
		"a=gpu-02-00-0 b=gpu-01-00-0":  false,
		"a=gpu-01-00-0 b=gpu-02-00-0!": false,
		"":                             false,
	} {
		if got := plan.Fulfils(parseResults(results)); got != want {
			t.Errorf("%q: got %t, want %t", results, got, want)
		}
	}
}

func parseResults(s string) []allocation.Result {
	var results []allocation.Result
	for pair := range strings.FieldsSeq(s) {
		request, device, _ := strings.Cut(pair, "=")
		device, admin := strings.CutSuffix(device, "!")
		results = append(results, allocation.Result{Request: request, Device: device, AdminAccess: admin})
	}
	return results
}

func planText(plan Plan, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for _, a := range plan.Assignments {
		line := strings.TrimSpace(fmt.Sprintf("%s %s %s", a.Request, a.Device, a.GPU))
		if a.AdminAccess {
			line += " admin"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
