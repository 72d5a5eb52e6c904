// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	webhookserver "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
)

const period = 30 * time.Second

// world is an API server with the webhook configurations, and a replica of the controller.
type world struct {
	client.Client
	t    *testing.T
	gate *Gate
}

func newWorld(t *testing.T) *world {
	t.Helper()
	service := admissionregistration.WebhookClientConfig{Service: &admissionregistration.ServiceReference{Name: "s"}}
	w := &world{t: t, Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Webhooks: []admissionregistration.ValidatingWebhook{{Name: "quota.gpu.example", ClientConfig: service},
				{Name: "check.gpu.example", ClientConfig: service}}},
		&admissionregistration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Webhooks: []admissionregistration.MutatingWebhook{{Name: "convert.gpu.example", ClientConfig: service}}},
	).Build()}
	w.gate = w.replica()
	return w
}

// replica returns a replica that has seen the configurations.
func (w *world) replica() *Gate {
	g := NewGate(NewWebhooks("c", period), func() []byte { return nil })
	g.Webhooks.Client = w
	w.inform(g)
	return g
}

// inform lets the replica see the configurations, as its informers do.
func (w *world) inform(g *Gate) {
	all, err := certificate.Configurations(w.t.Context(), w, "c")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range all {
		g.Webhooks.See(c)
	}
}

// path returns the path that an API server calls now for the webhook.
func (w *world) path(webhook string) string {
	w.t.Helper()
	all, err := certificate.Configurations(w.t.Context(), w, "c")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range all {
		for _, h := range c.Webhooks() {
			if strings.HasPrefix(h.Name, webhook+".") {
				return ptr.Deref(h.ClientConfig.Service.Path, "/")
			}
		}
	}
	w.t.Fatalf("there is no webhook %s", webhook)
	return ""
}

// unread is a body that nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body of a refused request is read")
	return 0, io.EOF
}

// call returns the status of the answer, and "served PATH" if the webhook was reached.
func (w *world) call(g *Gate, path string, change func(*http.Request)) string {
	w.t.Helper()
	mux, answer := http.NewServeMux(), httptest.NewRecorder()
	served := func(a http.ResponseWriter, r *http.Request) { fmt.Fprint(a, "served ", r.URL.Path) }
	mux.Handle("/", g.Enter(mux))
	mux.Handle("/quota", g.Inside(http.HandlerFunc(served)))
	r := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, path, unread{w.t})
	if change != nil {
		change(r)
	}
	mux.ServeHTTP(answer, r)
	if answer.Code == http.StatusOK {
		return answer.Body.String()
	}
	if answer.Code == http.StatusForbidden && answer.Header().Get("Connection") != "close" {
		w.t.Error("the connection of a refused call stays open")
	}
	return fmt.Sprint(answer.Code)
}

func TestOnlyAPIServersAreServed(t *testing.T) {
	w := newWorld(t)
	if err := w.gate.Webhooks.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := w.path("quota")
	_, networks, _ := net.ParseCIDR("10.0.0.0/8")
	for _, tc := range []struct {
		name, path, from string
		addresses        bool
		want             string
	}{
		{"the path of the configuration", now, "192.0.2.1:1", false, "served /quota"},
		{"the path without its secret", "/quota", "192.0.2.1:1", false, "403"},
		{"a guess", "/quota/" + strings.Repeat("0", 32), "192.0.2.1:1", false, "403"},
		{"an empty secret", "/quota/", "192.0.2.1:1", false, "403"},
		{"nothing", "/", "192.0.2.1:1", false, "403"},
		{"a webhook that is not there", strings.Replace(now, "quota", "quotas", 1), "192.0.2.1:1", false, "404"},
		{"an address of an API server", now, "10.1.2.3:1", true, "served /quota"},
		{"the path from another address", now, "192.0.2.1:1", true, "403"},
		{"an address of an API server without the path", "/quota", "10.1.2.3:1", true, "403"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.gate.Addresses = nil
			if tc.addresses {
				w.gate.Addresses = []net.IPNet{*networks}
			}
			if got := w.call(w.gate, tc.path, func(r *http.Request) { r.RemoteAddr = tc.from }); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
	for reason, want := range map[string]float64{"path": 5, "address": 1} {
		if got := testutil.ToFloat64(w.gate.refused.WithLabelValues(reason)); got != want {
			t.Errorf("the metric has %v calls refused for the %s, want %v", got, reason, want)
		}
	}
}

// A path that a tenant has read in the message of a failed call is of no use soon afterwards, and no call of an API
// server that knows the path of a moment before is refused, by any replica.
func TestPathsAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		w := newWorld(t)
		other := w.replica()
		done := make(chan error)
		go func() { done <- w.gate.Webhooks.Start(ctx) }()
		defer func() {
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		replicas := []*Gate{w.gate, other}    // only the first one replaces secrets
		follow := func(lasts time.Duration) { // all see everything
			for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(time.Second) {
				synctest.Wait()
				for _, g := range replicas {
					w.inform(g)
				}
			}
		}
		wants := func(path, want string) {
			t.Helper()
			for i, g := range replicas {
				if got := w.call(g, path, nil); got != want {
					t.Errorf("replica %d: got %s, want %s", i, got, want)
				}
			}
		}
		const served, refused = "served /quota", "403"
		follow(5 * time.Second)
		first := w.path("quota")
		wants(first, served)
		for w.path("quota") == first {
			follow(time.Second)
			wants(w.path("quota"), served)
		}
		wants(first, served) // an API server does not know yet
		follow(Overlap + time.Second)
		wants(first, refused)

		giveUp := func(r *http.Request) {
			gone, leave := context.WithCancel(r.Context())
			leave()
			*r = *r.WithContext(gone)
		}
		second := w.path("quota")
		w.call(w.gate, second, giveUp)
		follow(settle + time.Second)
		if w.path("quota") == second {
			t.Error("the path stays after a call that was given up")
		}
		wants(w.path("quota"), served)
		follow(AfterLeak)
		wants(second, refused)

		// An API server may know the next path before the replica, and give up a call of it.
		next := "/quota/" + w.gate.Webhooks.secrets["ValidatingWebhookConfiguration"].next
		w.call(w.gate, next, giveUp)
		for w.path("quota") != next {
			follow(time.Second)
		}
		follow(settle + time.Second)
		if w.path("quota") == next {
			t.Error("the next path stays after a call that was given up")
		}
		follow(AfterLeak)
		wants(next, refused)

		// The port was down, so nobody has seen the call: a replica that starts replaces the path, and so does time.
		leaked := w.path("quota")
		starts := w.replica()
		time.Sleep(settle)
		if err := starts.Webhooks.renew(t.Context()); err != nil || w.path("quota") == leaked {
			t.Errorf("got %v, and path %s, want another one", err, w.path("quota"))
		}
		leaked, replicas = w.path("quota"), append(replicas, starts)
		follow(period + Overlap + 2*time.Second)
		wants(leaked, refused)
	})
}

// Whoever writes the configuration anew, such as a rollback, gets a secret in all paths again.
func TestPathsWithoutASecret(t *testing.T) {
	w := newWorld(t)
	if err := w.gate.Webhooks.Ready(nil); err == nil {
		t.Error("ready although no path has a secret")
	}
	for range 2 {
		if err := w.gate.Webhooks.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.gate.Webhooks.Ready(nil); err != nil {
			t.Error(err)
		}
		for _, webhook := range []string{"quota", "check", "convert"} {
			if of, ok := strings.CutPrefix(w.path(webhook), "/"+webhook+"/"); !ok || len(of) != 32 {
				t.Errorf("got %s, want /%s/ and 128 bits", w.path(webhook), webhook)
			}
		}
		var config admissionregistration.ValidatingWebhookConfiguration
		if err := w.Get(t.Context(), client.ObjectKey{Name: "c"}, &config); err != nil {
			t.Fatal(err)
		}
		config.Webhooks[1].ClientConfig.Service.Path, config.Annotations = ptr.To("/check"), nil
		if err := w.Update(t.Context(), &config); err != nil {
			t.Fatal(err)
		}
		w.inform(w.gate)
	}
}

// A stranger who sends slowly is answered before that, and gets no more time.
func TestSlowRequestsOfStrangers(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewServer(w.gate.Enter(http.NotFoundHandler()))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /quota HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\nx") // and nothing else
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusForbidden {
		t.Errorf("got %s, %v, want it refused", answer.Status, err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the connection closed", err)
	}
}

// Of those who open connections and call nothing, the oldest are cut off, whatever they have sent. Strangers take no
// place of connections from the address of an API server, of which more stay.
func TestConnectionsOfStrangers(t *testing.T) {
	all := newStrangers()
	conns := map[string]*conn{}
	enter := func(host string, n int) {
		for range n {
			from := fmt.Sprintf("%s:%d", host, len(conns)+1)
			conns[from] = &conn{from: from}
			all.enter(conns[from])
		}
	}
	open := func(host string) (n int) {
		for from, c := range conns {
			if strings.HasPrefix(from, host+":") && !c.closed {
				n++
			}
		}
		return n
	}
	enter("10.0.0.1", 3) // an API server
	all.leave(&http.Request{RemoteAddr: "10.0.0.1:1"})
	enter("192.0.2.7", 2*maxStrangers)
	enter("10.0.0.1", 2*maxUnused)
	if got, want := open("10.0.0.1"), 3+maxUnused; got != want {
		t.Errorf("got %d open connections of the API server, want %d", got, want)
	}
	if got := open("192.0.2.7"); got != maxStrangers {
		t.Errorf("got %d open connections of strangers, want %d", got, maxStrangers)
	}
}

// conn is a connection that is only closed.
type conn struct {
	net.Conn
	from   string
	closed bool
}

func (c *conn) RemoteAddr() net.Addr { return addr(c.from) }
func (c *conn) Close() error         { c.closed = true; return nil }

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// A connection that sends half of a handshake, or half of a header, ends, and takes little memory until then. One from
// the address of a known caller stays: API servers open some for later, and a call would fail on one that ends.
func TestHalfRequests(t *testing.T) {
	w := newWorld(t)
	certs, key, err := cert.GenerateSelfSignedCertKey("c.ns.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	ctx, end := context.WithCancel(t.Context())
	s := &Server{Gate: w.gate, DefaultServer: &webhookserver.DefaultServer{Options: webhookserver.Options{
		Host: "127.0.0.1", Port: port}},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }}
	s.Register("/quota", w.gate.Inside(http.NotFoundHandler()))
	done := make(chan error)
	go func() { done <- s.Start(ctx) }()
	defer func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for s.StartedChecker()(nil) != nil {
		time.Sleep(time.Millisecond)
	}
	s.Register("/", w.gate.Enter(s.WebhookMux()))
	if err := w.gate.Webhooks.renew(ctx); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.0.1:%d", port)
	spare := dial(t, at, "127.0.0.2")
	known := dial(t, at, "127.0.0.2")
	call := func(c net.Conn) {
		t.Helper()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", w.path("quota"))
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusNotFound { // as the webhook answers
			t.Fatalf("got %s", answer.Status)
		}
	}
	call(known)
	hello, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer hello.Close()
	fmt.Fprint(hello, "\x16\x03\x01\x40\x00\x01\x00\xff\xff") // of 64 KiB, and no more comes
	header := dial(t, at, "127.0.0.1")
	fmt.Fprint(header, "POST /quota HTTP/1.1\r\nX: "+strings.Repeat("x", 2*maxHeader))
	for name, c := range map[string]net.Conn{"half a hello": hello, "half a header": header} {
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays", name)
		}
	}
	call(spare)
}

// dial opens a TLS connection from an address of this machine.
func dial(t *testing.T, at, from string) net.Conn {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := tls.DialWithDialer(d, "tcp", at,
		&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // nothing is sent to it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Only who has the key of a certificate that is made for schedulers, or of one of the same authority, gets scores.
func TestSchedulers(t *testing.T) {
	issue := func() (pair tls.Certificate, authority []byte) {
		certs, key, err := cert.GenerateSelfSignedCertKey("placement.c.ns.svc", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if pair, err = tls.X509KeyPair(certs, key); err != nil {
			t.Fatal(err)
		}
		chain, err := x509.ParseCertificates(pair.Certificate[1])
		if err != nil {
			t.Fatal(err)
		}
		if authority, err = cert.EncodeCertificates(chain...); err != nil {
			t.Fatal(err)
		}
		return pair, authority
	}
	own, authority := issue()
	other, _ := issue()
	trusted := authority
	gate := NewGate(NewWebhooks("c", period), func() []byte { return trusted })
	scores := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewUnstartedServer(gate.Schedulers(scores))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{own}, //nolint:gosec // the default is what Go serves
		ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	call := func(with ...tls.Certificate) string {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, Certificates: with}}} //nolint:gosec // the server judges here
		answer, err := c.Post(server.URL, "", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %.30s", answer.StatusCode, text)
	}
	for _, tc := range []struct {
		name, want string
		with       []tls.Certificate
	}{
		{"a scheduler", "200 ", []tls.Certificate{own}},
		{"without a certificate", "403 there is no client certificate", nil},
		{"with another's certificate", "403 client certificate: x509: ", []tls.Certificate{other}},
		{"again", "200 ", []tls.Certificate{own}},
	} {
		if got := call(tc.with...); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
	trusted = nil
	if got := call(own); !strings.HasPrefix(got, "403") {
		t.Errorf("got %s, want nobody trusted without an authority", got)
	}
}
