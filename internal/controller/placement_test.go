// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
)

// One port serves the webhooks' certificate, which changes, and that for schedulers, which trust one CA until they are
// restarted. A scheduler does not trust another certificate.
func TestCertificatesByName(t *testing.T) {
	o := Options{Namespace: "gpus", Name: "controller", CertificateLifetime: time.Hour}
	cluster := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: "u"}},
	).Build()
	webhooks, placement := o.certificates(), o.placementCertificates()
	for _, m := range []*certificate.Manager{webhooks, placement} {
		m.Client = cluster
		go func() { _ = m.Start(t.Context()) }()
		for m.Ready(nil) != nil {
			time.Sleep(time.Millisecond)
		}
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)                   // the client reports failures
	server.TLS = &tls.Config{GetCertificate: served(webhooks, placement)} //nolint:gosec // the default is what Go serves
	server.StartTLS()
	defer server.Close()
	for _, tc := range []struct {
		name, serverName, secret string
		trusted                  bool
	}{
		{"an API server", "controller.gpus.svc", "controller-certificate", true},
		{"a scheduler", "placement.controller.gpus.svc", "controller-placement", true},
		{"a scheduler with the CA of webhooks", "placement.controller.gpus.svc", "controller-certificate", false},
		{"a scheduler without the name", "controller.gpus.svc", "controller-placement", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var secret corev1.Secret
			key := client.ObjectKey{Namespace: o.Namespace, Name: tc.secret}
			if err := cluster.Get(t.Context(), key, &secret); err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(secret.Data["ca.crt"])
			c, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{RootCAs: roots,
				ServerName: tc.serverName, MinVersion: tls.VersionTLS12})
			if err == nil {
				defer c.Close()
			}
			if trusted := err == nil; trusted != tc.trusted {
				t.Errorf("got %v, want trust %t", err, tc.trusted)
			}
			if err == nil && tc.secret == "controller-placement" {
				left := time.Until(c.ConnectionState().PeerCertificates[0].NotAfter)
				if left < placementLifetime/2 {
					t.Errorf("the scheduler's trust ends in %s, want years", left)
				}
			}
		})
	}
}
