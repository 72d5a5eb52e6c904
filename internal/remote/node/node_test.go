// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/internal/remote/serve"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

const driver = "remote.gpu.nvidia.com"

// http2 speaks HTTP/2 without TLS, as Lupine.
var http2 = func() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}()

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// server is a server pod with a stand-in for an engine.
type server struct {
	pod        types.UID
	engine     *http.Server
	address    string
	controller *http.Client
	waiting    chan struct{} // a request for /wait has reached the engine
}

// serve starts a server pod whose certificate is issued by of, and which trusts trusted.
func startServer(t *testing.T, pod types.UID, of, trusted remote.Authority) *server {
	t.Helper()
	s := &server{pod: pod, waiting: make(chan struct{}, 1)}
	engine, public := listen(t), listen(t)
	s.address = public.Addr().String()
	s.engine = &http.Server{Protocols: http2, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				s.waiting <- struct{}{}
				<-r.Context().Done()
				return
			}
			_, _ = fmt.Fprint(w, pod)
		})}
	go func() { _ = s.engine.Serve(engine) }()
	t.Cleanup(func() { _ = s.engine.Close() })

	dir := tmpfs.Dir(t)
	certificate, key, err := of.Server(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	authority, _ := trusted.PEM()
	for name, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": authority} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	front := &serve.Server{Pod: pod, Certificates: dir, Log: slog.New(slog.DiscardHandler),
		Dial: func() (net.Conn, error) { return net.Dial("tcp", engine.Addr().String()) }}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- front.Serve(ctx, public) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	config, err := trusted.Controller(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s.controller = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	t.Cleanup(s.controller.CloseIdleConnections)
	return s
}

// admit does what the controller does.
func (s *server) admit(t *testing.T, claims ...types.UID) (int, remote.SessionList) {
	t.Helper()
	body, err := json.Marshal(remote.SessionList{Claims: claims})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://"+s.address+remote.SessionsPath,
		bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.controller.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var list remote.SessionList
	if answer.StatusCode == http.StatusOK {
		if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
	}
	return answer.StatusCode, list
}

type csrStatus = certificates.CertificateSigningRequestStatus

// client is a node with the plugin and the relay, and a controller that signs what answer says.
type client struct {
	*Plugin
	relay *relay
}

func startNode(t *testing.T, dir string, issue func(claim types.UID) csrStatus) client {
	t.Helper()
	api := fake.NewClientset()
	api.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object,
		error) {
		csr := a.(clienttesting.CreateAction).GetObject().(*certificates.CertificateSigningRequest)
		claim, _, err := remote.ParseRequest(csr.Spec.Request)
		if err != nil || csr.Spec.SignerName != "gpu.nvidia.com/remote-session" {
			t.Errorf("got request for %s, %v", csr.Spec.SignerName, err)
		}
		csr.Status = issue(claim)
		if csr.Status.Certificate != nil { // of the public key of the request
			csr.Status.Certificate = signed(t, csr.Spec.Request)
		}
		return true, csr, nil
	})
	l := listen(t)
	p, err := newPlugin(Config{Driver: driver, NodeName: "node", PluginDir: dir, CDIDir: filepath.Join(dir, "cdi"),
		ClientDir: filepath.Join(dir, "client"), Engine: "lupine", Client: api}, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := client{p, &relay{engine: p.engine, sessions: p.sessions}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.relay.serve(ctx, l)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return c
}

// authority and serverOf are the controller's, for signed.
var (
	authority remote.Authority
	serverOf  = map[types.UID]types.UID{} // by claim
)

func newAuthority(t *testing.T) remote.Authority {
	t.Helper()
	a, err := remote.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func signed(t *testing.T, request []byte) []byte {
	claim, public, err := remote.ParseRequest(request)
	if err != nil {
		t.Error(err)
	}
	text, err := authority.Session(public, serverOf[claim], claim)
	if err != nil {
		t.Error(err)
	}
	return text
}

// issues signs every request.
func issues(types.UID) certificates.CertificateSigningRequestStatus {
	return certificates.CertificateSigningRequestStatus{Certificate: []byte("any")}
}

// claimOf returns a claim that the controller has admitted at the server.
func claimOf(t *testing.T, uid types.UID, s *server) *resourceapi.ResourceClaim {
	t.Helper()
	data, err := remote.Session{Engine: "lupine", Address: s.address, Server: s.pod}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	serverOf[uid] = s.pod
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: uid},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{
					{Request: "nic", Driver: "nic.example.com", Pool: "node", Device: "nic"},
					{Request: "gpu", Driver: driver, Pool: remote.Pool, Device: "gpu-" + string(s.pod)}}}},
			Devices: []resourceapi.AllocatedDeviceStatus{{Driver: driver, Pool: remote.Pool,
				Device: "gpu-" + string(s.pod), Data: data}}}}
}

func (c client) prepareOne(t *testing.T, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	t.Helper()
	results, err := c.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	return results[claim.UID].Devices, results[claim.UID].Err
}

func (c client) mustPrepare(t *testing.T, claim *resourceapi.ResourceClaim) container {
	t.Helper()
	if _, err := c.prepareOne(t, claim); err != nil {
		t.Fatal(err)
	}
	return c.container(t)
}

func (c client) unprepare(t *testing.T, claim types.UID) {
	t.Helper()
	errs, err := c.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: claim}})
	if err = errors.Join(err, errs[claim]); err != nil {
		t.Errorf("%s: %v", claim, err)
	}
}

// container is what the last CDI spec gives to a container.
type container struct {
	Env    []string
	Mounts []struct{ HostPath, ContainerPath string }
	Hooks  []struct {
		Path string
		Args []string
	}
}

func (c client) container(t *testing.T) (last container) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.CDIDir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no CDI spec", err)
	}
	var newest time.Time
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got mode %s: it has a token", file, info.Mode())
		}
		var spec struct {
			Devices []struct{ ContainerEdits container }
		}
		if err := json.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		if info.ModTime().After(newest) {
			newest, last = info.ModTime(), spec.Devices[0].ContainerEdits
		}
	}
	return last
}

func (c container) variable(name string) string {
	for _, v := range c.Env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// call calls the engine as Lupine's client does.
func (c container) call(ctx context.Context, path, token string) (string, error) {
	transport := &http.Transport{Protocols: http2}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.variable("LUPINE_SERVER")+path, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("x-lupine-session", token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

func TestSessions(t *testing.T) {
	authority = newAuthority(t)
	foreign := newAuthority(t)
	one, two := startServer(t, "one", authority, authority), startServer(t, "two", authority, authority)
	false1 := startServer(t, "one", foreign, authority)
	dir := tmpfs.Dir(t)
	node := startNode(t, dir, issues)

	a := node.mustPrepare(t, claimOf(t, "a", one))
	b := node.mustPrepare(t, claimOf(t, "b", one))
	elsewhere := node.mustPrepare(t, claimOf(t, "c", two))
	stolen := claimOf(t, "d", &server{pod: "one", address: two.address})
	misled := node.mustPrepare(t, stolen) // its certificate is for the other server
	spoofed := node.mustPrepare(t, claimOf(t, "e", false1))
	late := node.mustPrepare(t, claimOf(t, "late", one))
	if status, list := one.admit(t, "a", "b", "d", "e"); status != http.StatusOK || len(list.Claims) != 4 {
		t.Errorf("got %d, %v", status, list)
	}
	two.admit(t, "c", "d")
	for _, row := range []struct {
		name string
		from container
		with string
		want string // empty: refused
	}{
		{"a session", a, a.variable("LUPINE_SESSION"), "one"},
		{"another on the same server", b, b.variable("LUPINE_SESSION"), "one"},
		{"a session on another server", elsewhere, elsewhere.variable("LUPINE_SESSION"), "two"},
		{"the token decides, not the container", a, elsewhere.variable("LUPINE_SESSION"), "two"},
		{"a wrong token", a, strings.Repeat("0", 64), ""},
		{"no token", a, "", ""},
		{"a certificate for another server", misled, misled.variable("LUPINE_SESSION"), ""},
		{"a server of another authority", spoofed, spoofed.variable("LUPINE_SESSION"), ""},
		{"not admitted", late, late.variable("LUPINE_SESSION"), ""},
	} {
		got, err := row.from.call(t.Context(), "/", row.with)
		if got != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%s: got %q, %v, want %q", row.name, got, err, row.want)
		}
	}
	if a.variable("LUPINE_SESSION") == b.variable("LUPINE_SESSION") {
		t.Error("two claims have the same token")
	}

	// The end of a session ends its connection, and no other.
	ended := func(c container) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := c.call(t.Context(), "/wait", c.variable("LUPINE_SESSION"))
			result <- err
		}()
		return result
	}
	waitA := ended(a)
	<-one.waiting
	waitB := ended(b)
	<-one.waiting
	one.admit(t, "b")
	if err := <-waitA; err == nil {
		t.Error("the connection of an ended session ended without an error")
	}
	if got, err := a.call(t.Context(), "/", a.variable("LUPINE_SESSION")); err == nil {
		t.Errorf("an ended session: got %q", got)
	}
	select {
	case err := <-waitB:
		t.Errorf("the other session has ended, too: %v", err)
	default:
	}
	node.unprepare(t, "b")
	if err := <-waitB; err == nil {
		t.Error("the connection of an unprepared claim ended without an error")
	}

	// Another process of the plugin goes on with what is recorded.
	one.admit(t, "a", "b")
	again := startNode(t, dir, func(types.UID) csrStatus {
		t.Error("asked for another certificate")
		return csrStatus{}
	})
	kept := again.mustPrepare(t, claimOf(t, "a", one))
	if got, err := kept.call(t.Context(), "/", a.variable("LUPINE_SESSION")); got != "one" {
		t.Errorf("after a restart: got %q, %v", got, err)
	}
	if got, err := kept.call(t.Context(), "/", b.variable("LUPINE_SESSION")); err == nil {
		t.Errorf("an unprepared claim after a restart: got %q", got)
	}

	// The engine ends.
	_ = one.engine.Close()
	if got, err := kept.call(t.Context(), "/", a.variable("LUPINE_SESSION")); err == nil {
		t.Errorf("without an engine: got %q", got)
	}
	if err := again.leave(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "sessions/*")); err != nil || len(left) != 5 {
		t.Errorf("records after the end of the plugin: got %v, %v, want 5", left, err)
	}
	for _, claim := range []types.UID{"a", "b", "c", "d", "e", "late"} {
		again.unprepare(t, claim)
	}
	if err := again.leave(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err == nil {
		t.Errorf("left: %v", left)
	}
}

// Only the controller's certificate may change the sessions, and before the engine answers there are none.
func TestController(t *testing.T) {
	authority = newAuthority(t)
	s := startServer(t, "pod", authority, authority)
	_ = s.engine.Close()
	if status, _ := s.admit(t, "a"); status != http.StatusServiceUnavailable {
		t.Errorf("without an engine: got %d", status)
	}
	request, key, err := remote.NewRequest("a")
	if err != nil {
		t.Fatal(err)
	}
	serverOf["a"] = "pod"
	ca, _ := authority.PEM()
	config, err := remote.ClientTLS(signed(t, request), key, ca)
	if err != nil {
		t.Fatal(err)
	}
	s.controller = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	body := strings.NewReader(`{"claims":["mine"]}`)
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://"+s.address+remote.SessionsPath, body)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := s.controller.Do(put); err == nil {
		t.Errorf("a session changes sessions: got %s", answer.Status)
		_ = answer.Body.Close()
	}
	config.Certificates = nil
	conn, err := tls.Dial("tcp", s.address, config)
	if err == nil { // the server's answer to no certificate comes with the first read
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: got %v", err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	authority = newAuthority(t)
	s := &server{pod: "one", address: "127.0.0.1:1"}
	denied := func(types.UID) csrStatus {
		return csrStatus{Conditions: []certificates.CertificateSigningRequestCondition{
			{Type: certificates.CertificateDenied, Status: corev1.ConditionTrue, Message: "the pod is on node x"}}}
	}
	waits := func(types.UID) csrStatus {
		return csrStatus{}
	}
	two := claimOf(t, "a", s)
	results := &two.Status.Allocation.Devices.Results
	*results = append(*results, (*results)[1])
	notReady := claimOf(t, "a", s)
	notReady.Status.Devices = nil
	other := claimOf(t, "a", s)
	other.Status.Devices[0].Data.Raw = []byte(`{"engine":"orion","address":"a:1","server":"one"}`)
	for _, row := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		issue func(types.UID) csrStatus
		want  string
	}{
		{"two remote GPUs", two, issues,
			"the claim has 2 remote GPUs: a claim can have 1, because a client has one address and one token"},
		{"not admitted", notReady, issues, remote.ErrNotReady.Error()},
		{"another engine", other, issues,
			"device gpu-one is served by engine orion; this node has the client of lupine"},
		{"denied", claimOf(t, "a", s), denied, "certificate of the session: Denied: the pod is on node x"},
		{"the kubelet's call ends", claimOf(t, "a", s), waits,
			"certificate of the session: the controller has not signed request : context canceled"},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := startNode(t, tmpfs.Dir(t), row.issue)
			ctx, cancel := context.WithCancel(t.Context())
			if row.name == "the kubelet's call ends" {
				cancel()
			}
			defer cancel()
			results, err := node.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{row.claim})
			if err = errors.Join(err, results["a"].Err); err == nil || err.Error() != row.want {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}

// Claims that the API has not had in two sweeps are released, as the kubelet does not do it any more.
func TestForgottenClaims(t *testing.T) {
	authority = newAuthority(t)
	s := &server{pod: "one", address: "127.0.0.1:1"}
	node := startNode(t, tmpfs.Dir(t), issues)
	api := node.Client.ResourceV1().ResourceClaims("ns")
	for _, uid := range []types.UID{"gone", "kept", "anew", "unallocated"} {
		claim := claimOf(t, uid, s)
		claim.Namespace, claim.Name = "ns", string(uid)
		if results, err := node.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim}); err != nil ||
			results[uid].Err != nil {
			t.Fatal(err, results[uid].Err)
		}
		switch uid {
		case "gone":
			continue
		case "anew":
			claim.UID = "another"
		case "unallocated":
			claim.Status.Allocation = nil
		}
		if _, err := api.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.sessions.put(session{Claim: "of-0.1.0", Token: "x"}); err != nil {
		t.Fatal(err)
	}
	left := func() (claims []string) {
		for _, one := range node.sessions.all() {
			claims = append(claims, string(one.Claim))
		}
		slices.Sort(claims)
		return claims
	}
	first := node.sweep(t.Context(), nil)
	if got := left(); len(got) != 5 {
		t.Errorf("after one sweep: got the sessions %v, want all", got)
	}
	node.sweep(t.Context(), first)
	if got := left(); !slices.Equal(got, []string{"kept", "of-0.1.0"}) {
		t.Errorf("after two sweeps: got the sessions %v, want [kept of-0.1.0]", got)
	}
	specs, err := filepath.Glob(filepath.Join(node.CDIDir, "*"))
	if err != nil || len(specs) != 1 || !strings.Contains(specs[0], "kept") {
		t.Errorf("got the CDI specs %v, %v, want that of the claim kept", specs, err)
	}
}

// The kubelet's next call goes on with the request of the one before, unless Kubernetes has deleted it.
func TestRequestIsKept(t *testing.T) {
	authority = newAuthority(t)
	node := startNode(t, tmpfs.Dir(t), issues)
	api := node.Client.(*fake.Clientset)
	var created int
	var csr *certificates.CertificateSigningRequest // what there is
	api.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object,
		error) {
		created++
		csr = a.(clienttesting.CreateAction).GetObject().(*certificates.CertificateSigningRequest).DeepCopy()
		csr.Name = fmt.Sprint("request-", created)
		return true, csr, nil
	})
	api.PrependReactor("get", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object,
		error) {
		if name := a.(clienttesting.GetAction).GetName(); csr == nil || name != csr.Name {
			return true, nil, apierrors.NewNotFound(certificates.Resource("certificatesigningrequests"), name)
		}
		return true, csr, nil
	})
	claim := claimOf(t, "a", &server{pod: "one", address: "127.0.0.1:1"})
	ended, end := context.WithCancel(t.Context())
	end()
	prepare := func(ctx context.Context, want string) {
		t.Helper()
		results, err := node.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
		if err = errors.Join(err, results["a"].Err); fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	const waits = "certificate of the session: the controller has not signed request %s: context canceled"
	prepare(ended, fmt.Sprintf(waits, "request-1"))
	prepare(ended, fmt.Sprintf(waits, "request-1"))
	csr = nil
	prepare(ended, fmt.Sprintf(waits, "request-2"))
	if created != 2 {
		t.Fatalf("got %d requests, want 2: one was deleted", created)
	}
	csr.Status.Certificate = signed(t, csr.Spec.Request)
	prepare(t.Context(), "<nil>")
	if s, ok := node.sessions.get("a"); !ok || created != 2 {
		t.Errorf("got the session %t after %d requests, want it after 2", ok, created)
	} else if _, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.Key)); err != nil {
		t.Errorf("the key is not that of the request: %v", err)
	}
}

func TestContainer(t *testing.T) {
	authority = newAuthority(t)
	s := &server{pod: "one", address: "127.0.0.1:1"}
	node := startNode(t, tmpfs.Dir(t), issues)
	devices, err := node.prepareOne(t, claimOf(t, "a", s))
	if err != nil {
		t.Fatal(err)
	}
	c := node.container(t)
	token := c.variable("LUPINE_SESSION")
	got := fmt.Sprintln(devices[0].Requests, devices[0].PoolName, devices[0].DeviceName, devices[0].CDIDeviceIDs, c)
	want := fmt.Sprintf("[gpu] remote gpu-one [k8s.remote.gpu.nvidia.com/claim=a] {[LUPINE_SERVER=%s "+
		"LUPINE_SESSION=%s NVIDIA_VISIBLE_DEVICES=void] [{%s/lib /usr/local/gpu-remote/lib}] [{%[3]s/cdi-hooks "+
		"[cdi-hooks update-ldcache --folder /usr/local/gpu-remote/lib]}]}\n", node.address, token, node.ClientDir)
	if got != want || len(token) != 64 {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// The server is replaced: another session, and the old token is worth nothing.
	s.pod = "two"
	claim := claimOf(t, "a", s)
	claim.Status.Allocation.Devices.Results[1].Device, claim.Status.Devices[0].Device = "gpu-one", "gpu-one"
	if now := node.mustPrepare(t, claim).variable("LUPINE_SESSION"); now == token {
		t.Error("the token is the same for another server")
	}
	if _, ok := node.sessions.open(token, nil); ok {
		t.Error("the old token is accepted")
	}
}
