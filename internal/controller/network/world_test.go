// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	crfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

const (
	namespace = "gpu-system"
	account   = "system:serviceaccount:gpu-system:gpu-remote"
)

// world is a cluster with a node of eight GPUs, server pods on it, and claims for what they serve.
type world struct {
	*testing.T
	*Controller
	node    string
	gpus    []string // names, sorted
	api     *fake.Clientset
	servers map[string]*standIn // by pod
	pool    []resourceapi.Device
	clock   time.Time
	devices map[string]string // by pod, since it was created
}

// standIn is a server without an engine: it keeps the list of sessions.
type standIn struct {
	*httptest.Server
	mu     sync.Mutex
	claims []types.UID
	silent bool
	cut    bool // from the controller
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		panic(http.ErrAbortHandler)
	}
	i, err := remote.IdentityOf(r.TLS.PeerCertificates[0])
	if s.silent || err != nil || !i.Controller || r.URL.Path != remote.SessionsPath || r.Method != http.MethodPut {
		http.Error(w, "the engine does not accept connections", http.StatusServiceUnavailable)
		return
	}
	var list remote.SessionList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.claims = list.Claims
	_ = json.NewEncoder(w).Encode(list)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, "gpu-node")
}

// newWorldOn names the node.
func newWorldOn(t *testing.T, node string) *world {
	t.Helper()
	w := &world{T: t, node: node, api: fake.NewClientset(), servers: map[string]*standIn{},
		devices: map[string]string{}, clock: time.Now()}
	for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: node, Profile: "dgx-h100"}) {
		if _, err := w.api.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, d := range s.Spec.Devices {
			if ptr.Deref(d.Attributes["type"].StringValue, "") == "gpu" {
				w.gpus = append(w.gpus, d.Name)
			}
		}
	}
	slices.Sort(w.gpus)
	w.lead()
	return w
}

// lead makes a controller that knows nothing, as a new leader does.
func (w *world) lead() {
	view := cluster.New(clustertest.Driver)
	view.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "remote.gpu.nvidia.com", UID: "class"}})
	w.Controller = &Controller{Options: Options{Namespace: namespace, Account: account}, driver: clustertest.Driver,
		view: view, known: func() error { return nil }, guard: feature.NewGuard(), client: w.api,
		direct: crfake.NewClientBuilder().WithScheme(scheme.Scheme).Build(), gpus: metrics.NewRemoteGPUs(),
		publish: w.published, now: func() time.Time { return w.clock },
		caller: &caller{address: func(pod *corev1.Pod) string { return w.servers[pod.Name].Listener.Addr().String() }}}
	w.reset()
	w.Controller.pods = func() (all []*corev1.Pod) {
		list, err := w.api.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		return all
	}
	w.Controller.requests = func() (all []*certificatesv1.CertificateSigningRequest) {
		list, err := w.api.CertificatesV1().CertificateSigningRequests().List(context.Background(),
			metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		return all
	}
	if err := w.restore(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.follow()
}

// published writes the pool as one slice.
func (w *world) published(ctx context.Context, class *resourceapi.DeviceClass, devices []resourceapi.Device) error {
	w.pool = devices
	api := w.api.ResourceV1().ResourceSlices()
	_ = api.Delete(ctx, "remote", metav1.DeleteOptions{})
	_, err := api.Create(ctx, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "remote"},
		Spec: resourceapi.ResourceSliceSpec{Driver: "remote.gpu.nvidia.com", Devices: devices,
			Pool: resourceapi.ResourcePool{Name: remote.Pool}}}, metav1.CreateOptions{})
	return err
}

// follow tells the controller all claims, as an informer does.
func (w *world) follow() {
	list, err := w.api.ResourceV1().ResourceClaims("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		there[list.Items[i].UID] = true
		w.setClaim(cluster.SlimClaim(&list.Items[i]))
	}
	for uid, claim := range maps.Clone(w.claims) {
		if !there[uid] {
			w.dropClaim(claim)
		}
	}
}

// server creates a server pod, with a claim for the GPUs with these numbers.
func (w *world) server(name string, uid types.UID, numbers ...int) {
	var results []resourceapi.DeviceRequestAllocationResult
	for _, n := range numbers {
		results = append(results, resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: clustertest.Driver,
			Pool: w.node, Device: w.gpus[n]})
	}
	w.create(namespace, name+"-gpu", results...)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid,
		Labels: map[string]string{remote.ServerLabel: "lupine"}},
		Spec: corev1.PodSpec{NodeName: w.node, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu",
			ResourceClaimName: ptr.To(name + "-gpu")}}, Containers: []corev1.Container{{Name: "proxy"},
			{Name: "server", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	w.devices[name] = deviceName(pod)
	if w.servers[name] == nil { // before the controller can see the pod
		w.servers[name] = w.start()
	}
	if _, err := w.api.CoreV1().Pods(namespace).Create(w.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// start starts a server, which gets its certificate for each connection from the secret.
func (w *world) start() *standIn {
	s := &standIn{}
	s.Server = httptest.NewUnstartedServer(s)
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		secret, err := w.api.CoreV1().Secrets(namespace).Get(context.Background(), remote.ServerSecret,
			metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return remote.ServerTLS(secret.Data["tls.crt"], secret.Data["tls.key"], secret.Data["ca.crt"])
	}}
	s.StartTLS()
	w.Cleanup(s.Close)
	return s
}

func (w *world) create(namespace, name string, results ...resourceapi.DeviceRequestAllocationResult) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID(name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results}}
	if _, err := w.api.ResourceV1().ResourceClaims(namespace).Create(w.Context(), claim,
		metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// claim creates a claim that has the devices of these servers.
func (w *world) claim(name string, servers ...string) {
	var results []resourceapi.DeviceRequestAllocationResult
	for _, s := range servers {
		results = append(results, resourceapi.DeviceRequestAllocationResult{Request: "gpu",
			Driver: "remote.gpu.nvidia.com", Pool: remote.Pool, Device: w.devices[s],
			ShareID: ptr.To(types.UID("0b9e7a2e-0000-4000-8000-000000000000"))})
	}
	w.create("ml", name, results...)
}

// do does what a line says: a verb, and its words.
func (w *world) do(line string) {
	w.Helper()
	f := strings.Fields(line)
	claims := w.api.ResourceV1().ResourceClaims("ml")
	var err error
	switch f[0] {
	case "server": // POD UID GPU...
		var numbers []int
		for _, n := range f[3:] {
			numbers = append(numbers, int(n[0]-'0'))
		}
		w.server(f[1], types.UID(f[2]), numbers...)
	case "claim": // CLAIM POD...
		w.claim(f[1], f[2:]...)
	case "delete":
		err = claims.Delete(w.Context(), f[1], metav1.DeleteOptions{})
	case "deallocate":
		var claim *resourceapi.ResourceClaim
		if claim, err = claims.Get(w.Context(), f[1], metav1.GetOptions{}); err == nil {
			claim.Status = resourceapi.ResourceClaimStatus{}
			_, err = claims.UpdateStatus(w.Context(), claim, metav1.UpdateOptions{})
		}
	case "end": // POD
		_ = w.api.ResourceV1().ResourceClaims(namespace).Delete(w.Context(), f[1]+"-gpu", metav1.DeleteOptions{})
		err = w.api.CoreV1().Pods(namespace).Delete(w.Context(), f[1], metav1.DeleteOptions{})
	case "restart": // POD [CONTAINER]
		container := append(f, "server")[2]
		if container == "server" {
			w.servers[f[1]].claims = nil
		}
		var pod *corev1.Pod
		pod, err = w.api.CoreV1().Pods(namespace).Get(w.Context(), f[1], metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // it has ended
			err = nil
			break
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: container, RestartCount: 1})
		_, err = w.api.CoreV1().Pods(namespace).UpdateStatus(w.Context(), pod, metav1.UpdateOptions{})
		if container == "server" {
			w.devices[f[1]] = deviceName(pod)
		}
	case "label", "annotate": // POD VALUE
		var pod *corev1.Pod
		if pod, err = w.api.CoreV1().Pods(namespace).Get(w.Context(), f[1], metav1.GetOptions{}); err != nil {
			break
		}
		if f[0] == "label" {
			pod.Labels[remote.ServerLabel] = f[2]
		} else {
			pod.Annotations = map[string]string{remote.LinkAnnotation: f[2]}
		}
		_, err = w.api.CoreV1().Pods(namespace).Update(w.Context(), pod, metav1.UpdateOptions{})
	case "silent":
		w.servers[f[1]].silent = true
	case "cut": // POD...
		for _, pod := range f[1:] {
			w.servers[pod].cut = true
		}
	case "unready": // POD
		var pod *corev1.Pod
		if pod, err = w.api.CoreV1().Pods(namespace).Get(w.Context(), f[1], metav1.GetOptions{}); err == nil {
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
			_, err = w.api.CoreV1().Pods(namespace).UpdateStatus(w.Context(), pod, metav1.UpdateOptions{})
		}
	case "answers":
		w.servers[f[1]].silent, w.servers[f[1]].cut = false, false
	case "wait":
		var d time.Duration
		d, err = time.ParseDuration(f[1])
		w.clock = w.clock.Add(d)
	case "leader":
		w.lead()
	case "round":
		w.follow()
		_ = w.round(w.Context()) // errors about single servers are logged, and the state shows the rest
	default:
		w.Fatalf("unknown: %s", line)
	}
	if err != nil {
		w.Fatalf("%s: %v", line, err)
	}
}

// state says what is published, what servers have, and what claims say.
func (w *world) state() string {
	var b strings.Builder
	names := map[string]string{}
	for pod, device := range w.devices {
		names[device] = pod
	}
	for _, d := range w.pool {
		fmt.Fprintf(&b, "device %s", names[d.Name])
		for _, t := range d.Taints {
			fmt.Fprintf(&b, " %s:%s", t.Key, t.Effect)
		}
		fmt.Fprintln(&b)
	}
	for _, pod := range slices.Sorted(maps.Keys(w.servers)) {
		if claims := w.servers[pod].claims; len(claims) > 0 {
			fmt.Fprintf(&b, "server %s: %s\n", pod, claims)
		}
	}
	list, err := w.api.ResourceV1().ResourceClaims("ml").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range list.Items {
		for _, d := range c.Status.Devices {
			fmt.Fprintf(&b, "claim %s on %s:", c.Name, names[d.Device])
			for _, condition := range d.Conditions {
				fmt.Fprintf(&b, " %s=%s", condition.Type, condition.Status)
			}
			if d.Data != nil {
				s, err := remote.SessionOf(&c, d.Driver, d.Device)
				if _, _, bad := net.SplitHostPort(s.Address); err != nil || bad != nil {
					w.Errorf("claim %s: session %+v: %v, %v", c.Name, s, err, bad)
				}
				fmt.Fprintf(&b, " server=%s", s.Server)
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}
