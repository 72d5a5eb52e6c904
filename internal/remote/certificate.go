// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// serverName is the name in the certificate of servers.
	serverName = "gpu-remote-server"
	// scheme of the URIs that say whose a client certificate is.
	scheme = "gpu-remote"

	authorityLifetime = 20 * 365 * 24 * time.Hour
	clockSkew         = 5 * time.Minute

	certificateType = "CERTIFICATE"
	keyType         = "PRIVATE KEY"
	requestType     = "CERTIFICATE REQUEST"
)

// Identity is whose a client certificate is: that of the controller, or else of a session. It is a URI:
// gpu-remote://controller or gpu-remote://session/SERVER/CLAIM.
type Identity struct {
	Controller bool
	Server     types.UID // the server pod's
	Claim      types.UID
}

func (i Identity) uri() *url.URL {
	if i.Controller {
		return &url.URL{Scheme: scheme, Host: "controller"}
	}
	return &url.URL{Scheme: scheme, Host: "session", Path: "/" + string(i.Server) + "/" + string(i.Claim)}
}

// IdentityOf returns whose the certificate is.
func IdentityOf(c *x509.Certificate) (Identity, error) {
	if len(c.URIs) != 1 {
		return Identity{}, fmt.Errorf("certificate %s: has %d URIs, want 1", c.Subject, len(c.URIs))
	}
	i := Identity{Controller: true}
	if server, claim, ok := strings.Cut(strings.TrimPrefix(c.URIs[0].Path, "/"), "/"); ok {
		i = Identity{Server: types.UID(server), Claim: types.UID(claim)}
	}
	if c.URIs[0].String() != i.uri().String() {
		return Identity{}, fmt.Errorf("certificate %s: unknown URI %s", c.Subject, c.URIs[0])
	}
	return i, nil
}

// ServerOf returns the server that takes the certificate of a session. certificate is PEM.
func ServerOf(certificate []byte) (types.UID, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return "", errors.New("the certificate is not PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	identity, err := IdentityOf(leaf)
	return identity.Server, err
}

// Authority issues the certificates of servers, of sessions and of the controller.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority makes an authority with a new key.
func NewAuthority() (Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: scheme}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	a := Authority{certificate: template, key: key}
	text, err := a.issue(template, key.Public(), authorityLifetime)
	if err != nil {
		return Authority{}, err
	}
	return ParseAuthority(text, a.keyPEM())
}

// ParseAuthority returns the authority with this certificate and key, both in PEM.
func ParseAuthority(certificate, key []byte) (Authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return Authority{}, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return Authority{}, errors.New("the certificate is not that of an authority")
	}
	return Authority{certificate: pair.Leaf, key: signer}, nil
}

// PEM returns the certificate and the key of the authority.
func (a Authority) PEM() (certificate, key []byte) {
	return pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: a.certificate.Raw}), a.keyPEM()
}

func (a Authority) keyPEM() []byte { return encodeKey(a.key) }

// Server issues a certificate for servers, with a new key, both in PEM.
func (a Authority) Server(lifetime time.Duration) (certificate, key []byte, err error) {
	return a.pair(&x509.Certificate{Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, lifetime)
}

// Controller returns the TLS configuration with which the controller calls servers. It is good for the lifetime.
func (a Authority) Controller(lifetime time.Duration) (*tls.Config, error) {
	certificate, key, err := a.pair(clientOf(Identity{Controller: true}), lifetime)
	if err != nil {
		return nil, err
	}
	authority, _ := a.PEM()
	return ClientTLS(certificate, key, authority)
}

// Session issues the certificate of a session for a public key. The result also has that of the authority.
func (a Authority) Session(public any, server, claim types.UID) ([]byte, error) {
	// The server accepts it only while the controller admits the claim, so it need not end before the authority.
	text, err := a.issue(clientOf(Identity{Server: server, Claim: claim}), public, time.Until(a.certificate.NotAfter))
	authority, _ := a.PEM()
	return append(text, authority...), err
}

func clientOf(i Identity) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: i.uri().Host}, URIs: []*url.URL{i.uri()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

func (a Authority) pair(template *x509.Certificate, lifetime time.Duration) (certificate, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	certificate, err = a.issue(template, k.Public(), lifetime)
	return certificate, encodeKey(k), err
}

func (a Authority) issue(template *x509.Certificate, public any, lifetime time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-clockSkew), time.Now().Add(lifetime)
	if !template.IsCA {
		template.KeyUsage = x509.KeyUsageDigitalSignature
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: raw}), nil
}

func encodeKey(key crypto.Signer) []byte {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err) // only for kinds of keys that are not used here
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: raw})
}

// NewRequest makes a key and a request for the certificate of the claim's session, both in PEM.
func NewRequest(claim types.UID) (request, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: string(claim)}}, k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: raw}), encodeKey(k), nil
}

// ParseRequest returns the claim and the public key of a request.
func ParseRequest(request []byte) (claim types.UID, public any, err error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != requestType {
		return "", nil, errors.New("the request is not in PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", nil, err
	}
	return types.UID(r.Subject.CommonName), r.PublicKey, r.CheckSignature()
}

// ClientTLS returns how a client with this certificate connects to a server. All are in PEM.
func ClientTLS(certificate, key, authority []byte) (*tls.Config, error) {
	config, pool, err := configOf(certificate, key, authority)
	if err != nil {
		return nil, err
	}
	config.RootCAs, config.ServerName = pool, serverName
	return config, nil
}

// ServerTLS returns how a server with this certificate takes connections: only from clients with a certificate of the
// authority. All are in PEM.
func ServerTLS(certificate, key, authority []byte) (*tls.Config, error) {
	config, pool, err := configOf(certificate, key, authority)
	if err != nil {
		return nil, err
	}
	config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
	return config, nil
}

// configOf returns what clients and servers have in common, and who issues the certificates of the other side.
func configOf(certificate, key, authority []byte) (*tls.Config, *x509.CertPool, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, nil, err
	}
	pool, err := poolOf(authority)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}, pool, err
}

func poolOf(authority []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, errors.New("no certificate of an authority")
	}
	return pool, nil
}
