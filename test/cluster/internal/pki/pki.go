// SPDX-License-Identifier: Apache-2.0

// Package pki creates the certificates and kubeconfigs of a cluster.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime exceeds that of any test cluster.
const lifetime = 5 * 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject is the subject of a certificate, which is valid for servers and clients.
type Subject struct {
	CommonName    string
	Organizations []string
	IPs           []net.IP
	DNSNames      []string
}

// Pair is a certificate and its key, in PEM.
type Pair struct {
	Cert, Key []byte
}

// NewAuthority creates a self-signed authority.
func NewAuthority(name string) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Issue signs a certificate for the subject.
func (a *Authority) Issue(s Subject) (Pair, error) {
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template, err := newTemplate(pkix.Name{CommonName: s.CommonName, Organization: s.Organizations})
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses, template.DNSNames = s.IPs, s.DNSNames
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign %s: %w", s.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key of %s: %w", s.CommonName, err)
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: keyPEM}, nil
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() (Pair, error) {
	key, err := encodeKey(a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key of %s: %w", a.cert.Subject.CommonName, err)
	}
	return Pair{Cert: a.CertPEM(), Key: key}, nil
}

// CertPEM returns the authority's certificate, which others trust.
func (a *Authority) CertPEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// NewSigningKey creates the key pair for service account tokens.
func NewSigningKey() (private, public []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if private, err = encodeKey(key); err != nil {
		return nil, nil, fmt.Errorf("encode signing key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode signing key: %w", err)
	}
	return private, encode("PUBLIC KEY", der), nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour), // tolerates a clock that was set back
		NotAfter:     now.Add(lifetime),
	}, nil
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
