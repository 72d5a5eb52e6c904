// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// settleTime starts at the whole second before a certificate is issued, which takes a while.
const settleTime = 3 * time.Second

// replica is a manager and a server with its certificate.
type replica struct {
	manager *Manager
	server  *httptest.Server
}

func startReplica(t *testing.T, ctx context.Context, c client.Client, lifetime time.Duration) *replica {
	t.Helper()
	r := newReplica(t, c, lifetime)
	go func() { _ = r.manager.Start(ctx) }()
	for r.manager.Ready(nil) != nil {
		time.Sleep(time.Millisecond)
	}
	return r
}

func newReplica(t *testing.T, c client.Client, lifetime time.Duration) *replica {
	t.Helper()
	m := &Manager{Client: c, Secret: types.NamespacedName{Namespace: "ns", Name: "certificate"}, ServiceName: service,
		Configuration: "webhooks",
		Lifetime:      lifetime, Period: 20 * time.Millisecond, Settle: settleTime}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)        // the caller reports failures
	server.TLS = &tls.Config{GetCertificate: m.GetCertificate} //nolint:gosec // the default is what Go serves
	server.StartTLS()
	t.Cleanup(server.Close)
	return &replica{m, server}
}

// call connects to the replica as the API server would: with the service name and the CA bundle of the webhook
// configuration.
func (r *replica) call(ctx context.Context, c client.Client) error {
	var config admissionregistration.ValidatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: "webhooks"}, &config); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Webhooks[0].ClientConfig.CABundle)
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{RootCAs: roots, ServerName: service,
		MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", r.server.Listener.Addr().String())
	if err != nil {
		return err
	}
	return conn.Close()
}

func cluster() client.Client {
	hooks := []admissionregistration.ValidatingWebhook{{Name: "a.b.c"}, {Name: "d.e.f"}}
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "webhooks"},
			Webhooks: hooks},
		&admissionregistration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "webhooks"},
			Webhooks: []admissionregistration.MutatingWebhook{{Name: "g.h.i"}}},
	).Build()
}

// Calls to two replicas never fail while their certificates are replaced.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	const lifetime = 45 * time.Second // a successor is issued after 30 s, and used 3 s later
	ctx, stop := context.WithCancel(t.Context())
	c := cluster()
	replicas := []*replica{startReplica(t, ctx, c, lifetime), startReplica(t, ctx, c, lifetime)}
	served := map[string]bool{}
	var calls atomic.Int64
	var load sync.WaitGroup
	for _, r := range replicas {
		load.Go(func() {
			for ctx.Err() == nil {
				if err := r.call(ctx, c); err != nil && ctx.Err() == nil {
					t.Errorf("after %d calls: %v", calls.Load(), err)
					return
				}
				calls.Add(1)
				time.Sleep(50 * time.Millisecond) // making a key takes a processor for a while
			}
		})
	}
	for end := time.Now().Add(5 * time.Minute); len(served) < 2 &&
		time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		served[string(replicas[0].manager.serving.Load().Certificate[0])] = true
	}
	stop()
	load.Wait()
	if len(served) < 2 || calls.Load() < 100 {
		t.Errorf("got %d certificates and %d calls, want at least 2 and 100", len(served), calls.Load())
	}
}

// After the secret was removed or overwritten, replicas keep their certificate and restore the secret.
func TestInvalidSecret(t *testing.T) {
	ctx := t.Context()
	c := cluster()
	r := startReplica(t, ctx, c, time.Hour)
	before := r.manager.serving.Load()
	for what, corrupt := range map[string]func(*corev1.Secret) error{
		"removed": func(s *corev1.Secret) error { return c.Delete(ctx, s) },
		"emptied": func(s *corev1.Secret) error { s.Data = nil; return c.Update(ctx, s) },
		"spoilt": func(s *corev1.Secret) error {
			s.Data[keyCertificate], s.Data[keyTrusted] = []byte("x"), []byte("y")
			return c.Update(ctx, s)
		},
	} {
		var secret corev1.Secret
		if err := c.Get(ctx, r.manager.Secret, &secret); err != nil {
			t.Fatal(err)
		}
		if err := corrupt(&secret); err != nil {
			t.Fatal(err)
		}
		whole := func() bool {
			var now corev1.Secret
			return c.Get(ctx, r.manager.Secret, &now) == nil && !stateOf(now.Data).current.unusable(service, time.Now())
		}
		for end := time.Now().Add(5 * time.Minute); !whole(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not put back", what)
			}
			if err := r.call(ctx, c); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if r.manager.serving.Load() != before {
			t.Errorf("%s: another certificate is served, want the one that was good", what)
		}
	}
}

// Both the secret and the served certificate have expired, as after months of suspend. One replica issues another
// certificate, and the other one uses it.
func TestExpired(t *testing.T) {
	ctx := t.Context()
	old, err := issuer{service, -time.Minute}.issue()
	if err != nil {
		t.Fatal(err)
	}
	_, authority, err := old.parse(service, time.Now().Add(-backdating/2))
	if err != nil {
		t.Fatal(err)
	}
	expired := state{current: old, trusted: bundle(authority)}
	c := cluster()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "certificate"}, Data: expired.data()}
	if err := c.Create(ctx, secret); err != nil {
		t.Fatal(err)
	}
	var replicas []*replica
	for range 2 {
		r := newReplica(t, c, time.Hour)
		r.manager.last = expired
		if err := r.manager.serve(old); err != nil {
			t.Fatal(err)
		}
		if err := r.manager.trust(ctx, expired.trusted); err != nil {
			t.Fatal(err)
		}
		if err := r.call(ctx, c); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Fatalf("before: got %v, want a certificate that has expired", err)
		}
		replicas = append(replicas, r)
	}
	for _, r := range replicas {
		go func() { _ = r.manager.Start(ctx) }()
	}
	for _, r := range replicas {
		for end := time.Now().Add(5 * time.Minute); r.call(ctx, c) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the certificate is not replaced: %v", r.call(ctx, c))
			}
		}
	}
	if !bytes.Equal(replicas[0].manager.serving.Load().Certificate[0],
		replicas[1].manager.serving.Load().Certificate[0]) {
		t.Error("the replicas serve different certificates")
	}
}

// A patch changes only the CA bundle, and only where it differs.
func TestTrust(t *testing.T) {
	ctx := t.Context()
	c := cluster()
	m := &Manager{Client: c, Configuration: "webhooks"}
	version := func() string {
		var v admissionregistration.ValidatingWebhookConfiguration
		var m admissionregistration.MutatingWebhookConfiguration
		if err := c.Get(ctx, client.ObjectKey{Name: "webhooks"}, &v); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(ctx, client.ObjectKey{Name: "webhooks"}, &m); err != nil {
			t.Fatal(err)
		}
		for _, w := range v.Webhooks {
			if string(w.ClientConfig.CABundle) != "authority" {
				t.Errorf("webhook %s: got %q, want the authority", w.Name, w.ClientConfig.CABundle)
			}
		}
		if w := m.Webhooks[0]; string(w.ClientConfig.CABundle) != "authority" {
			t.Errorf("webhook %s: got %q, want the authority", w.Name, w.ClientConfig.CABundle)
		}
		return v.ResourceVersion + " " + m.ResourceVersion
	}
	if err := m.trust(ctx, []byte("authority")); err != nil {
		t.Fatal(err)
	}
	before := version()
	if err := m.trust(ctx, []byte("authority")); err != nil {
		t.Fatal(err)
	}
	if after := version(); after != before {
		t.Errorf("written again: got versions %s, want %s", after, before)
	}
}

// Ranking, or validation, is switched off by deleting its webhook configuration. The other one keeps working: a running
// replica renews the certificate, and a new one becomes ready.
func TestDeletedConfiguration(t *testing.T) {
	ctx := t.Context()
	for _, deleted := range []client.Object{&admissionregistration.MutatingWebhookConfiguration{},
		&admissionregistration.ValidatingWebhookConfiguration{}} {
		c := cluster()
		running := newReplica(t, c, time.Hour).manager
		if err := running.sync(ctx); err != nil {
			t.Fatal(err)
		}
		deleted.SetName("webhooks")
		if err := c.Delete(ctx, deleted); err != nil {
			t.Fatal(err)
		}
		fresh := newReplica(t, c, time.Hour).manager
		for name, m := range map[string]*Manager{"a running replica": running, "a new replica": fresh} {
			if err := m.sync(ctx); err != nil || m.Ready(nil) != nil {
				t.Errorf("without %T, %s: %v, ready: %v", deleted, name, err, m.Ready(nil))
			}
		}
		var secret corev1.Secret
		if err := c.Get(ctx, running.Secret, &secret); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, &secret); err != nil {
			t.Fatal(err)
		}
		if err := running.sync(ctx); err != nil {
			t.Errorf("without %T, the secret is put back: %v", deleted, err)
		}
	}
	c := cluster()
	for _, o := range []client.Object{&admissionregistration.MutatingWebhookConfiguration{},
		&admissionregistration.ValidatingWebhookConfiguration{}} {
		o.SetName("webhooks")
		if err := c.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := newReplica(t, c, time.Hour).manager.sync(ctx); err == nil {
		t.Error("without both: got no error")
	}
}
