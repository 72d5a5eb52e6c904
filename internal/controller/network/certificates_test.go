// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// TestCertificates: only the plugin of a node gets a certificate, and only for claims that pods of this node use.
func TestCertificates(t *testing.T) {
	for _, row := range []struct {
		name, user, node string
		claim            types.UID
		want             string // the reason why it is denied, the server of the certificate, or "": neither
	}{
		{"the plugin on the pod's node", account, "client", "c", "server 1"},
		{"another user", "system:serviceaccount:ml:default", "client", "c", "WrongUser"},
		{"a token without a node", account, "", "c", "WrongUser"},
		{"the plugin on another node", account, "other", "c", "WrongNode"},
		{"a node of an earlier pod of the same name", account, "old", "c", "WrongNode"},
		{"an unknown claim", account, "client", "x", "NoSession"},
		{"the claim of a server", account, "gpu-node", "a-gpu", "NoSession"},
		{"a claim that waits for its server", account, "client", "waits", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			for _, line := range []string{"server a 1 0", "server b 2 1", "silent b", "claim c a", "claim waits b",
				"round"} {
				w.do(line)
			}
			w.use("c", "pod", "client", "pod")
			w.use("c", "again", "old", "replaced")
			w.use("waits", "third", "client", "third")
			api := w.api.CertificatesV1().CertificateSigningRequests()
			csr := w.request(row.claim, row.user, row.node)
			foreign := csr.DeepCopy()
			foreign.Name, foreign.Spec.SignerName = "foreign", "gpu.example.com/remote-session"
			if _, err := api.Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a second look changes nothing
				if err := w.sign(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			csr, err := api.Get(t.Context(), "r", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := w.answerOf(csr); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
			if foreign, err = api.Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil ||
				w.answerOf(foreign) != "" {
				t.Errorf("a request for another signer: got %+v, %v", foreign.Status, err)
			}
		})
	}
}

// request creates the request r for a certificate.
func (w *world) request(claim types.UID, user, node string) *certificatesv1.CertificateSigningRequest {
	w.Helper()
	request, _, err := remote.NewRequest(claim)
	if err != nil {
		w.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: "gpu.nvidia.com/remote-session",
			Request: request, Username: user, Extra: map[string]certificatesv1.ExtraValue{}}}
	if node != "" {
		csr.Spec.Extra["authentication.kubernetes.io/node-name"] = []string{node}
	}
	csr, err = w.api.CertificatesV1().CertificateSigningRequests().Create(w.Context(), csr, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return csr
}

// use lets a pod on the node have the claim. uid is that in the claim; the pod's is its name.
func (w *world) use(claim, pod, node string, uid types.UID) {
	w.Helper()
	claims := w.api.ResourceV1().ResourceClaims("ml")
	c, err := claims.Get(w.Context(), claim, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	c.Status.ReservedFor = append(c.Status.ReservedFor,
		resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: uid})
	if _, err := claims.UpdateStatus(w.Context(), c, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	if _, err := w.api.CoreV1().Pods("ml").Create(w.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: pod, UID: types.UID(pod)},
		Spec:       corev1.PodSpec{NodeName: node}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// answerOf returns what became of a request.
func (w *world) answerOf(csr *certificatesv1.CertificateSigningRequest) string {
	w.Helper()
	if len(csr.Status.Certificate) == 0 {
		for _, c := range csr.Status.Conditions {
			return c.Reason
		}
		return ""
	}
	if !has(csr, certificatesv1.CertificateApproved) || len(csr.Status.Conditions) != 1 {
		w.Errorf("a certificate with the conditions %v", csr.Status.Conditions)
	}
	block, rest := pem.Decode(csr.Status.Certificate)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		w.Fatal(err)
	}
	secret, err := w.api.CoreV1().Secrets(namespace).Get(w.Context(), AuthoritySecret, metav1.GetOptions{})
	if err != nil || string(secret.Data["tls.crt"]) != string(rest) {
		w.Errorf("the certificate does not end with that of the authority: %v", err)
	}
	i, err := remote.IdentityOf(leaf)
	if err != nil || i.Controller || i.Claim != "c" {
		w.Errorf("got the identity %+v, %v", i, err)
	}
	return "server " + string(i.Server)
}

// TestCertificateOfAClockAhead: what was made by a clock that was ahead is not valid yet for anybody, and is replaced.
func TestCertificateOfAClockAhead(t *testing.T) {
	w := newWorld(t)
	certificate := func() string {
		w.follow()
		if err := w.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		secret, err := w.api.CoreV1().Secrets(namespace).Get(t.Context(), remote.ServerSecret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return string(secret.Data["tls.crt"])
	}
	w.do("server a 1 0")
	first := certificate()
	if again := certificate(); again != first {
		t.Error("a certificate that is valid was replaced")
	}
	w.clock = w.clock.Add(-48 * time.Hour)
	if certificate() == first {
		t.Error("a certificate that is valid in two days only was kept")
	}
}
