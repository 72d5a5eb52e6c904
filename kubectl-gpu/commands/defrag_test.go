// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// serving returns a pod of a ReplicaSet that has a share of a T4, with its claim and the template of that.
func serving(name, of, device, memory string) (*corev1.Pod, *resourceapi.ResourceClaim,
	*resourceapi.ResourceClaimTemplate) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name),
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: of, UID: types.UID(of),
			Controller: ptr.To(true)}}}, Spec: corev1.PodSpec{NodeName: "a"}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To(of)}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu",
		ResourceClaimName: ptr.To(name + "-gpu")}}
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver, Count: 1,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(memory)}}}}}}}
	c := claim(name+"-gpu", "a", device, "memory="+memory, "cores=0")
	c.Spec = spec
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: ptr.To(true)}}
	c.Status.ReservedFor[0].Name, c.Status.ReservedFor[0].UID = name, p.UID
	c.Status.Allocation.Devices.Results[0].ShareID = ptr.To(types.UID(name))
	return p, c, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: of},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
}

// fragmented returns a cluster with one node, of which two pods share two GPUs.
func fragmented(t testing.TB) *apiServer {
	t.Helper()
	s := &apiServer{}
	s.Nodes = []*corev1.Node{node("a")}
	s.Slices = published(t, "a", "t4-x2")
	s.Classes = []*resourceapi.DeviceClass{class(driver, "device.attributes['gpu.nvidia.com'].type == 'gpu'")}
	s.TaintRules = []*resourceapi.DeviceTaintRule{}
	for i, device := range []string{"gpu-3b-00-0", "gpu-af-00-0"} {
		pod, claim, template := serving([]string{"chat-1", "embed-1"}[i], []string{"chat", "embed"}[i], device,
			[]string{"5Gi", "6Gi"}[i])
		s.Pods, s.Claims, s.Templates = append(s.Pods, pod), append(s.Claims, claim), append(s.Templates, template)
	}
	return s
}

func TestDefragPlan(t *testing.T) {
	const header, move = "POD DEVICE FROM PROBABLY TO AMOUNT\n",
		"ml/chat-1 gpu-3b-00-0 a a/gpu-af-00-0 5Gi\na/gpu-3b-00-0 is free after 1 move."
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "kubectl-gpu-defrag-0",
		Labels: map[string]string{ruleLabel: ruleOwner}}}
	for _, row := range []struct {
		name         string
		change       func(s *apiServer)
		args         string
		out, errText string
		err          string
	}{
		{"a share moves", nil, "", header + move, "", ""},
		{"all GPUs of a node", nil, "--node a", "Moves free none of the 1 candidates.", "", "nothing can be gained"},
		{"nothing is shared", func(s *apiServer) { s.Claims = nil }, "",
			"Nothing to do: pods share no GPU that could be free.", "", ""},
		{"a node that is free", func(s *apiServer) { s.Claims = nil }, "--node a",
			"a/gpu-3b-00-0, a/gpu-af-00-0 are free already.", "", ""},
		{"no pod can move", func(s *apiServer) {
			s.Pods[0].OwnerReferences, s.Pods[1].OwnerReferences = nil, nil
		}, "", "Moves free none of the 2 candidates. 2 pods cannot move: no controller creates it again (ml/chat-1, " +
			"ml/embed-1).", "", "nothing can be gained"},
		{"a node that there is not", nil, "--node c", "", "", `there is no node or GPU "c"`},
		{"a GPU in place of a node", nil, "--node gpu-3b-00-0", "", "",
			`--node needs a node; "gpu-3b-00-0" is a GPU`},
		{"a rule of a killed run", func(s *apiServer) { s.TaintRules = append(s.TaintRules, rule) }, "", header + move,
			"Warning: 1 DeviceTaintRule of kubectl gpu defrag keep pods away from GPUs. If no other run is going on, " +
				"remove them: kubectl delete devicetaintrules -l app.kubernetes.io/managed-by=kubectl-gpu-defrag", ""},
		{"a rule of a killed run, and pods are to move", func(s *apiServer) {
			s.TaintRules = append(s.TaintRules, rule)
		}, "--apply", header + move, "Warning: ", "because of the DeviceTaintRules of another run"},
		{"no DeviceTaintRules", func(s *apiServer) { s.TaintRules = nil }, "--apply", header + move, "",
			"Kubernetes 1.37 or newer"},
		{"claims that the user may not read", func(s *apiServer) { s.forbidden = []string{claimsPath} }, "", "", "",
			`the missing right is the verb "list" on resourceclaims`},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fragmented(t)
			if row.change != nil {
				row.change(s)
			}
			out, errOut, err := s.run(t, append([]string{"defrag"}, strings.Fields(row.args)...)...)
			if got := strings.TrimSpace(squeezed(out)); got != row.out {
				t.Errorf("got\n%s\nwant\n%s", got, row.out)
			}
			if !strings.HasPrefix(errOut, row.errText) || row.errText == "" && errOut != "" {
				t.Errorf("got %q on standard error, want %q", errOut, row.errText)
			}
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
			if s.methods["POST"] || s.methods["DELETE"] {
				t.Errorf("got requests %v, want that nothing is changed", s.methods)
			}
		})
	}
}

func TestDefragJSON(t *testing.T) {
	out, _, err := fragmented(t).run(t, "defrag", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Kind  string
		Items []moves.Defragmentation
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "DefragmentationList" || len(got.Items) != 1 || len(got.Items[0].Moves) != 1 ||
		got.Items[0].Moves[0].Pod != "chat-1" || got.Items[0].Frees[0].Ref() != "a/gpu-3b-00-0" {
		t.Errorf("got %+v, want the move of chat-1", got)
	}
}

// TestDefragApply moves a pod on a fake API server, which does what Kubernetes would after an eviction.
func TestDefragApply(t *testing.T) {
	tooMany := apierrors.NewTooManyRequests("it would violate the pod's disruption budget", 0)
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "chat-1", errors.New("it has been modified"))
	for _, row := range []struct {
		name   string
		change func(tracker clienttesting.ObjectTracker) error         // after the plan
		first  func(tracker clienttesting.ObjectTracker) error         // the same at the first eviction
		evict  func(attempt int, cancel context.CancelFunc) error      // the answer to an eviction
		after  func(pod *corev1.Pod, claim *resourceapi.ResourceClaim) // the replacement
		rule   bool                                                    // another run has a rule
		read   error                                                   // of what is read after the plan
		out    string
		err    string
		remain string // rules
	}{
		{name: "a pod moves", out: "ml/chat-1: evicted\nml/chat-1: its replacement chat-2 is on node a\n"},
		{name: "a PodDisruptionBudget allows it later", evict: func(attempt int, _ context.CancelFunc) error {
			if attempt < 3 {
				return tooMany
			}
			return nil
		}, out: "ml/chat-1: waits: it would violate the pod's disruption budget\nml/chat-1: evicted\n" +
			"ml/chat-1: its replacement chat-2 is on node a\n"},
		{name: "a PodDisruptionBudget never allows it", evict: func(int, context.CancelFunc) error { return tooMany },
			out: "ml/chat-1: waits: it would violate the pod's disruption budget\n",
			err: "0 of 1 pod moved: pod ml/chat-1: timeout after 5m0s: it would violate the pod's disruption budget"},
		{name: "Ctrl-C", evict: func(_ int, cancel context.CancelFunc) error {
			cancel()
			return tooMany
		}, out: "ml/chat-1: waits: it would violate the pod's disruption budget\n", err: "context canceled"},
		{name: "the pod ends after the plan", change: ended},
		{name: "the other GPU is full after the plan", change: func(tracker clienttesting.ObjectTracker) error {
			_, claim, _ := serving("embed-1", "embed", "gpu-af-00-0", "14Gi")
			return tracker.Update(claimResource, claim, "ml")
		}, err: "nothing was moved: the cluster has changed. Moves free none"},
		{name: "the pod ends before its eviction", first: func(tracker clienttesting.ObjectTracker) error {
			return cmp.Or(ended(tracker), error(apierrors.NewNotFound(corev1.Resource("pods"), "chat-1")))
		}, out: "ml/chat-1: has ended by itself\n"},
		{name: "another pod has its name", first: func(tracker clienttesting.ObjectTracker) error {
			pod, _, _ := serving("chat-1", "chat", "gpu-af-00-0", "5Gi")
			pod.UID, pod.Spec.NodeName = "other", ""
			return cmp.Or(ended(tracker), tracker.Create(podResource, pod, "ml"), error(conflict))
		}, out: "ml/chat-1: has ended by itself\n"},
		{name: "a conflict with another change", evict: func(attempt int, _ context.CancelFunc) error {
			if attempt < 2 {
				return conflict
			}
			return nil
		}, out: "ml/chat-1: waits: " + conflict.Error() + "\nml/chat-1: evicted\n" +
			"ml/chat-1: its replacement chat-2 is on node a\n"},
		{name: "another new pod has no node", first: func(tracker clienttesting.ObjectTracker) error {
			pod, _, _ := serving("chat-0", "chat", "gpu-af-00-0", "5Gi")
			pod.Spec.NodeName = ""
			return tracker.Create(podResource, pod, "ml")
		}, out: "ml/chat-1: evicted\nml/chat-1: its replacement chat-2 is on node a\n"},
		{name: "no right to evict", evict: func(int, context.CancelFunc) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods/eviction"}, "chat-1", errors.New("no"))
		}, err: `pods/eviction "chat-1" is forbidden`},
		{name: "the replacement gets no node", after: func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
			pod.Spec.NodeName = ""
		}, out: "ml/chat-1: evicted\nml/chat-1: its replacement chat-2 has no node; kubectl gpu why chat-2 -n ml " +
			"says why\n",
			err: "0 of 1 pod moved: pod ml/chat-1: timeout after 5m0s: its replacement chat-2 has no node"},
		{name: "the replacement comes back", after: func(_ *corev1.Pod, claim *resourceapi.ResourceClaim) {
			claim.Status.Allocation.Devices.Results[0].Device = "gpu-3b-00-0"
		}, out: "ml/chat-1: evicted\nml/chat-1: its replacement chat-2 is on node a\n",
			err: "1 pod moved, and others have got the GPUs meanwhile"},
		{name: "the cluster cannot be read any more", read: errors.New("no answer"), err: "no answer"},
		{name: "another run goes on", rule: true, err: "another run of kubectl gpu defrag has begun",
			remain: "kubectl-gpu-defrag-0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fragmented(t)
			var objects []runtime.Object
			for _, o := range s.Slices {
				objects = append(objects, o)
			}
			for _, o := range s.Classes {
				objects = append(objects, o)
			}
			for i := range s.Pods {
				objects = append(objects, s.Pods[i], s.Claims[i], s.Templates[i])
			}
			objects = append(objects, s.Nodes[0])
			client := fake.NewClientset(objects...)
			if row.rule {
				mine := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "kubectl-gpu-defrag-0"}}
				if err := client.Tracker().Add(mine); err != nil {
					t.Fatal(err)
				}
			}
			rules := func() string {
				list, err := client.Tracker().List(resourceapi.SchemeGroupVersion.WithResource("devicetaintrules"),
					resourceapi.SchemeGroupVersion.WithKind("DeviceTaintRule"), "") // reactors must not use the client
				if err != nil {
					t.Fatal(err)
				}
				var all []string
				for _, r := range list.(*resourceapi.DeviceTaintRuleList).Items {
					all = append(all, strings.TrimSpace(r.Name+" "+selectedBy(r)))
				}
				return strings.Join(all, ", ")
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				attempts := 0
				client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if a.GetSubresource() != "eviction" {
						return false, nil, nil
					}
					attempts++
					if want := "kubectl-gpu-defrag-0 a/gpu-3b-00-0"; rules() != want {
						t.Errorf("at the eviction: got the rules %q, want %q", rules(), want)
					}
					if row.first != nil && attempts == 1 {
						if err := row.first(client.Tracker()); err != nil {
							return true, nil, err
						}
					}
					if row.evict != nil {
						if err := row.evict(attempts, cancel); err != nil {
							return true, nil, err
						}
					}
					replaced(t, client, row.after)
					return true, nil, nil
				})
				var out bytes.Buffer
				options := moves.DefragOptions{Drivers: []string{driver}}
				m := mover{client: client, out: &out, timeout: 5 * time.Minute, poll: time.Second, options: options,
					read: func(ctx context.Context) *cluster.Snapshot {
						s := schedule.Read(ctx, read.Reader{Client: client}, "", nil, nil)
						if row.read != nil {
							s.Unread[cluster.Claims] = row.read
						}
						return s
					}}
				plan, err := moves.Defrag(ctx, &s.Snapshot, options)
				if err != nil || len(plan.Moves) != 1 {
					t.Fatalf("got %+v, %v, want one move", plan, err)
				}
				if row.change != nil {
					if err := row.change(client.Tracker()); err != nil {
						t.Fatal(err)
					}
				}
				err = m.apply(ctx, plan)
				if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
					t.Errorf("got error %v, want %q", err, row.err)
				}
				if out.String() != row.out {
					t.Errorf("got\n%s\nwant\n%s", out.String(), row.out)
				}
				cancel()
			})
			if got := rules(); got != row.remain {
				t.Errorf("afterwards: got the rules %q, want %q", got, row.remain)
			}
		})
	}
}

// selectedBy writes what the rule selects.
func selectedBy(r resourceapi.DeviceTaintRule) string {
	if r.Spec.DeviceSelector == nil {
		return ""
	}
	return fmt.Sprintf("%s/%s", ptr.Deref(r.Spec.DeviceSelector.Pool, ""), ptr.Deref(r.Spec.DeviceSelector.Device, ""))
}

var (
	podResource   = corev1.SchemeGroupVersion.WithResource("pods")
	claimResource = resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
)

// ended ends the pod chat-1, which releases its GPU.
func ended(tracker clienttesting.ObjectTracker) error {
	return errors.Join(tracker.Delete(podResource, "ml", "chat-1"), tracker.Delete(claimResource, "ml", "chat-1-gpu"))
}

// replaced ends the pod chat-1 and creates chat-2, with a share of the other GPU.
func replaced(t *testing.T, client *fake.Clientset, change func(*corev1.Pod, *resourceapi.ResourceClaim)) {
	t.Helper()
	pod, claim, _ := serving("chat-2", "chat", "gpu-af-00-0", "5Gi")
	if change != nil {
		change(pod, claim)
	}
	tracker := client.Tracker()
	if err := errors.Join(ended(tracker), tracker.Create(podResource, pod, "ml"),
		tracker.Create(claimResource, claim, "ml")); err != nil {
		t.Error(err)
	}
}

// rulesServer makes the server accept the rule of a run. It calls created before it answers.
func (s *apiServer) rulesServer(created func(*http.Request)) {
	const path = "/apis/resource.k8s.io/v1/devicetaintrules"
	s.answers = map[string]http.HandlerFunc{path: func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.TaintRules = append(s.TaintRules, &resourceapi.DeviceTaintRule{})
			created(r)
			reply(w, http.StatusCreated, s.TaintRules[0])
			return
		}
		replyList(w, s.TaintRules, func(*resourceapi.DeviceTaintRule) bool { return true })
	}, path + "/kubectl-gpu-defrag-0": func(w http.ResponseWriter, _ *http.Request) {
		s.TaintRules = s.TaintRules[:0]
		reply(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	}}
}

// TestDefragApplyJSON: standard output is JSON and nothing else. The pod ends by itself while the rule is created.
func TestDefragApplyJSON(t *testing.T) {
	s := fragmented(t)
	s.rulesServer(func(*http.Request) { s.Pods, s.Claims = s.Pods[1:], s.Claims[1:] })
	out, errOut, err := s.run(t, "defrag", "--apply", "-o", "json")
	if err != nil || !json.Valid([]byte(out)) || errOut != "a/gpu-3b-00-0 is free now.\n" || len(s.TaintRules) > 0 {
		t.Errorf("got %q, on standard error %q, error %v, rules %v; want JSON, the result, and no rules", out, errOut,
			err, s.TaintRules)
	}
}

// TestDefragInterrupted: Ctrl-C while the API server creates the first rule leaves none, and creates no other.
func TestDefragInterrupted(t *testing.T) {
	s := fragmented(t)
	ctx, cancel := context.WithCancel(t.Context())
	posts := 0
	s.rulesServer(func(r *http.Request) {
		posts++
		cancel()
		select { // a client that gives up does so at once
		case <-r.Context().Done():
		case <-time.After(200 * time.Millisecond):
		}
	})
	server := httptest.NewServer(s)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	m := mover{client: client, poll: time.Second}
	err = m.apply(ctx, &moves.Defragmentation{Keep: make([]resourceapi.DeviceTaintSelector, 2)})
	server.Close() // waits for the handlers
	if !errors.Is(err, context.Canceled) || posts != 1 || len(s.TaintRules) > 0 {
		t.Errorf("got %v after %d creations, with the rules %v; want that Ctrl-C ends it, 1, and none", err, posts,
			s.TaintRules)
	}
}
