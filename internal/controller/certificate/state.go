// SPDX-License-Identifier: Apache-2.0

// Package certificate issues and renews the serving certificate of the webhooks. It adds the next certificate to the CA
// bundle before it serves it.
package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
)

// The keys of the secret. The first two are those of every secret of type kubernetes.io/tls.
const (
	keyCertificate     = "tls.crt"
	keyPrivate         = "tls.key"
	keyTrusted         = "ca.crt" // the CA bundle of all certificates that may be in use
	keyNextCertificate = "next.crt"
	keyNextPrivate     = "next.key"
)

// pair is a certificate, followed by its CA certificate, and its key. The key of the CA is discarded after signing.
type pair struct{ certificate, key []byte }

// state is the content of the secret.
type state struct {
	current, next pair
	trusted       []byte // PEM
}

func stateOf(data map[string][]byte) state {
	return state{
		current: pair{data[keyCertificate], data[keyPrivate]},
		next:    pair{data[keyNextCertificate], data[keyNextPrivate]},
		trusted: data[keyTrusted],
	}
}

func (s state) data() map[string][]byte {
	// A secret of type kubernetes.io/tls must have the first two keys, even if they are empty.
	data := map[string][]byte{keyCertificate: s.current.certificate, keyPrivate: s.current.key, keyTrusted: s.trusted}
	if s.next.certificate != nil {
		data[keyNextCertificate], data[keyNextPrivate] = s.next.certificate, s.next.key
	}
	return data
}

func (s state) equal(other state) bool {
	return s.current.equal(other.current) && s.next.equal(other.next) && bytes.Equal(s.trusted, other.trusted)
}

func (p pair) equal(other pair) bool {
	return bytes.Equal(p.certificate, other.certificate) && bytes.Equal(p.key, other.key)
}

// issuer issues pairs for the service.
type issuer struct {
	name     string // of the service, as the API server uses it
	lifetime time.Duration
}

// backdating is how far in the past client-go sets NotBefore.
const backdating = time.Hour

func (i issuer) issue() (pair, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: i.name,
		MaxAge: i.lifetime + backdating})
	if err != nil {
		return pair{}, fmt.Errorf("make a certificate for %s: %w", i.name, err)
	}
	return pair{certificate, key}, nil
}

// parse parses the pair. It returns an error if the pair cannot serve that name.
func (p pair) parse(name string, now time.Time) (leaf, authority *x509.Certificate, err error) {
	if _, err := tls.X509KeyPair(p.certificate, p.key); err != nil {
		return nil, nil, err
	}
	chain, err := cert.ParseCertsPEM(p.certificate)
	if err != nil {
		return nil, nil, err
	}
	if len(chain) < 2 {
		return nil, nil, errors.New("the authority is missing behind the certificate")
	}
	leaf, authority = chain[0], chain[len(chain)-1]
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
		return nil, nil, err
	}
	return leaf, authority, nil
}

// unusable reports whether the pair cannot serve that name.
func (p pair) unusable(name string, now time.Time) bool {
	_, _, err := p.parse(name, now)
	return err != nil
}

// issuedAt returns when the pair was issued.
func issuedAt(leaf *x509.Certificate) time.Time { return leaf.NotBefore.Add(backdating) }

// advance returns the next state. A certificate is replaced when a third of its lifetime is left. Its successor is
// issued and added to the CA bundle first. It is served only after settle, when every API server has the new bundle.
// Without a usable certificate, the new one is served at once.
func (s state) advance(i issuer, now time.Time, settle time.Duration) (state, error) {
	leaf, authority, err := s.current.parse(i.name, now)
	nextLeaf, nextAuthority, nextErr := s.next.parse(i.name, now)
	switch {
	case err != nil && nextErr == nil:
		return state{current: s.next, trusted: bundle(nextAuthority)}, nil
	case err != nil:
		fresh, err := i.issue()
		if err != nil {
			return state{}, err
		}
		_, authority, err := fresh.parse(i.name, now)
		if err != nil {
			return state{}, fmt.Errorf("use the certificate that was just made: %w", err)
		}
		return state{current: fresh, trusted: bundle(authority)}, nil
	case nextErr == nil && now.Sub(issuedAt(nextLeaf)) >= settle:
		// Keep the old CA: another replica may still serve the old certificate.
		return state{current: s.next, trusted: bundle(authority, nextAuthority)}, nil
	case nextErr == nil:
		return state{current: s.current, next: s.next, trusted: bundle(authority, nextAuthority)}, nil
	}
	life := leaf.NotAfter.Sub(issuedAt(leaf))
	if now.Before(issuedAt(leaf).Add(life - life/3)) {
		trusted := s.trusted
		if !trusts(trusted, authority) {
			trusted = bundle(authority)
		}
		return state{current: s.current, trusted: trusted}, nil
	}
	next, err := i.issue()
	if err != nil {
		return state{}, err
	}
	_, nextAuthority, err = next.parse(i.name, now)
	if err != nil {
		return state{}, fmt.Errorf("use the certificate that was just made: %w", err)
	}
	return state{current: s.current, next: next, trusted: bundle(authority, nextAuthority)}, nil
}

func trusts(trusted []byte, authority *x509.Certificate) bool {
	all, err := cert.ParseCertsPEM(trusted)
	return err == nil && slices.ContainsFunc(all, authority.Equal)
}

// bundle encodes the CA certificates as PEM.
func bundle(authorities ...*x509.Certificate) []byte {
	text, err := cert.EncodeCertificates(authorities...)
	if err != nil {
		panic(err) // they were parsed from PEM
	}
	return text
}
