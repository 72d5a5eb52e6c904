// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

const gpuDriver = "gpu.nvidia.com"

// The plugin of node n-1 writes slices of its two pools and no others.
func TestOwnNodePolicyOfSlices(t *testing.T) {
	policy := policyOf(t, "gpu-dra-driver-own-node-slices")
	slice := func(node, driver, pool string) any {
		return asJSON(t, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{NodeName: &node, Driver: driver,
			Pool: resourceapi.ResourcePool{Name: pool}}})
	}
	for _, row := range []struct {
		name          string
		before, after any // nil: it is created, or deleted
		want          string
	}{
		{"GPUs", nil, slice("n-1", gpuDriver, "n-1"), ""},
		{"the monitor device", nil, slice("n-1", gpuDriver, "n-1/monitor"), ""},
		{"an update of the monitor device", slice("n-1", gpuDriver, "n-1/monitor"),
			slice("n-1", gpuDriver, "n-1/monitor"), ""},
		{"the monitor device goes", slice("n-1", gpuDriver, "n-1/monitor"), nil, ""},
		{"another pool of the node", nil, slice("n-1", gpuDriver, "n-1/gpus"),
			"in the pools of that node: n-1, n-1/monitor"},
		{"another node's monitor device", nil, slice("n-1", gpuDriver, "n-2/monitor"), "in the pools of that node"},
		{"a node whose name begins like this one's", nil, slice("n-1", gpuDriver, "n-1.example.com"),
			"in the pools of that node"},
		{"another node", nil, slice("n-2", gpuDriver, "n-2/monitor"), "only the ResourceSlices of that node"},
		{"another driver", nil, slice("n-1", "gpu.example.com", "n-1/monitor"),
			"only ResourceSlices of driver " + gpuDriver},
	} {
		t.Run(row.name, func(t *testing.T) {
			requireAnswer(t, policy.answer(t, "n-1", row.before, row.after), row.want)
		})
	}
	requireAnswer(t, policy.answer(t, "", nil, slice("", gpuDriver, "")), "bound to no node")
}

// The plugin of node n-1 writes the status of devices of its two pools.
func TestOwnNodePolicyOfClaims(t *testing.T) {
	policy := policyOf(t, "gpu-dra-driver-own-node-claims")
	claim := func(allocated string, devices ...string) any {
		var c resourceapi.ResourceClaim
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: gpuDriver, Pool: allocated, Device: "d"}}}}
		for _, pool := range devices {
			c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: gpuDriver, Pool: pool,
				Device: "d"})
		}
		return asJSON(t, c)
	}
	for _, row := range []struct {
		name          string
		before, after any
		want          string
	}{
		{"a GPU", claim("n-1"), claim("n-1", "n-1"), ""},
		{"the monitor device", claim("n-1/monitor"), claim("n-1/monitor", "n-1/monitor"), ""},
		{"the status of both", claim("n-1", "n-1"), claim("n-1", "n-1", "n-1/monitor"), ""},
		{"another node's monitor device", claim("n-2/monitor"), claim("n-2/monitor", "n-2/monitor"),
			"only of claims with a device of driver " + gpuDriver + " on that node"},
		{"what another node says", claim("n-1"), claim("n-1", "n-1", "n-2/monitor"),
			"what status.devices says of its own"},
		{"the allocation", claim("n-1"), claim("n-1/monitor"), "what status.devices says of its own"},
	} {
		t.Run(row.name, func(t *testing.T) {
			requireAnswer(t, policy.answer(t, "n-1", row.before, row.after), row.want)
		})
	}
}

// The plugin of node n-1 writes events that name this node, about claims and about the node.
func TestOwnNodePolicyOfEvents(t *testing.T) {
	policy := policyOf(t, "gpu-dra-driver-own-node-events")
	event := func(from, about, name, node string) any {
		return asJSON(t, eventsv1.Event{ReportingController: from,
			Regarding: corev1.ObjectReference{Kind: about, Name: name},
			Related:   &corev1.ObjectReference{Kind: "Node", Name: node}})
	}
	for _, row := range []struct {
		name          string
		before, after any
		want          string
	}{
		{"about the node", nil, event(gpuDriver, "Node", "n-1", "n-1"), ""},
		{"about a claim", nil, event(gpuDriver, "ResourceClaim", "c", "n-1"), ""},
		{"it happens again", event(gpuDriver, "ResourceClaim", "c", "n-1"),
			event(gpuDriver, "ResourceClaim", "c", "n-1"), ""},
		{"of another node", nil, event(gpuDriver, "ResourceClaim", "c", "n-2"), "may write only events of its own"},
		{"of no node", nil, asJSON(t, eventsv1.Event{ReportingController: gpuDriver,
			Regarding: corev1.ObjectReference{Kind: "ResourceClaim", Name: "c"}}), "may write only events of its own"},
		{"of the kubelet", nil, event("kubelet", "ResourceClaim", "c", "n-1"), "may write only events of its own"},
		{"another node's becomes its own", event(gpuDriver, "ResourceClaim", "c", "n-2"),
			event(gpuDriver, "ResourceClaim", "c", "n-1"), "may write only events of its own"},
		{"the kubelet's becomes its own", event("kubelet", "ResourceClaim", "c", "n-1"),
			event(gpuDriver, "ResourceClaim", "c", "n-1"), "may write only events of its own"},
		{"about another node", nil, event(gpuDriver, "Node", "n-2", "n-1"), "only events about claims, their"},
		{"about a pod", nil, event(gpuDriver, "Pod", "p", "n-1"), ""},
		{"about a secret", nil, event(gpuDriver, "Secret", "s", "n-1"), "only events about claims, their"},
	} {
		t.Run(row.name, func(t *testing.T) {
			requireAnswer(t, policy.answer(t, "n-1", row.before, row.after), row.want)
		})
	}
	requireAnswer(t, policy.answer(t, "", nil, event(gpuDriver, "ResourceClaim", "c", "")), "bound to no node")
}

func requireAnswer(t *testing.T, got, want string) {
	t.Helper()
	if (got == "") != (want == "") || !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// policy is a ValidatingAdmissionPolicy.
type policy admissionv1.ValidatingAdmissionPolicySpec

// policyOf reads a policy of the chart.
func policyOf(t *testing.T, name string) policy {
	t.Helper()
	text := read(t, "testdata/default.golden.yaml") + "\n---\n" + read(t, "testdata/everything.golden.yaml")
	for document := range strings.SplitSeq(text, "\n---\n") {
		var found admissionv1.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(document), &found); err != nil {
			t.Fatal(err)
		}
		if found.Kind == "ValidatingAdmissionPolicy" && found.Name == name {
			return policy(found.Spec)
		}
	}
	t.Fatalf("the chart has no policy %s", name)
	return policy{}
}

// answer returns why a request of a node's plugin is refused; empty: it is not.
func (p policy) answer(t *testing.T, node string, before, after any) string {
	t.Helper()
	extra := map[string]any{}
	if node != "" {
		extra["authentication.kubernetes.io/node-name"] = []string{node}
	}
	variables := map[string]any{}
	input := map[string]any{"object": after, "oldObject": before, "variables": variables,
		"request": map[string]any{"userInfo": map[string]any{"extra": extra}}}
	for _, v := range p.Variables {
		variables[v.Name] = evaluate(t, v.Expression, input)
	}
	for _, v := range p.Validations {
		switch {
		case evaluate(t, v.Expression, input) == true:
		case v.MessageExpression != "":
			return evaluate(t, v.MessageExpression, input).(string)
		default:
			return v.Message
		}
	}
	return ""
}

// evaluate returns the value of an expression of a policy. Like the API server, it knows no types of objects.
func evaluate(t *testing.T, expression string, input map[string]any) any {
	t.Helper()
	env, err := cel.NewEnv(cel.OptionalTypes(), ext.Strings(), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
		cel.Variable("variables", cel.MapType(cel.StringType, cel.DynType)))
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := program.Eval(input)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value.Value()
}

func asJSON(t *testing.T, object any) any {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	return plain
}
