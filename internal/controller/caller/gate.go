// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
)

// Gate is before everything that the port serves.
type Gate struct {
	Webhooks *Webhooks
	// Addresses are those from which API servers call. Empty: any.
	Addresses []net.IPNet
	// Authorities sign the client certificates of API servers. Nil: they need none.
	Authorities *x509.CertPool
	// Scheduler returns the certificate authorities of schedulers, as PEM.
	Scheduler func() []byte

	refused   *prometheus.CounterVec
	strangers *strangers
}

// NewGate returns a gate that lets API servers in which know the webhooks' paths.
func NewGate(w *Webhooks, scheduler func() []byte) *Gate {
	return &Gate{Webhooks: w, Scheduler: scheduler, refused: metrics.NewRefusedCalls(), strangers: newStrangers()}
}

// Metrics are the calls that were refused.
func (g *Gate) Metrics() prometheus.Collector { return g.refused }

// admittedKey marks the context of requests of API servers.
type admittedKey struct{}

// Enter serves calls of API servers with what mux has for their path without the secret.
func (g *Gate) Enter(mux http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := strings.LastIndexByte(r.URL.Path, '/')
		path, secret := r.URL.Path[:at], r.URL.Path[at+1:]
		switch {
		case r.Context().Value(admittedKey{}) != nil:
			http.NotFound(w, r)
			return
		case !g.Webhooks.knows(secret):
			g.refuse(w, r, "path", errors.New("this path is not, or no longer, one of the driver's webhooks: only API "+
				"servers may call them; if you see this as an answer of the API server, try again"))
			return
		}
		if reason, err := g.refusal(r); err != nil {
			g.refuse(w, r, reason, err)
			return
		}
		g.strangers.leave(r)
		begin := time.Now()
		inside := r.Clone(context.WithValue(r.Context(), admittedKey{}, true))
		inside.URL.Path = path
		mux.ServeHTTP(w, inside)
		if r.Context().Err() != nil || time.Since(begin) >= AnswerTime(r) {
			g.Webhooks.gaveUp(secret)
		}
	})
}

// AnswerTime returns how long the answer to the request may take: as long as the API server waits, which it says in the
// parameter timeout, less what the answer may need on its way.
func AnswerTime(r *http.Request) time.Duration {
	waits, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || waits <= 0 || waits > 30*time.Second { // the most that a webhook's configuration may say
		waits = 10 * time.Second // as in Kubernetes
	}
	return waits - max(waits/10, 200*time.Millisecond)
}

// refusal returns an error and its reason if the address or the certificate is not that of an API server.
func (g *Gate) refusal(r *http.Request) (reason string, err error) {
	if len(g.Addresses) > 0 {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		if !slices.ContainsFunc(g.Addresses, func(n net.IPNet) bool { return n.Contains(net.ParseIP(from)) }) {
			return "address", fmt.Errorf("%s is not in --webhook-addresses, from which API servers call", r.RemoteAddr)
		}
	}
	if g.Authorities == nil {
		return "", nil
	}
	return "certificate", verify(r, x509.VerifyOptions{Roots: g.Authorities,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// Inside serves only calls that Enter has let in.
func (g *Gate) Inside(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(admittedKey{}) == nil {
			g.refuse(w, r, "path", errors.New("only API servers may call webhooks: the path lacks what they know"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Schedulers serves only callers with the certificate that is made for schedulers. An expired one is accepted, because
// schedulers read it only when they start.
func (g *Gate) Schedulers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.scheduler(r); err != nil {
			g.refuse(w, r, "certificate", fmt.Errorf("%w: the scheduler's configuration needs certData and keyData, "+
				"or certFile and keyFile, in the tlsConfig of the extender, from the secret that has its ca.crt", err))
			return
		}
		g.strangers.leave(r)
		next.ServeHTTP(w, r)
	})
}

func (g *Gate) scheduler(r *http.Request) error {
	roots, at := x509.NewCertPool(), time.Now()
	roots.AppendCertsFromPEM(g.Scheduler())
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		at = r.TLS.PeerCertificates[0].NotBefore
	}
	return verify(r, x509.VerifyOptions{Roots: roots, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
}

// verify verifies the certificate of the caller. TLS has proved that the caller has its key.
func verify(r *http.Request, o x509.VerifyOptions) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return errors.New("there is no client certificate")
	}
	o.Intermediates = x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := r.TLS.PeerCertificates[0].Verify(o); err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	return nil
}

// refuse answers without reading the body, and closes the connection.
func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, reason string, err error) {
	g.refused.WithLabelValues(reason).Inc()
	log.FromContext(r.Context()).V(2).Info("Refused a call", "from", r.RemoteAddr, "reason", err.Error())
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // net/http would read the rest of the body
	w.Header().Set("Connection", "close")
	http.Error(w, err.Error(), http.StatusForbidden)
}
