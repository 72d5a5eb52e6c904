// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/nodetemplate"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

const driver = "gpu.nvidia.com"

// apiServer is an API server that answers from a snapshot.
type apiServer struct {
	cluster.Snapshot
	// forbidden are paths that the user may not read.
	forbidden []string
	// missing are paths that the server does not serve.
	missing []string
	// answers are other responses, by path.
	answers map[string]http.HandlerFunc

	mu      sync.Mutex
	methods map[string]bool // of the requests so far
}

// run executes kubectl-gpu against the server.
func (s *apiServer) run(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := Command(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}, "v0.0.0-test")
	cmd.SetArgs(append([]string{"--kubeconfig", s.kubeconfig(t)}, args...))
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// kubeconfig starts the server and returns its kubeconfig, with the namespace ml.
func (s *apiServer) kubeconfig(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q}}], users: [{name: c, user: {}}],
contexts: [{name: c, context: {cluster: c, user: c, namespace: ml}}]}`, server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.methods == nil {
		s.methods = map[string]bool{}
	}
	s.methods[r.Method] = true
	s.mu.Unlock()
	resource, namespace := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], ""
	if _, after, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok {
		namespace, _, _ = strings.Cut(after, "/")
	}
	if slices.Contains(s.missing, r.URL.Path) {
		http.NotFound(w, r)
		return
	}
	if slices.Contains(s.forbidden, r.URL.Path) {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("%s is forbidden: User \"eve\" cannot list resource %q", resource, resource))
		return
	}
	if answer := s.answers[r.URL.Path]; answer != nil {
		answer(w, r)
		return
	}
	if query := r.URL.Query(); query.Get("watch") != "" {
		if query.Get("sendInitialEvents") != "" {
			refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "lists cannot be watched")
			return
		}
		<-r.Context().Done() // nothing changes
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/"); ok && name == resource && name != "nowhere" {
		reply(w, http.StatusOK, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		return
	}
	switch resource {
	case cluster.Slices:
		replyList(w, s.Slices, func(*resourceapi.ResourceSlice) bool { return true })
	case cluster.Classes:
		replyList(w, s.Classes, func(*resourceapi.DeviceClass) bool { return true })
	case cluster.Claims:
		replyList(w, s.Claims, func(c *resourceapi.ResourceClaim) bool {
			return namespace == "" || c.Namespace == namespace
		})
	case cluster.Nodes:
		replyList(w, s.Nodes, func(*corev1.Node) bool { return true })
	case cluster.Templates:
		replyList(w, s.Templates, func(t *resourceapi.ResourceClaimTemplate) bool {
			return namespace == "" || t.Namespace == namespace
		})
	case cluster.TaintRules:
		if s.TaintRules == nil {
			http.NotFound(w, r)
			return
		}
		if r.Method == http.MethodPost {
			s.create(w, r)
			return
		}
		replyList(w, s.TaintRules, func(*resourceapi.DeviceTaintRule) bool { return true })
	case cluster.Events:
		replyList(w, s.Warnings, func(e *corev1.Event) bool {
			return e.Namespace == namespace && r.URL.Query().Get("fieldSelector") == "type="+e.Type
		})
	case cluster.Pods:
		name, named := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		replyList(w, s.Pods, func(p *corev1.Pod) bool {
			return (namespace == "" || p.Namespace == namespace) && (!named || p.Name == name)
		})
	default:
		before := len(s.TaintRules)
		s.TaintRules = slices.DeleteFunc(s.TaintRules, func(rule *resourceapi.DeviceTaintRule) bool {
			return r.Method == http.MethodDelete && rule.Name == resource
		})
		if len(s.TaintRules) == before {
			http.NotFound(w, r)
			return
		}
		reply(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	}
}

// create adds a DeviceTaintRule.
func (s *apiServer) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	rule := &resourceapi.DeviceTaintRule{}
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, rule)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	rule.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	s.TaintRules = append(s.TaintRules, rule)
	reply(w, http.StatusCreated, rule)
}

func replyList[T any](w http.ResponseWriter, all []T, keep func(T) bool) {
	list := struct {
		Items []T `json:"items"`
	}{Items: []T{}}
	for _, o := range all {
		if keep(o) {
			list.Items = append(list.Items, o)
		}
	}
	reply(w, http.StatusOK, list)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	reply(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}

func reply(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // the client has gone
}

// claim returns a claim of namespace ml that holds the device for a pod; consumed as "memory=5Gi".
func claim(name, pool, device string, consumed ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name,
		UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Now().Add(-3 * time.Hour))}}
	result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: pool,
		Device: device}
	for _, text := range consumed {
		what, amount, _ := strings.Cut(text, "=")
		if result.ConsumedCapacity == nil {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		result.ConsumedCapacity[resourceapi.QualifiedName(what)] = resource.MustParse(amount)
	}
	c.Status.Allocation = &resourceapi.AllocationResult{
		AllocationTimestamp: ptr.To(metav1.NewTime(time.Now().Add(-2 * time.Hour))),
		Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{result}},
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + name}}
	return c
}

// node returns a node that is ready.
func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

// published returns the slices that a node of the profile publishes.
func published(t testing.TB, node, profile string) []*resourceapi.ResourceSlice {
	t.Helper()
	return configured(t, node, profile, nodeconfig.Config{})
}

// configured returns the slices of a node with that configuration.
func configured(t testing.TB, node, profile string, config nodeconfig.Config) []*resourceapi.ResourceSlice {
	t.Helper()
	of, err := nodetemplate.FromProfile(profile, config, nodetemplate.Target{Driver: driver, Name: node})
	if err != nil {
		t.Fatal(err)
	}
	return of.Slices
}

// newCluster returns a server with a node with two T4, one with eight H100, and claims for shares and partitions.
func newCluster(t testing.TB) *apiServer {
	t.Helper()
	s := &apiServer{}
	s.Nodes = []*corev1.Node{node("a"), node("b")}
	s.Slices = append(published(t, "a", "t4-x2"), published(t, "b", "dgx-h100")...)
	s.Claims = []*resourceapi.ResourceClaim{
		claim("train", "a", "gpu-3b-00-0", "memory=5Gi", "cores=30"),
		claim("serve", "a", "gpu-3b-00-0", "memory=6Gi", "cores=0"),
		claim("whole", "b", "gpu-1b-00-0", "memory=81559Mi", "cores=0"),
		claim("small", "b", "gpu-43-00-0-mig-1g10gb-0"),
	}
	return s
}

// forVMs publishes GPUs of the node for virtual machines, too, in a slice "vm" of their own.
func (s *apiServer) forVMs(t testing.TB, node string, gpus ...string) {
	t.Helper()
	more := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "vm"}}
	more.Spec = resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node,
		Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}
	for _, name := range gpus {
		d := s.device(t, node, name).DeepCopy()
		d.Name, d.AllowMultipleAllocations = gpu.VFIOName(name), nil
		d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(string(gpu.TypeVFIO))}
		more.Spec.Devices = append(more.Spec.Devices, *d)
	}
	s.Slices = append(s.Slices, more)
}

// vgpus publishes vGPUs of the GPU, of 4 GiB each, in a slice "vgpu" of their own: one that exists, and one that is
// possible.
func (s *apiServer) vgpus(t testing.TB, node, of, kind, existing, possible string) {
	t.Helper()
	more := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "vgpu"}}
	more.Spec = resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node,
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}
	for _, name := range []string{existing, possible} {
		d := s.device(t, node, of).DeepCopy()
		d.Name, d.AllowMultipleAllocations = name, nil
		d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(string(gpu.TypeVGPU))}
		d.Attributes["profile"] = resourceapi.DeviceAttribute{StringValue: &kind}
		d.Attributes["multiprocessors"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(10))}
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {
			Value: resource.MustParse("4Gi")}}
		if name == possible {
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: of}}
		}
		more.Spec.Devices = append(more.Spec.Devices, *d)
	}
	s.Slices = append(s.Slices, more)
}

// device returns the published device.
func (s *apiServer) device(t testing.TB, pool, name string) *resourceapi.Device {
	t.Helper()
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			if slice.Spec.Pool.Name == pool && slice.Spec.Devices[i].Name == name {
				return &slice.Spec.Devices[i]
			}
		}
	}
	t.Fatalf("pool %s has no device %s", pool, name)
	return nil
}
