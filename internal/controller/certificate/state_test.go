// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

const (
	service = "webhooks.ns.svc"
	life    = 30 * 24 * time.Hour
	settle  = time.Minute
)

// mustAdvance advances the state and checks the invariant: the CA bundle always covers the served certificate, and the
// one that another replica may still serve.
func mustAdvance(t *testing.T, s state, lifetime time.Duration, now time.Time) state {
	t.Helper()
	next, err := s.advance(issuer{service, lifetime}, now, settle)
	if err != nil {
		t.Fatal(err)
	}
	for _, served := range []pair{s.current, next.current} {
		if _, _, err := served.parse(service, now); err != nil {
			continue // it was unusable before
		}
		if !trusted(t, served, next.trusted, now) {
			t.Fatal("a certificate that is in use is not trusted")
		}
	}
	if next.next.certificate != nil {
		return next // issued by the real clock, it may already be older than settle
	}
	if again, err := stateOf(next.data()).advance(issuer{service, lifetime}, now, settle); err != nil ||
		!again.equal(next) {
		t.Fatalf("advancing again at the same time changes the state, err %v", err)
	}
	return next
}

func trusted(t *testing.T, p pair, authorities []byte, now time.Time) bool {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	leaf, _, err := p.parse(service, now)
	if err != nil {
		t.Fatal(err)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: service, CurrentTime: now})
	return err == nil
}

func TestRotation(t *testing.T) {
	start := time.Now()
	first := mustAdvance(t, state{}, life, start)
	if s := mustAdvance(t, first, life, start.Add(life/2)); !s.equal(first) {
		t.Error("renewed although half of its life is left")
	}
	renewal := start.Add(life*2/3 + time.Hour)
	// The library always uses the real clock. This certificate lives long enough to be new at the test's time.
	const long = 10 * life
	both := mustAdvance(t, first, long, renewal)
	if !both.current.equal(first.current) || both.next.certificate == nil {
		t.Fatal("when a third of its life is left: want a successor that is not used yet")
	}
	if !trusted(t, both.next, both.trusted, renewal) {
		t.Error("the successor is not trusted")
	}
	second := mustAdvance(t, both, long, renewal.Add(time.Second))
	if second.next.certificate != nil || second.current.equal(first.current) || !second.current.equal(both.next) {
		t.Fatal("after a while: want the successor in use")
	}
	if !trusted(t, first.current, second.trusted, renewal) {
		t.Error("the one before is not trusted any more, and another replica may still serve it")
	}
	if _, err := tls.X509KeyPair(second.current.certificate, second.current.key); err != nil {
		t.Error(err)
	}
}

func TestSuccessorIsUsedAfterSettle(t *testing.T) {
	start := time.Now()
	s := state{}
	s, err := s.advance(issuer{service, 3 * time.Minute}, start, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s, err = s.advance(issuer{service, 3 * time.Minute}, start.Add(150*time.Second), time.Hour)
	if err != nil || s.next.certificate == nil {
		t.Fatalf("want a successor, err %v", err)
	}
	again, err := s.advance(issuer{service, 3 * time.Minute}, start.Add(151*time.Second), time.Hour)
	if err != nil || !again.equal(s) {
		t.Errorf("want nothing changed before every API server knows of it, err %v", err)
	}
	// An expired certificate is replaced at once.
	again, err = s.advance(issuer{service, time.Hour}, start.Add(10*time.Minute), time.Hour)
	if err != nil || again.current.equal(s.current) {
		t.Errorf("want another in place of the expired one, err %v", err)
	}
}

func TestUnusablePairs(t *testing.T) {
	good := mustAdvance(t, state{}, life, time.Now()).data()
	foreign, err := issuer{"other.ns.svc", life}.issue()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := cert.ParseCertsPEM(good[keyCertificate])
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]map[string][]byte{
		"empty":                 {keyCertificate: nil, keyPrivate: nil},
		"not PEM":               {keyCertificate: []byte("certificate"), keyPrivate: []byte("key")},
		"the key of another":    {keyPrivate: foreign.key},
		"for another service":   {keyCertificate: foreign.certificate, keyPrivate: foreign.key},
		"without its authority": {keyCertificate: bundle(leaf[0])},
		"the successor is rubbish": {keyNextCertificate: []byte("x"), keyNextPrivate: []byte("y"),
			keyTrusted: []byte("z")},
	} {
		t.Run(name, func(t *testing.T) {
			data := maps.Clone(good)
			maps.Copy(data, change)
			got := mustAdvance(t, stateOf(data), life, time.Now())
			if _, _, err := got.current.parse(service, time.Now()); err != nil {
				t.Error(err)
			}
			if !trusted(t, got.current, got.trusted, time.Now()) {
				t.Error("what is served is not trusted")
			}
		})
	}
}
