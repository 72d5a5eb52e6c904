// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

const (
	// AuthoritySecret is the Secret with the certificate and key of the authority: only for the controller.
	AuthoritySecret = "gpu-remote-ca"
	keyAuthority    = "ca.crt" // in the servers' secret
	// serverLifetime is that of the servers' certificate. It is renewed when a third of it is left.
	serverLifetime = 90 * 24 * time.Hour
)

// authority returns the authority, and keeps the certificate of servers. It makes what is missing.
func (c *Controller) authority(ctx context.Context, owner *resourceapi.DeviceClass) (remote.Authority, error) {
	a, err := c.readAuthority(ctx, owner)
	if err != nil {
		return a, err
	}
	return a, c.keepServers(ctx, owner, a)
}

func (c *Controller) readAuthority(ctx context.Context, owner *resourceapi.DeviceClass) (remote.Authority, error) {
	secret, err := c.client.CoreV1().Secrets(c.Namespace).Get(ctx, AuthoritySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		a, err := remote.NewAuthority()
		if err != nil {
			return a, fmt.Errorf("make an authority: %w", err)
		}
		certificate, key := a.PEM()
		return a, c.create(ctx, owner, AuthoritySecret, map[string][]byte{corev1.TLSCertKey: certificate,
			corev1.TLSPrivateKeyKey: key})
	}
	if err != nil {
		return remote.Authority{}, fmt.Errorf("read secret %s: %w", AuthoritySecret, err)
	}
	a, err := remote.ParseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return a, fmt.Errorf("secret %s: %w: delete it to get a new one", AuthoritySecret, err)
	}
	return a, nil
}

// keepServers keeps the secret of servers: with a certificate of this authority that is good for long enough.
func (c *Controller) keepServers(ctx context.Context, owner *resourceapi.DeviceClass, a remote.Authority) error {
	api := c.client.CoreV1().Secrets(c.Namespace)
	secret, err := api.Get(ctx, remote.ServerSecret, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("read secret %s: %w", remote.ServerSecret, err)
	}
	trusted, _ := a.PEM()
	if !absent && bytes.Equal(secret.Data[keyAuthority], trusted) {
		pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		if err == nil && !pair.Leaf.NotBefore.After(c.now()) && pair.Leaf.NotAfter.Sub(c.now()) > serverLifetime/3 {
			return nil
		}
	}
	certificate, key, err := a.Server(serverLifetime)
	if err != nil {
		return fmt.Errorf("make the certificate of servers: %w", err)
	}
	data := map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key, keyAuthority: trusted}
	if absent {
		return c.create(ctx, owner, remote.ServerSecret, data)
	}
	secret.Data = data
	if _, err := api.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write secret %s: %w", remote.ServerSecret, err)
	}
	return nil
}

// create creates a secret that is deleted with its owner.
func (c *Controller) create(ctx context.Context, owner *resourceapi.DeviceClass, name string,
	data map[string][]byte) error {
	_, err := c.client.CoreV1().Secrets(c.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass", Name: owner.Name,
			UID: owner.UID}}},
		Type: corev1.SecretTypeOpaque, Data: data}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create secret %s: %w", name, err)
	}
	return nil
}

// sign answers all requests for certificates of sessions.
func (c *Controller) sign(ctx context.Context) error {
	var errs []error
	for _, request := range c.requests() {
		if request.Spec.SignerName != remote.Signer(c.driver) || len(request.Status.Certificate) > 0 ||
			has(request, certificatesv1.CertificateDenied) || has(request, certificatesv1.CertificateFailed) {
			continue
		}
		err := c.answer(ctx, request.DeepCopy())
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("certificate signing request %s: %w", request.Name, err))
		}
	}
	return errors.Join(errs...)
}

func has(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(request.Status.Conditions,
		func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

// answer signs or denies a request, or does nothing while the claim has no session yet.
func (c *Controller) answer(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	api := c.client.CertificatesV1().CertificateSigningRequests()
	certificate, err := c.certificate(ctx, request)
	var denied deniedError
	switch {
	case errors.As(err, &denied):
		setCondition(request, certificatesv1.CertificateDenied, denied.reason, denied.message)
		_, err := api.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
		return err
	case err != nil || certificate == nil:
		return err
	}
	if !has(request, certificatesv1.CertificateApproved) {
		setCondition(request, certificatesv1.CertificateApproved, "SessionAdmitted",
			"a pod of the node uses the claim")
		if request, err = api.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	request.Status.Certificate = certificate
	_, err = api.UpdateStatus(ctx, request, metav1.UpdateOptions{})
	return err
}

func setCondition(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason,
	message string) {
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message})
}

// deniedError says why a request is denied.
type deniedError struct{ reason, message string }

func (e deniedError) Error() string { return e.message }

// nodeClaim is what the API server says of a token: the node of its pod.
const nodeClaim = "authentication.kubernetes.io/node-name"

// certificate returns the certificate for a request: nil, while the claim has no session yet. Only the plugin of a node
// gets one, for claims of pods on this node.
func (c *Controller) certificate(ctx context.Context,
	request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	uid, public, err := remote.ParseRequest(request.Spec.Request)
	if err != nil {
		return nil, deniedError{"Invalid", err.Error()}
	}
	node := request.Spec.Extra[nodeClaim]
	if request.Spec.Username != c.Account || len(node) != 1 {
		return nil, deniedError{"WrongUser", fmt.Sprintf("user %s on node %q: want %s on a node", request.Spec.Username,
			node, c.Account)}
	}
	c.mu.Lock()
	claim := c.claims[uid]
	s, admitted := c.sessions[uid]
	c.mu.Unlock()
	if claim == nil {
		return nil, deniedError{"NoSession", fmt.Sprintf("claim %s has no GPU over the network", uid)}
	}
	if !admitted {
		return nil, nil
	}
	used, err := c.usedOn(ctx, claim, node[0])
	switch {
	case err != nil:
		return nil, err
	case !used:
		return nil, deniedError{"WrongNode", fmt.Sprintf("no pod on node %s uses claim %s/%s", node[0], claim.Namespace,
			claim.Name)}
	}
	return s.issuer.Session(public, s.server, uid)
}

// usedOn reports whether a pod on the node uses the claim.
func (c *Controller) usedOn(ctx context.Context, claim *resourceapi.ResourceClaim, node string) (bool, error) {
	live, err := c.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil || live.UID != claim.UID {
		return false, err
	}
	for _, r := range live.Status.ReservedFor {
		if r.Resource != "pods" || r.APIGroup != "" {
			continue
		}
		pod, err := c.client.CoreV1().Pods(claim.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("read pod %s: %w", r.Name, err)
		}
		if err == nil && pod.UID == r.UID && pod.Spec.NodeName == node {
			return true, nil
		}
	}
	return false, nil
}
