// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

// A pod is told when it is created what Prepare would refuse later, on every node.
func TestPods(t *testing.T) {
	const (
		gpu0   = "requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com"
		whole  = gpu0 + "}}]"
		share  = gpu0 + ", capacity: {requests: {memory: 5Gi}}}}]"
		none   = gpu0 + ", capacity: {requests: {memory: 500Gi}}}}]"
		refuse = "the pod would get devices and not start, because its node refuses it: container main: "
		limits = "a process has one set of limits and talks to one MPS daemon: use the device "
	)
	uses := func(container string, claims ...string) string {
		var all []string
		for _, name := range claims {
			all = append(all, "{name: "+name+", resourceClaimTemplateName: "+name+"}")
		}
		return "spec: {resourceClaims: [" + strings.Join(all, ", ") + "], volumes: [{name: shm, hostPath: {path: " +
			"/x}}, {name: empty, emptyDir: {}}], containers: [{name: main, " + container + "}]}"
	}
	const one, mount = "resources: {claims: [{name: share}]}", ", volumeMounts: [{name: shm, mountPath: /dev/shm}]"
	both := "resources: {claims: [{name: share}, {name: other}]}"
	gpus := "resources: {claims: [{name: share}], limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}"
	exclusive := clustertest.SimNode{Name: "b", Profile: "dgx-a100", Use: gpu.SharingMode{Sharing: gpu.Exclusive}}
	for _, row := range []struct {
		name, pod string
		beside    []clustertest.SimNode
		want      string // the warning, or its beginning; empty: none
	}{
		{"a share", uses(one, "share"), nil, ""},
		{"a share, and a volume of the host at /dev/shm", uses(one+mount, "share"), nil,
			refuse + "its volume shm at /dev/shm is no emptyDir: under MPS, the memory of the MPS daemon is mounted " +
				"there: use an emptyDir, or leave the volume out"},
		{"a share, and an emptyDir at /dev/shm", uses(one+strings.Replace(mount, "shm", "empty", 1), "share"), nil, ""},
		{"a whole GPU, and a volume of the host at /dev/shm",
			uses("resources: {claims: [{name: whole}]}"+mount, "whole"), nil, ""},
		{"two shares in one container", uses(both, "share", "other"), nil, refuse + "it also uses device "},
		{"two shares in two containers", strings.Replace(uses(one, "share", "other"), "containers: [",
			"containers: [{name: second, resources: {claims: [{name: other}]}}, ", 1), nil, ""},
		{"a share, and a GPU as an extended resource", uses(gpus, "share"), nil, refuse + "it also uses device "},
		{"two shares, where another node has no shares", uses(both, "share", "other"),
			[]clustertest.SimNode{exclusive}, ""},
		{"a template that is not there yet", uses("resources: {claims: [{name: later}]}"+mount, "later"), nil, ""},
		{"a share that no GPU has", uses("resources: {claims: [{name: none}]}"+mount, "none"), nil, ""},
		{"no pod", "spec: 5", nil, "400"},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := clustertest.New(t, append(row.beside, clustertest.SimNode{Name: "a", Profile: "t4-x2"})...)
			api := fake.NewClientBuilder()
			for name, devices := range map[string]string{"share": share, "other": share, "whole": whole, "none": none} {
				template := &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{
					Spec: clustertest.Claim(t, devices).Spec}}
				template.Namespace, template.Name = "ns", name
				api.WithObjects(template)
			}
			req := webhooktest.Request(t, "Pod", row.pod)
			req.Namespace = "ns"
			response := admission.Pods{View: v, Templates: api.Build()}.Handle(t.Context(), req)
			got := strings.Join(response.Warnings, "\n")
			if row.want == "400" {
				if response.Result.Code != 400 {
					t.Errorf("got %+v, want code 400", response.Result)
				}
				return
			}
			if !response.Allowed || !strings.HasPrefix(got, row.want) || (row.want == "") != (got == "") {
				t.Errorf("got allowed: %t, %q, want %q", response.Allowed, got, row.want)
			}
			if strings.HasSuffix(row.want, "device ") && !strings.Contains(got, limits) {
				t.Errorf("got %q, want %q in it", got, limits)
			}
		})
	}
	t.Run("a claim by name", func(t *testing.T) {
		v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
		v.SetClaim(cluster.SlimClaim(clustertest.Claim(t, share)))
		req := webhooktest.Request(t, "Pod", strings.ReplaceAll(uses(one+mount, "share"),
			"resourceClaimTemplateName: share", "resourceClaimName: claim"))
		req.Namespace = "ns"
		response := admission.Pods{View: v, Templates: fake.NewClientBuilder().Build()}.Handle(t.Context(), req)
		if len(response.Warnings) != 1 || !strings.HasPrefix(response.Warnings[0], refuse+"its volume shm") {
			t.Errorf("got %q", response.Warnings)
		}
	})
}
