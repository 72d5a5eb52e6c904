// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

const vcudaPod = `{apiVersion: v1, kind: Pod, metadata: {name: worker, namespace: ml, uid: u1}, spec: {unknownField: kept,
containers: [{name: main, image: i, resources: {limits: {cpu: 1, tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20},
requests: {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20}}}, {name: side, image: i}]}}`

// newWebhook returns a webhook in a cluster with these objects.
func newWebhook(t testing.TB, profile string, objects ...client.Object) *Webhook {
	t.Helper()
	v := clustertest.New(t)
	if profile != "" {
		v = clustertest.New(t, clustertest.SimNode{Name: "a", Profile: profile})
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).Build()
	return NewWebhook(Names(), v, cluster, cluster)
}

// A controller that cannot follow templates does not start: it would convert pods, and create nothing for them.
func TestAPIServerThatDoesNotAnswer(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	mgr, err := ctrl.NewManager(&rest.Config{Host: server.URL}, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	err = converter{Families: Names()}.add(&feature.Controller{Manager: mgr,
		ServeAlone: func(string, webhook.Handler) {}})
	if !utilnet.IsConnectionRefused(err) {
		t.Errorf("got %v, want that it refuses the connection", err)
	}
}

// admit returns the pod after the webhook, and its warnings.
func admit(t *testing.T, c *Webhook, pod string) (*corev1.Pod, []string) {
	t.Helper()
	req := webhooktest.Request(t, "Pod", pod)
	req.Operation = admissionv1.Create
	req.Namespace = "ml"
	got := c.Handle(t.Context(), req)
	if !got.Allowed {
		t.Fatalf("refused: %s", got.Result.Message)
	}
	var out corev1.Pod
	raw := webhooktest.Patched(t, req.Object.Raw, got)
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(pod, "unknownField") && !strings.Contains(string(raw), "unknownField") {
		t.Error("a field that this program does not know is gone")
	}
	return &out, got.Warnings
}

// reconciled reconciles the pod, which exists.
func reconciled(t *testing.T, c *Webhook, pod *corev1.Pod) {
	t.Helper()
	key := client.ObjectKeyFromObject(pod)
	if _, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
}

// eventsOf returns the events as "reason: message".
func eventsOf(t *testing.T, c *Webhook) (all []string) {
	t.Helper()
	var list corev1.EventList
	if err := c.direct.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		all = append(all, e.Reason+": "+e.Message)
	}
	return all
}

// Names that an administrator of an older system chose are converted, and removed again when the pod is applied again.
func TestConversionOfOwnNames(t *testing.T) {
	const own = `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ml}, spec: {containers: [{name: main, image: i,
resources: {limits: {nvidia.com/vgpu: "1", nvidia.com/gpumem: "3000"}}}]}}`
	c := newWebhook(t, "t4-x2")
	pod, warnings := admit(t, c, own)
	if len(pod.Spec.Containers[0].Resources.Limits) != 1 || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "nvidia.com/vgpu stays") {
		t.Errorf("without names: got %v and %q, want a warning", pod.Spec.Containers[0].Resources.Limits, warnings)
	}
	c.configured.Names = map[string]string{"nvidia.com/vgpu": "nvidia.com/gpu"}
	pod, warnings = admit(t, c, own)
	if len(pod.Spec.Containers[0].Resources.Limits) != 0 || len(warnings) != 0 {
		t.Errorf("with names: got %v and %q", pod.Spec.Containers[0].Resources.Limits, warnings)
	}
	if got := pod.Annotations[originalAnnotation]; got !=
		`{"main":{"nvidia.com/gpumem":"3k","nvidia.com/vgpu":"1"}}` {
		t.Errorf("got %s", got)
	}
	again := map[string]any{}
	if err := yaml.Unmarshal([]byte(own), &again); err != nil {
		t.Fatal(err)
	}
	changed, err := c.converter().restore(again, pod)
	if !changed || err != nil || strings.Contains(fmt.Sprint(again), "nvidia.com/") {
		t.Errorf("applied again: got %v, error %v", again, err)
	}
}

// A pod that asks for nothing known is created as it is, with a warning if it asks for GPUs by other names.
func TestConversionOfUnknownNames(t *testing.T) {
	pod, warnings := admit(t, newWebhook(t, "t4-x2"), `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ml}, spec:
{containers: [{name: main, image: i, resources: {limits: {xx/vcuda-core: "1", example.com/nic: "1"}}}]}}`)
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "container main: xx/vcuda-core stays in its resources") {
		t.Errorf("got warnings %q", warnings)
	}
	if pod.Labels[FamilyLabel] != "" {
		t.Errorf("got label %q", pod.Labels[FamilyLabel])
	}
}

func TestConversion(t *testing.T) {
	c := newWebhook(t, "t4-x2")
	pod, warnings := admit(t, c, vcudaPod)
	if len(warnings) > 0 {
		t.Errorf("got warnings %q", warnings)
	}
	template := ptr.Deref(pod.Spec.ResourceClaims[0].ResourceClaimTemplateName, "")
	want := fmt.Sprintf(`containers:
- image: i
  name: main
  resources:
    claims:
    - name: converted-gpu
      request: main
    limits:
      cpu: "1"
- image: i
  name: side
  resources: {}
resourceClaims:
- name: converted-gpu
  resourceClaimTemplateName: %s
`, template)
	if got, err := yaml.Marshal(pod.Spec); err != nil || string(got) != want {
		t.Errorf("got %s\nwant %s (error %v)", got, want, err)
	}
	if pod.Labels[FamilyLabel] != "gpu-manager" || pod.Annotations[originalAnnotation] !=
		`{"main":{"tencent.com/vcuda-core":"30","tencent.com/vcuda-memory":"20"}}` {
		t.Errorf("got labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
	var none resourceapi.ResourceClaimTemplateList
	if err := c.direct.List(t.Context(), &none); err != nil || len(none.Items) > 0 {
		t.Errorf("got %d templates before the pod exists (error %v)", len(none.Items), err)
	}
	// The pod is stored, and the leader sees it. It does so again after a restart.
	pod.CreationTimestamp = metav1.Now()
	if err := c.direct.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		reconciled(t, c, pod)
	}
	var made resourceapi.ResourceClaimTemplate
	key := types.NamespacedName{Namespace: "ml", Name: template}
	if err := c.direct.Get(t.Context(), key, &made); err != nil {
		t.Fatal(err)
	}
	request := made.Spec.Spec.Devices.Requests[0]
	cores, memory := request.Exactly.Capacity.Requests["cores"], request.Exactly.Capacity.Requests["memory"]
	if request.Name != "main" || cores.String() != "30" || memory.String() != "5Gi" {
		t.Errorf("got %+v, want 30 cores and 5Gi", request)
	}
	if got := eventsOf(t, c); len(got) != 1 || !strings.HasPrefix(got[0], "Converted: from gpu-manager to claims") {
		t.Errorf("got events %q", got)
	}
	// A template that is deleted while the pod waits is created again, and not when the pod has its claim.
	if err := c.direct.Delete(t.Context(), &made); err != nil {
		t.Fatal(err)
	}
	if requests := c.podsOf(t.Context(), &made); len(requests) != 1 || requests[0].Name != "worker" {
		t.Errorf("got %v, want the pod that waits for the template", requests)
	}
	reconciled(t, c, pod)
	if err := c.direct.Get(t.Context(), key, &made); err != nil {
		t.Errorf("the template was not created again: %v", err)
	}
	if err := c.direct.Delete(t.Context(), &made); err != nil {
		t.Fatal(err)
	}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "converted-gpu",
		ResourceClaimName: ptr.To("claim")}}
	if err := c.direct.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	reconciled(t, c, pod)
	if err := c.direct.Get(t.Context(), key, &made); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want no template for a pod that has its claim", err)
	}
}

// A request in TFLOP/s may get a partition, if the class of partitions exists.
func TestConversionToPartitions(t *testing.T) {
	for _, tc := range []struct {
		name, missing string
		want          []string // classes
	}{
		{"with the class", "", []string{"gpu.nvidia.com", "mig.nvidia.com"}},
		{"without the class", "mig.nvidia.com", []string{"gpu.nvidia.com"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newWebhook(t, "dgx-h100")
			c.view.DeleteClass(tc.missing)
			pod, _ := admit(t, c, `{metadata: {name: worker, namespace: ml, uid: u1}, spec: {containers: [{name: main, `+
				`resources: {limits: {resource.nvidia.com/tflops: 50}}}]}}`)
			if err := c.direct.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			reconciled(t, c, pod)
			var made resourceapi.ResourceClaimTemplate
			key := types.NamespacedName{Namespace: "ml", Name: *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName}
			if err := c.direct.Get(t.Context(), key, &made); err != nil {
				t.Fatal(err)
			}
			var got []string
			request := made.Spec.Spec.Devices.Requests[0]
			for _, s := range request.FirstAvailable {
				got = append(got, s.DeviceClassName)
			}
			if request.Exactly != nil {
				got = append(got, request.Exactly.DeviceClassName)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got classes %q, want %q", got, tc.want)
			}
		})
	}
}

// A pod that is refused or left as it is.
func TestNotConverted(t *testing.T) {
	for _, tc := range []struct{ name, profile, pod, refused, warned string }{
		{"nothing to convert", "t4-x2", `{spec: {containers: [{name: main}]}}`, "", ""},
		{"no model known, and nothing makes the pod wait", "", `{metadata: {annotations: {gpu-fraction: "0.5"}}, spec: ` +
			`{containers: [{name: main}]}}`, "container main: no GPU is published of which this could be a part", ""},
		{"no scheduler", "t4-x2", `{spec: {nodeName: a, containers: [{name: main, resources: {limits: ` +
			`{tencent.com/vcuda-core: 100}}}]}}`, "spec.nodeName: Invalid value", ""},
		{"no model known", "", `{spec: {containers: [{name: main, resources: {limits: {resource.nvidia.com/tflops: 5}}}]}}`, "",
			"container main: no GPU is published of which this could be a part. The pod waits"},
		{"a part of a card that makes no sense", "t4-x2", `{spec: {containers: [{name: main, resources: {limits: ` +
			`{tencent.com/vcuda-core: 150}}}]}}`, "spec.containers[0].resources.limits[tencent.com/vcuda-core]", ""},
		{"two systems", "t4-x2", `{metadata: {annotations: {gpu-fraction: "0.5"}}, spec: {containers: [{name: main, ` +
			`resources: {limits: {tencent.com/vcuda-core: 100}}}]}}`, "in the ways of", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := webhooktest.Request(t, "Pod", tc.pod)
			req.Operation = admissionv1.Create
			got := newWebhook(t, tc.profile).Handle(t.Context(), req)
			if got.Result == nil {
				got.Result = &metav1.Status{}
			}
			if got.Allowed != (tc.refused == "") || !strings.Contains(got.Result.Message, tc.refused) {
				t.Errorf("got allowed: %t, %q, want %q", got.Allowed, got.Result.Message, tc.refused)
			}
			if tc.refused != "" && got.Result.Code != http.StatusForbidden {
				t.Errorf("got code %d, want that of a mistake of the user", got.Result.Code)
			}
			text := strings.Join(got.Warnings, "\n")
			if !strings.Contains(text, tc.warned) || (text == "") != (tc.warned == "") {
				t.Errorf("got warnings %q, want %q", text, tc.warned)
			}
			if len(got.Patches) > 0 {
				t.Errorf("got patches %v", got.Patches)
			}
		})
	}
}

// Who applies the manifest of a converted pod again changes nothing. Another amount is refused.
func TestConvertedPodIsAppliedAgain(t *testing.T) {
	c := newWebhook(t, "t4-x2")
	old, _ := admit(t, c, vcudaPod)
	raw, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	const advice = ", and its claim cannot change: delete the pod and create it again"
	for _, row := range []struct {
		container   int
		amount, err string
	}{
		{0, "30", ""},
		{0, "60", `spec.containers[0].resources.limits[tencent.com/vcuda-core]: Invalid value: "60": the pod was ` +
			`created with 30` + advice},
		{1, "30", `spec.containers[1].resources.limits[tencent.com/vcuda-core]: Invalid value: "30": the pod was ` +
			`created with 0` + advice},
	} {
		again := old.DeepCopy()
		resources := &again.Spec.Containers[row.container].Resources
		if resources.Limits == nil {
			resources.Limits = corev1.ResourceList{}
		}
		resources.Limits["tencent.com/vcuda-core"] = resource.MustParse(row.amount)
		resources.Requests = resources.Limits // as the API server sets them
		req := webhooktest.Request(t, "Pod", "{}")
		if req.Object.Raw, err = json.Marshal(again); err != nil {
			t.Fatal(err)
		}
		req.OldObject.Raw, req.Operation = raw, admissionv1.Update
		response := c.Handle(t.Context(), req)
		if row.err != "" {
			if response.Allowed || response.Result.Message != row.err {
				t.Errorf("got allowed %t, %+v, want %q", response.Allowed, response.Result, row.err)
			}
			continue
		}
		var got corev1.Pod
		if err := json.Unmarshal(webhooktest.Patched(t, req.Object.Raw, response), &got); err != nil {
			t.Fatal(err)
		}
		if _, has := got.Spec.Containers[0].Resources.Limits["tencent.com/vcuda-core"]; has {
			t.Error("the update has the removed resource")
		}
		if cpu := got.Spec.Containers[0].Resources.Limits.Cpu(); cpu.String() != "1" {
			t.Errorf("got cpu %s, want what the pod has besides", cpu)
		}
	}
}

// A pod that other webhooks change after its conversion is not converted again: its annotations are still there.
func TestConvertedOnce(t *testing.T) {
	c := newWebhook(t, "t4-x2")
	once, _ := admit(t, c, `{metadata: {annotations: {gpu-fraction: "0.5"}}, spec: {containers: [{name: main}]}}`)
	raw, err := json.Marshal(once)
	if err != nil {
		t.Fatal(err)
	}
	twice, _ := admit(t, c, string(raw))
	if len(once.Spec.ResourceClaims) != 1 || len(twice.Spec.ResourceClaims) != 1 ||
		len(twice.Spec.Containers[0].Resources.Claims) != 1 {
		t.Errorf("got %v and then %v, want one claim", once.Spec.ResourceClaims, twice.Spec.ResourceClaims)
	}
}

// A template of somebody else, with the name that the template would have, is not used.
func TestForeignTemplate(t *testing.T) {
	c := newWebhook(t, "t4-x2")
	before, _ := admit(t, c, vcudaPod)
	name := *before.Spec.ResourceClaims[0].ResourceClaimTemplateName
	foreign := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}}
	if err := c.direct.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	c.free = utilcache.NewExpiring() // as later
	after, _ := admit(t, c, vcudaPod)
	if got := *after.Spec.ResourceClaims[0].ResourceClaimTemplateName; got != name+"-1" {
		t.Errorf("got template %s, want %s-1", got, name)
	}
	// The pod from before is told.
	before.CreationTimestamp = metav1.Now()
	if err := c.direct.Create(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	reconciled(t, c, before)
	const want = "is not what the pod needs: somebody else has created it, or the API server has dropped fields of it"
	if got := eventsOf(t, c); len(got) != 1 || !strings.HasPrefix(got[0], "NotConverted: the ResourceClaimTemplate "+
		name+" "+want) {
		t.Errorf("got events %q, want that it %s", got, want)
	}
}

// The leader creates nothing but what the conversion makes, whatever a pod's annotation says.
func TestForgedAnnotation(t *testing.T) {
	for _, tc := range []struct{ name, devices, want string }{
		{"admin access", `requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true}}]`, "adminAccess"},
		{"another class", `requests: [{name: a, exactly: {deviceClassName: nic.example.com}}]`, "class nic.example.com"},
		{"all GPUs", `requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]`,
			"allocationMode All"},
		{"tainted GPUs", `requests: [{name: a, firstAvailable: [{name: b, deviceClassName: gpu.nvidia.com, ` +
			`allocationMode: ExactCount, tolerations: [{operator: Exists}]}]}]`, "tolerations"},
		{"another class in a list", `requests: [{name: a, firstAvailable: [{name: b, deviceClassName: monitor.gpu.nvidia.com}]}]`,
			"class monitor.gpu.nvidia.com"},
		{"a configuration of another driver", `config: [{opaque: {driver: nic.example.com, parameters: {}}}]`,
			"another driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := clustertest.Claim(t, tc.devices).Spec
			name, err := templateName(&spec, 0)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "forged", UID: "u2",
				CreationTimestamp: metav1.Now(), Labels: map[string]string{FamilyLabel: "hami"},
				Annotations: map[string]string{"gpu.nvidia.com/converted-claim": string(text)}},
				Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "converted-gpu",
					ResourceClaimTemplateName: &name}}}}
			c := newWebhook(t, "", pod)
			reconciled(t, c, pod)
			var templates resourceapi.ResourceClaimTemplateList
			if err := c.direct.List(t.Context(), &templates); err != nil || len(templates.Items) > 0 {
				t.Errorf("got %d templates (error %v)", len(templates.Items), err)
			}
			if got := eventsOf(t, c); len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("got events %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnusedTemplatesAreDeleted(t *testing.T) {
	now := time.Now()
	names := map[string]string{} // of templates, by their request
	template := func(request string, age time.Duration) *resourceapi.ResourceClaimTemplate {
		spec := clustertest.Claim(t, `requests: [{name: `+request+`, exactly: {deviceClassName: gpu.nvidia.com}}]`).Spec
		name, err := templateName(&spec, 0)
		if err != nil {
			t.Fatal(err)
		}
		names[request] = name
		return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name,
			UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-age)),
			Labels: map[string]string{FamilyLabel: "hami"}},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
	}
	foreign := template("foreign", time.Hour)
	foreign.Name = "of-a-user"
	pod := func(name, request string, phase corev1.PodPhase) client.Object {
		template := names[request]
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name},
			Status: corev1.PodStatus{Phase: phase},
			Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c",
				ResourceClaimTemplateName: &template}}}}
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(foreign, template("used", time.Hour),
		template("done", time.Hour), template("unused", time.Hour), template("new", time.Minute),
		pod("a", "used", corev1.PodPending), pod("b", "done", corev1.PodSucceeded)).Build()
	collector := &templateCollector{cached: cluster, direct: cluster, now: func() time.Time { return now }}
	if err := collector.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	var left resourceapi.ResourceClaimTemplateList
	if err := cluster.List(t.Context(), &left); err != nil {
		t.Fatal(err)
	}
	var requests []string
	for _, one := range left.Items {
		requests = append(requests, one.Spec.Spec.Devices.Requests[0].Name)
	}
	slices.Sort(requests)
	if got := strings.Join(requests, " "); got != "foreign new used" {
		t.Errorf("got %q left, want foreign, new and used", got)
	}
}

// FuzzUpdates sends pods and updates to the webhook. Nothing panics, and what the webhook makes of a pod can be applied
// to it.
func FuzzUpdates(f *testing.F) {
	for _, pair := range [][2]string{
		{`{}`, `{}`}, {`null`, `null`}, {`[]`, `{}`},
		{`{"spec":{"containers":[{"name":"a","resources":{"limits":{"tencent.com/vcuda-core":30}}}]}}`,
			`{"spec":{"containers":[5],"initContainers":[null],"resourceClaims":[{}]}}`},
		{`{"metadata":{"annotations":{"tensor-fusion.ai/tflops-request":"20"}},"spec":{"containers":[{}],` +
			`"resourceClaims":5}}`, `{"metadata":{"labels":5}}`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	pods := newWebhook(f, "t4-x2")
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
			req := admissionv1.AdmissionRequest{Kind: metav1.GroupVersionKind{Kind: "Pod"}, Operation: operation,
				Namespace: "ns", Object: runtime.RawExtension{Raw: after}, OldObject: runtime.RawExtension{Raw: before}}
			got := pods.Handle(context.Background(), webhook.Request{AdmissionRequest: req})
			if got.Allowed {
				webhooktest.Patched(t, after, got)
			}
		}
	})
}
