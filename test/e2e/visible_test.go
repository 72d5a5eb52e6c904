//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/template"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// httpPort is the plugin's port for health and metrics in the chart.
const httpPort = 8081

func (s *suite) testVisible(t *testing.T) {
	ns := s.namespace(t, "visible")
	pod := s.running(t, s.pod(t, ns, "worker", withTemplate(s.template(t, ns, "one"))))
	key := client.ObjectKeyFromObject(pod)
	name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[0])
	s.must(t, err)
	device := s.allocatedDevice(t, ns, *name)
	uuid := *device.Attributes["uuid"].StringValue

	t.Run("status.devices of the claim", func(t *testing.T) {
		s.waitStatus(t, client.ObjectKey{Namespace: ns, Name: *name}, device.Name, uuid)
	})
	t.Run("metadata in the container", func(t *testing.T) {
		file := "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/" + *driver +
			"-metadata.json"
		got := s.run(t, key, "gpu-demo", "cat", file)
		got = strings.ReplaceAll(got, `": "`, `":"`)
		for _, want := range []string{`"name":"` + device.Name + `"`, uuid,
			*device.Attributes["productName"].StringValue,
			*device.Attributes["resource.kubernetes.io/pciBusID"].StringValue} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
	})
	t.Run("metrics and health of the plugin", func(t *testing.T) {
		plugin := client.ObjectKeyFromObject(s.plugin(t, pod.Spec.NodeName))
		for path, wants := range map[string][]string{
			"/healthz": {"ok"},
			"/readyz":  {"ok"},
			"/metrics": {`gpu_dra_operations_total{operation="prepare",result="success"}`,
				`gpu_dra_devices{state="published"}`,
				`gpu_dra_claims{phase="Prepared"} `, `gpu_dra_step_duration_seconds_bucket{step="write_record"`},
		} {
			body, err := s.HTTP(t.Context(), plugin, httpPort, path)
			s.must(t, err)
			for _, want := range wants {
				if !strings.Contains(body, want) {
					t.Errorf("%s: no %s in\n%s", path, want, body)
				}
			}
		}
	})
	t.Run("holders of GPUs, with one kubectl command", func(t *testing.T) {
		got := s.holdersTable(t)
		for _, want := range []string{
			fmt.Sprintf("%-12s %-20s %-24s  %s/%s", pod.Spec.NodeName, device.Name,
				*device.Attributes["productName"].StringValue, ns, *name),
			" free\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	})
}

// waitStatus waits until the claim's status has its device as ready with this UUID.
func (s *suite) waitStatus(t *testing.T, key client.ObjectKey, device, uuid string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, "the device in the claim's status", func(ctx context.Context) (bool, string,
		error) {
		var claim resourceapi.ResourceClaim
		if err := s.Get(ctx, key, &claim); err != nil {
			return false, "", err
		}
		for _, d := range claim.Status.Devices {
			var data struct{ UUID string }
			if d.Data == nil || d.Device != device {
				continue
			}
			if err := json.Unmarshal(d.Data.Raw, &data); err != nil {
				return false, "", err
			}
			if data.UUID == uuid && meta.IsStatusConditionTrue(d.Conditions, "Ready") {
				return true, "", nil
			}
		}
		return false, fmt.Sprint(claim.Status.Devices), nil
	}))
}

// holdersTable returns the output of kubectl with docs/gpus.gotmpl.
func (s *suite) holdersTable(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/gpus.gotmpl")
	s.must(t, err)
	table, err := template.New("gpus").Parse(string(text))
	s.must(t, err)
	var items []any
	for _, kind := range []string{"ResourceSlice", "ResourceClaim"} {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: kind + "List"})
		s.must(t, s.List(t.Context(), &list))
		for _, item := range list.Items {
			items = append(items, item.Object)
		}
	}
	var out strings.Builder
	s.must(t, table.Execute(&out, map[string]any{"items": items}))
	return out.String()
}
