// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// manifests are a template for 60Gi of a GPU, a pod and a deployment that use it, and a claim for any GPU.
const (
	bigTemplate = `{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: big},
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 60Gi}}}}]}}}}`
	bigPod = `{apiVersion: v1, kind: Pod, metadata: {name: worker}, spec: {containers: [{name: main, resources: {claims: [{name: gpu}]}}],
resourceClaims: [{name: gpu, resourceClaimTemplateName: big}]}}`
	bigDeployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: serve}, spec: {template: {spec: {
containers: [{name: main, resources: {claims: [{name: gpu}]}}], resourceClaims: [{name: gpu, resourceClaimTemplateName: big}]}}}}`
	anyClaim = `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: any}, spec: {devices: {
requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}`
)

// waiting returns a server with one node with two T4, one of which is held, and a pod that waits for a larger one.
func waiting(t testing.TB) *apiServer {
	t.Helper()
	s := &apiServer{answers: map[string]http.HandlerFunc{}}
	s.Nodes = []*corev1.Node{node("a")}
	s.Slices = published(t, "a", "t4-x2")
	class := &resourceapi.DeviceClass{}
	class.Name = driver
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}}
	s.Classes = []*resourceapi.DeviceClass{class}
	s.Claims = []*resourceapi.ResourceClaim{claim("whole", "a", "gpu-3b-00-0", "memory=15Gi", "cores=0")}
	pod, template := &corev1.Pod{}, &resourceapi.ResourceClaimTemplate{}
	for text, into := range map[string]any{bigPod: pod, bigTemplate: template} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	pod.Namespace, pod.UID, pod.ResourceVersion = "ml", "worker", "1"
	template.Namespace = "ml"
	s.Pods = []*corev1.Pod{pod}
	s.answers["/apis/resource.k8s.io/v1/resourceclaimtemplates"] = func(w http.ResponseWriter, _ *http.Request) {
		replyList(w, []*resourceapi.ResourceClaimTemplate{template},
			func(*resourceapi.ResourceClaimTemplate) bool { return true })
	}
	s.answers["/api/v1/resourcequotas"] = func(w http.ResponseWriter, _ *http.Request) {
		replyList(w, []*corev1.ResourceQuota{}, func(*corev1.ResourceQuota) bool { return true })
	}
	s.answers["/api/v1/namespaces/ml/pods/worker"] = func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, s.Pods[0])
	}
	return s
}

// onNode puts the pod on the node, with the claim that exists.
func onNode(s *apiServer) {
	s.Pods[0].Spec.NodeName = "a"
	s.Pods[0].Spec.ResourceClaims[0].ResourceClaimTemplateName = nil
	s.Pods[0].Spec.ResourceClaims[0].ResourceClaimName = &s.Claims[0].Name
}

const workerWaits = `pod worker waits: request gpu of claim gpu: none of the 2 devices of class gpu.nvidia.com has ` +
	`the requested capacity, even when free: memory 60Gi
smallest change: in ResourceClaimTemplate ml/big, request gpu: ask for 15Gi memory instead of 60Gi ` +
	`(capacity.requests.memory)
`

func TestWhy(t *testing.T) {
	const worker = "/api/v1/namespaces/ml/pods/worker"
	for _, row := range []struct {
		name   string
		change func(*apiServer)
		args   string
		want   string // how the output begins
		err    string
	}{
		{"a pod", nil, "worker", workerWaits, ""},
		{"a pod, with its kind", nil, "pod/worker", workerWaits, ""},
		{"a claim that has its devices", func(s *apiServer) {
			s.answers["/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/whole"] =
				func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.Claims[0]) }
		}, "whole", "claim whole has its devices: gpu-3b-00-0\n", ""},
		{"neither pod nor claim", nil, "missing", "", "there is no pod or resourceclaim missing in namespace ml"},
		{"a claim of a pod's name", nil, "claim/worker", "", "there is no resourceclaim worker in namespace ml"},
		{"another " +
			"kind", nil, "node/a", "", `"node/a" is no pod, claim or workload; write NAME, pod/NAME, claim/NAME, or deployment,`},
		{"a deployment", func(s *apiServer) {
			placed := s.Pods[0].DeepCopy()
			placed.Name, placed.Spec.NodeName = "earlier", "a"
			s.Pods = append(s.Pods, placed)
			s.answers["/apis/apps/v1/namespaces/ml/deployments/serve"] = func(w http.ResponseWriter, _ *http.Request) {
				reply(w, http.StatusOK, &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": "serve"}}}})
			}
		}, "deployment/serve", workerWaits, ""},
		{"a job without pods", func(s *apiServer) {
			s.Pods = nil
			s.answers["/apis/batch/v1/namespaces/ml/jobs/train"] = func(w http.ResponseWriter, _ *http.Request) {
				reply(w, http.StatusOK, &batchv1.Job{Spec: batchv1.JobSpec{Selector: &metav1.LabelSelector{}}})
			}
		}, "job.batch/train", "", "job train has no pods: kubectl describe job/train -n ml says why"},
		{"no such deployment", nil, "deploy/serve", "", "there is no deployment serve in namespace ml"},
		{"no right to read slices", func(s *apiServer) {
			s.forbidden = []string{"/apis/resource.k8s.io/v1/resourceslices"}
		}, "worker", "no answer without the right to list resourceslices.resource.k8s.io",
			"what could be read is not enough"},
		{"no right to read slices, and the controller has written an event", func(s *apiServer) {
			s.forbidden = []string{"/apis/resource.k8s.io/v1/resourceslices"}
			s.answers["/api/v1/namespaces/ml/events"] = func(w http.ResponseWriter, r *http.Request) {
				of := r.URL.Query().Get("fieldSelector")
				if of == "type=Warning" { // those of all pods and claims
					reply(w, http.StatusOK, &corev1.EventList{})
					return
				}
				if of != "involvedObject.uid="+string(s.Pods[0].UID)+",reason=NotAllocated" {
					t.Errorf("got events of %s", of)
				}
				reply(w, http.StatusOK, &corev1.EventList{Items: []corev1.Event{{Message: "as before"},
					{Message: "pod worker waits: all are held", ObjectMeta: metav1.ObjectMeta{
						CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}}}})
			}
		}, "worker", "pod worker waits: all are held\n\nnote: the controller has said so at 2026-01-02T03:04:05Z; no " +
			"answer without the right to list resourceslices.resource.k8s.io", ""},
		{"no right to read quotas", func(s *apiServer) { s.forbidden = []string{"/api/v1/resourcequotas"} }, "worker",
			"pod worker waits: request gpu of claim gpu: none of the 2 devices", ""},
		{"the pod was deleted meanwhile", func(s *apiServer) { s.answers[worker] = http.NotFound }, "worker", "",
			"pod ml/worker was deleted meanwhile"},
		{"the pod changed meanwhile", func(s *apiServer) {
			s.answers[worker] = func(w http.ResponseWriter, _ *http.Request) {
				placed := s.Pods[0].DeepCopy()
				placed.ResourceVersion, placed.Spec.NodeName = "2", "a"
				placed.Status.Phase = corev1.PodRunning
				s.Pods[0] = placed // as from now on
				reply(w, http.StatusOK, placed)
			}
		}, "worker", "pod worker is on node a\n", ""},
		{"a pod that bypasses the scheduler", func(s *apiServer) { s.Pods[0].Spec.NodeName = "a" }, "worker",
			"pod worker is on node a, and its claim gpu has no devices: spec.nodeName bypasses the scheduler", ""},
		{"the pod got its node after the claims were read", func(s *apiServer) {
			held := s.Claims[0].Name
			s.Pods[0].Spec.NodeName = "a"
			s.Pods[0].Spec.ResourceClaims[0].ResourceClaimTemplateName = nil
			s.Pods[0].Spec.ResourceClaims[0].ResourceClaimName = &held
			allocation := s.Claims[0].Status.Allocation
			s.Claims[0].Status.Allocation = nil
			s.answers[worker] = func(w http.ResponseWriter, _ *http.Request) {
				s.Claims[0].Status.Allocation = allocation
				reply(w, http.StatusOK, s.Pods[0])
			}
		}, "worker", "pod worker is on node a\n", ""},
		{"a pod that its node does not start", func(s *apiServer) {
			onNode(s)
			s.Pods[0].Status.Phase = corev1.PodPending
			for _, one := range []struct{ kind, message string }{{corev1.EventTypeWarning, "no answer"},
				{corev1.EventTypeNormal, "the container started"}} {
				s.Warnings = append(s.Warnings, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ml"},
					Type: one.kind, Reason: "FailedPrepareDynamicResources", Message: one.message,
					InvolvedObject: corev1.ObjectReference{UID: "worker"}})
			}
		}, "worker", "pod worker is on node a; its newest warning: FailedPrepareDynamicResources: no answer\n", ""},
		{"no right to read events", func(s *apiServer) {
			onNode(s)
			s.Pods[0].Status.Phase = corev1.PodPending
			s.forbidden = []string{"/api/v1/namespaces/ml/events"}
		}, "worker", "pod worker is on node a\n\nnote: events cannot be read, and may say more: events is " +
			"forbidden", ""},
		{"neither pod nor claim, and no right to read events", func(s *apiServer) {
			s.forbidden = []string{"/api/v1/namespaces/ml/events"}
		}, "missing", "", "there is no pod or resourceclaim missing in namespace ml"},
		{"the pod changes all the time", func(s *apiServer) {
			s.answers[worker] = func(w http.ResponseWriter, _ *http.Request) {
				other := s.Pods[0].DeepCopy()
				other.ResourceVersion = "other"
				reply(w, http.StatusOK, other)
			}
		}, "worker", "", "ml/worker changed 5 times while it was explained"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := waiting(t)
			if row.change != nil {
				row.change(s)
			}
			out, _, err := s.run(t, "why", row.args)
			requireOutput(t, out, row.want, err, row.err)
			if s.methods[http.MethodPost] || s.methods[http.MethodPut] || s.methods[http.MethodPatch] {
				t.Errorf("got requests %v, want only GET", s.methods)
			}
		})
	}
}

func requireOutput(t *testing.T, out, want string, err error, wantErr string) {
	t.Helper()
	if !strings.HasPrefix(out, want) || want == "" && out != "" {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	if (err != nil) != (wantErr != "") || err != nil && !strings.Contains(err.Error(), wantErr) {
		t.Errorf("got error %v, want %q", err, wantErr)
	}
}

func TestWhyJSON(t *testing.T) {
	out, _, err := waiting(t).run(t, "why", "worker", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Kind  string
		Items []why.Answer
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "ReportList" || len(got.Items) != 1 || got.Items[0].Outcome != why.Waits ||
		len(got.Items[0].Change) != 1 || got.Items[0].Change[0].Kind != advice.LowerCapacity {
		t.Errorf("got %s, want one report that waits and proposes LowerCapacity", out)
	}
}

// Without a name, all that waits is listed: pods with devices that have not started, and claims without such a pod.
func TestWhyAll(t *testing.T) {
	const cause = "request gpu of claim gpu: none of the 2 devices of class gpu.nvidia.com has the requested " +
		"capacity, even when free: memory 60Gi"
	for _, row := range []struct {
		name   string
		change func(*apiServer)
		args   []string
		want   string
		err    string
	}{
		{"the namespace", nil, nil, "pod/worker <unknown> " + cause, ""},
		{"all, with a claim of no pod, and a pod of another namespace", func(s *apiServer) {
			other := s.Pods[0].DeepCopy()
			other.Namespace, other.Name, other.UID, other.Spec.NodeName = "other", "stuck", "stuck", "a"
			other.Status.Phase = corev1.PodPending
			running := s.Pods[0].DeepCopy()
			running.Name, running.Spec.NodeName, running.Status.Phase = "running", "a", corev1.PodRunning
			plain := s.Pods[0].DeepCopy()
			plain.Name, plain.Spec.ResourceClaims = "without-devices", nil
			s.Pods = append(s.Pods, other, running, plain)
			for _, c := range []struct{ namespace, name string }{{"ml", "unused"}, {"other", "used"}} {
				waits := s.Claims[0].DeepCopy()
				waits.Namespace, waits.Name, waits.Status.Allocation = c.namespace, c.name, nil
				s.Claims = append(s.Claims, waits)
			}
			granted := other.DeepCopy() // an extended resource of a class, whose name says nothing
			granted.Name, granted.Spec.NodeName, granted.Spec.ResourceClaims = "granted", "", nil
			granted.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"example.com/t4": resource.MustParse("1")}}
			asks := granted.DeepCopy()
			asks.Name = "asks" // and has no claim yet
			granted.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "used"}
			s.Classes[0].Spec.ExtendedResourceName = ptr.To("example.com/t4")
			s.Pods = append(s.Pods, asks)
			s.Pods = append(s.Pods, granted)
		}, []string{"-A", "-o", "name"}, "pod/worker\npod/asks\npod/granted\npod/stuck\nclaim/unused", ""},
		{"what helps", nil, []string{"-o", "wide"}, "pod/worker <unknown> " + cause + " in " +
			"ResourceClaimTemplate ml/big, request gpu: ask for 15Gi memory instead of 60Gi", ""},
		{"nothing", func(s *apiServer) { s.Pods = nil }, []string{"-A"}, "", ""},
		{"a name, too", nil, []string{"worker", "-A"}, "", "leave out the name"},
		{"the format of a list", nil, []string{"worker", "-o", "wide"}, "", "leave out the name"},
		{"the events of a pod that its node does not start, in all namespaces", func(s *apiServer) {
			onNode(s)
			s.Pods[0].Status.Phase = corev1.PodPending
			s.Warnings = []*corev1.Event{{ObjectMeta: metav1.ObjectMeta{Namespace: "ml"},
				Type: corev1.EventTypeWarning, Reason: "FailedPrepareDynamicResources", Message: "no answer",
				InvolvedObject: corev1.ObjectReference{UID: "worker"}}}
		}, []string{"-A"}, "ml pod/worker <unknown> is on node a; its newest warning: FailedPrepareDynamicResources: " +
			"no answer", ""},
		{"a pod that got its node after its claim was read", func(s *apiServer) {
			onNode(s)
			s.Pods[0].Status.Phase = corev1.PodPending
			allocation := s.Claims[0].Status.Allocation
			s.Claims[0].Status.Allocation = nil
			s.answers["/api/v1/namespaces/ml/pods/worker"] = func(w http.ResponseWriter, _ *http.Request) {
				s.Claims[0].Status.Allocation = allocation
				reply(w, http.StatusOK, s.Pods[0])
			}
		}, nil, "pod/worker <unknown> is on node a", ""},
		{"rights in the namespace only", func(s *apiServer) {
			s.forbidden = []string{"/api/v1/pods", "/apis/resource.k8s.io/v1/resourceclaims"}
		}, nil, "pod/worker <unknown> " + cause, ""},
		{"all namespaces, and rights in one", func(s *apiServer) {
			s.forbidden = []string{"/api/v1/pods", "/apis/resource.k8s.io/v1/resourceclaims"}
		}, []string{"-A"}, "", "pods"},
		{"no right to read pods", func(s *apiServer) {
			s.forbidden = []string{"/api/v1/pods", "/api/v1/namespaces/ml/pods"}
		}, nil, "", "pods"},
		{"no right to read slices", func(s *apiServer) {
			s.forbidden = []string{"/apis/resource.k8s.io/v1/resourceslices"}
		}, nil, "pod/worker <unknown> no answer without the right to list resourceslices.resource.k8s.io",
			"not enough for an answer about 1 of them"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := waiting(t)
			s.answers["/api/v1/namespaces/ml"] = func(w http.ResponseWriter, _ *http.Request) {
				reply(w, http.StatusOK, &corev1.Namespace{})
			}
			if row.change != nil {
				row.change(s)
			}
			out, _, err := s.run(t, append([]string{"why", "--no-headers"}, row.args...)...)
			if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) == 1 {
				out = strings.Join(strings.Fields(lines[0]), " ")
			}
			requireOutput(t, out, row.want, err, row.err)
		})
	}
}

func TestWhyCompletion(t *testing.T) {
	s := waiting(t)
	const hint = "_activeHelp_ nothing waits in namespace team; with --namespace: ml\n:4\n"
	for namespace, want := range map[string]string{"ml": "pod/worker\n:4\n", "team": hint} {
		out, _, err := s.run(t, "__complete", "--namespace="+namespace, "why", "")
		if err != nil || out != want {
			t.Errorf("namespace %s: got %q, %v, want %q", namespace, out, err, want)
		}
	}
}

// A pod that is in another namespace is said to be there.
func TestWhyElsewhere(t *testing.T) {
	s := waiting(t)
	for name, want := range map[string]string{
		"worker": "there is no pod or resourceclaim worker in namespace team; one is in ml: name it with --namespace",
		"other":  "there is no pod or resourceclaim other in namespace team"} {
		if _, _, err := s.run(t, "--namespace=team", "why", name); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// An alternative that no GPU ever meets, such as one with a part of a model's name, is noted although a later one fits.
func TestFitsByALaterAlternative(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(file, []byte(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: any},
		spec: {devices: {requests: [{name: gpu, firstAvailable: [{name: t4, deviceClassName: gpu.nvidia.com, selectors: [
		{cel: {expression: "device.attributes['gpu.nvidia.com'].productName == 'T4'"}}]},
		{name: other, deviceClassName: gpu.nvidia.com}]}]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := waiting(t).run(t, "fits", "-f", file)
	if want := "claim any fits now on 1 of 1 nodes\n  a: gpu/other gets gpu-af-00-0\n\nnote: request gpu/t4 of claim " +
		"any: no device has the productName \"T4\"; did you mean \"Tesla T4\"?\n"; err != nil || out != want {
		t.Errorf("got error %v and\n%s\nwant\n%s", err, out, want)
	}
}

func TestFits(t *testing.T) {
	for _, row := range []struct {
		name string
		file string
		args []string
		want string // how the output begins
		err  string
	}{
		{"a claim", anyClaim, nil, "claim any fits now on 1 of 1 nodes\n  a: gpu gets gpu-af-00-0\n", ""},
		{"a claim on an empty cluster", anyClaim, []string{"--empty"},
			"claim any fits now on 1 of 1 nodes\n  a: gpu gets gpu-3b-00-0\n", ""},
		{"adminAccess, and the namespace lacks the label", strings.Replace(anyClaim, "deviceClassName",
			"adminAccess: true, deviceClassName", 1), nil, "claim ml/any is refused: adminAccess needs the label " +
			"resource.kubernetes.io/admin-access=true of namespace ml\n", "not everything fits"},
		{"adminAccess, and a namespace with the label", "{apiVersion: v1, kind: Namespace, metadata: {name: ml, " +
			"labels: {resource.kubernetes.io/admin-access: 'true'}}}\n---\n" + strings.Replace(anyClaim,
			"deviceClassName", "adminAccess: true, deviceClassName", 1), nil,
			"claim any fits now on 1 of 1 nodes\n", ""},
		{"a template", bigTemplate, nil, "a claim of template big waits: request gpu of a claim of template big: " +
			"none of the 2 devices of class gpu.nvidia.com has the requested capacity", "not everything fits"},
		{"a pod, with a template of the cluster", bigPod, nil, "pod worker waits: ", "not everything fits"},
		{"with a node of a profile", bigTemplate + "\n---\n" + bigPod, []string{"--profile", "dgx-h100"},
			"pod worker fits now on 1 of 2 nodes\n  new-dgx-h100: gpu gets gpu-", ""},
		{"a deployment", bigDeployment, []string{"--profile", "dgx-h100"},
			"pod serve fits now on 1 of 2 nodes\n", ""},
		{"a cron job", strings.Replace(strings.Replace(bigDeployment, "spec: {", "spec: {jobTemplate: {spec: {",
			1), "}}}}", "}}}}}}", 1), []string{"--profile", "dgx-h100"}, "pod serve fits now on 1 of 2 nodes\n", ""},
		{"a template of something else", "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: pool}, " +
			"spec: {template: {spec: {requirements: []}}}}", nil, "", "has no Pod, ResourceClaim,"},
		{"two objects", anyClaim + "\n---\n" + bigPod, nil, "pod worker waits: ", "not everything fits"},
		{"a list, as kubectl get prints it", "{apiVersion: v1, kind: List, items: [" + anyClaim + ", " +
			"" + bigDeployment +
			"]}", []string{"--profile", "dgx-h100"}, "pod serve fits now on 1 of 2 nodes\n", ""},
		{"a mistake in a list", "{apiVersion: v1, kind: List, items: [" +
			strings.Replace(anyClaim, "deviceClassName", "className", 1) + "]}", nil, "", `ResourceClaim any: unknown field "spec.devices.requests[0].exactly.className"`},
		{"an unknown profile", anyClaim, []string{"--profile", "abacus"}, "", `no profile "abacus"; known are a16-x4, a30-x2`},
		{"nothing to ask about", "{apiVersion: v1, kind: Namespace, metadata: {name: ml}}", nil, "",
			"has no Pod, ResourceClaim, ResourceClaimTemplate or object with a pod template"},
		{"a list in place of a text", strings.Replace(anyClaim, "deviceClassName: gpu.nvidia.com",
			"deviceClassName: [gpu]", 1),
			nil, "", "spec.devices.requests.exactly.deviceClassName: want a text, not array"},
		{"a key twice", strings.Replace(anyClaim, "kind:", "metadata: {name: b}, kind:", 1), nil, "",
			`key "metadata" already set`},
		{"a mistake", strings.Replace(anyClaim, "deviceClassName", "className", 1), nil, "",
			`ResourceClaim any: unknown field "spec.devices.requests[0].exactly.className"`},
		{"a request of nothing", "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: any}, " +
			"spec: {devices: {requests: [{name: gpu}]}}}", nil,
			"claim any waits: claim any, request gpu: it has neither exactly nor firstAvailable",
			"not everything fits"},
		{"less than no device", strings.Replace(bigTemplate, "deviceClassName", "count: -3, deviceClassName", 1), nil,
			"a claim of template big waits: a claim of template big, request gpu: it asks for -3 devices",
			"not everything fits"},
		{"v1 with the shape of v1beta1", "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: " +
			"any}, spec: {devices: {requests: [{name: gpu, deviceClassName: gpu.nvidia.com}]}}}", nil, "",
			"ResourceClaim any: unknown field \"spec.devices.requests[0].deviceClassName\"\nin resource.k8s.io/v1, " +
				"this stands below exactly"},
		{"an object that asks for GPUs in a way of its own", anyClaim + "\n---\n{apiVersion: nvidia.com/v1alpha1, " +
			"kind: DynamoGraphDeployment, metadata: {name: d}, spec: {services: {worker: {resources: {limits: " +
			"{gpu: '99'}}}}}}",
			nil, "claim any fits now on 1 of 1 nodes\n", "not everything was understood"},
		{"objects that ask for none", anyClaim + "\n---\n{apiVersion: v1, kind: Service, metadata: {name: gpu}}" +
			"\n---\n{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: c}}", nil,
			"claim any fits now on 1 of 1 nodes\n", ""},
		{"a pod without containers", "{apiVersion: v1, kind: Pod, metadata: {name: worker}, spec: {resources: " +
			"{requests: {cpu: 1k}}}}", nil, "", "pod worker has no containers"},
		{"an old version", strings.Replace(anyClaim, "/v1", "/v1beta1", 1), nil, "",
			"resource.k8s.io/v1beta1 ResourceClaim is not supported; write apiVersion: resource.k8s.io/v1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file.yaml")
			if err := os.WriteFile(file, []byte(row.file), 0o600); err != nil {
				t.Fatal(err)
			}
			out, _, err := waiting(t).run(t, slices.Concat([]string{"fits", "-f", file}, row.args)...)
			requireOutput(t, out, row.want, err, row.err)
		})
	}
}
