// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Manager stores the certificate in a secret that all replicas share, and the CA bundle in the webhook configurations.
type Manager struct {
	Client        client.Client // without a cache
	Secret        types.NamespacedName
	ServiceName   string // as the API server uses it: "name.namespace.svc"
	Configuration string // name of both webhook configurations
	// SecretOnly keeps the CA bundle out of the webhook configurations: who needs it reads the secret.
	SecretOnly bool
	Lifetime   time.Duration // of a certificate
	Period     time.Duration // between two syncs
	Settle     time.Duration // from when the CA bundle has a certificate until the certificate is served

	last    state // as of the last sync
	serving atomic.Pointer[tls.Certificate]
	trusted atomic.Pointer[[]byte]
}

// Trusted returns the authorities of all certificates that may be in use, as PEM.
func (m *Manager) Trusted() []byte {
	if t := m.trusted.Load(); t != nil {
		return *t
	}
	return nil
}

// GetCertificate returns the current certificate, for tls.Config.
func (m *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := m.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Ready returns an error while there is no certificate.
func (m *Manager) Ready(*http.Request) error {
	_, err := m.GetCertificate(nil)
	return err
}

// NeedLeaderElection is false: every replica serves webhooks.
func (m *Manager) NeedLeaderElection() bool { return false }

// Start keeps the certificate up to date until ctx ends. It retries after errors; meanwhile the last certificate is
// served.
func (m *Manager) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certificate")
	logged := ""
	for {
		wait, problem := m.Period, ""
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			wait = min(wait, time.Second)
			// another replica was faster
			if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
				problem = err.Error()
			}
			if problem != logged && problem != "" {
				logger.Error(err, "Certificate not looked after; the last one is served")
			}
		}
		logged = problem
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// sync brings the secret, the webhook configurations and the server up to date.
func (m *Manager) sync(ctx context.Context) error {
	var secret corev1.Secret
	err := m.Client.Get(ctx, m.Secret, &secret)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("read secret %s: %w", m.Secret, err)
	}
	before, now := stateOf(secret.Data), time.Now()
	from := before
	if from.current.unusable(m.ServiceName, now) && !m.last.current.unusable(m.ServiceName, now) {
		from = m.last // the secret was removed or is invalid: the served certificate is still good
	}
	after, err := from.advance(issuer{m.ServiceName, m.Lifetime}, now, m.Settle)
	if err != nil {
		return err
	}
	// Write the secret first: when several replicas renew at the same time, the first one wins. Update the CA bundle
	// before the certificate is served.
	if !after.equal(before) {
		if err := m.save(ctx, &secret, absent, after); err != nil {
			return err
		}
		log.FromContext(ctx).WithName("certificate").Info("Certificate written", "secret", m.Secret, "successor",
			after.next.certificate != nil)
	}
	if !m.SecretOnly {
		if err := m.trust(ctx, after.trusted); err != nil {
			return err
		}
	}
	m.last = after
	m.trusted.Store(&after.trusted)
	return m.serve(after.current)
}

func (m *Manager) save(ctx context.Context, secret *corev1.Secret, absent bool, s state) error {
	secret.Data = s.data()
	if absent {
		owner, err := Owner(ctx, m.Client, m.Configuration)
		if err != nil {
			return err
		}
		secret.ObjectMeta = metav1.ObjectMeta{Name: m.Secret.Name, Namespace: m.Secret.Namespace,
			OwnerReferences: []metav1.OwnerReference{owner}}
		secret.Type = corev1.SecretTypeOpaque
		if err := m.Client.Create(ctx, secret); err != nil {
			return fmt.Errorf("create secret %s: %w", m.Secret, err)
		}
		return nil
	}
	if err := m.Client.Update(ctx, secret); err != nil {
		return fmt.Errorf("write secret %s: %w", m.Secret, err)
	}
	return nil
}

// Owner returns the owner of what the controller creates: a webhook configuration of that name. So it is deleted when
// the driver is uninstalled.
func Owner(ctx context.Context, c client.Client, name string) (metav1.OwnerReference, error) {
	all, err := Configurations(ctx, c, name)
	if err != nil {
		return metav1.OwnerReference{}, err
	}
	return metav1.OwnerReference{APIVersion: admissionregistration.SchemeGroupVersion.String(), Kind: all[0].Kind,
		Name: all[0].Object.GetName(), UID: all[0].Object.GetUID()}, nil
}

func (m *Manager) serve(p pair) error {
	c, err := tls.X509KeyPair(p.certificate, p.key)
	if err != nil {
		return fmt.Errorf("certificate in secret %s: %w", m.Secret, err)
	}
	if now := m.serving.Load(); now == nil || !bytes.Equal(now.Certificate[0], c.Certificate[0]) {
		m.serving.Store(&c)
	}
	return nil
}

// Configuration is a webhook configuration.
type Configuration struct {
	Kind     string
	Object   client.Object
	Webhooks func() []Webhook
}

// Webhook is a part of a webhook configuration.
type Webhook struct {
	Name         string
	ClientConfig *admissionregistration.WebhookClientConfig
}

// Validating returns the configuration.
func Validating(of *admissionregistration.ValidatingWebhookConfiguration) Configuration {
	return Configuration{"ValidatingWebhookConfiguration", of, func() (all []Webhook) {
		for i := range of.Webhooks {
			all = append(all, Webhook{of.Webhooks[i].Name, &of.Webhooks[i].ClientConfig})
		}
		return all
	}}
}

// Mutating returns the configuration.
func Mutating(of *admissionregistration.MutatingWebhookConfiguration) Configuration {
	return Configuration{"MutatingWebhookConfiguration", of, func() (all []Webhook) {
		for i := range of.Webhooks {
			all = append(all, Webhook{of.Webhooks[i].Name, &of.Webhooks[i].ClientConfig})
		}
		return all
	}}
}

// Configurations returns the webhook configurations of that name. Somebody may have deleted one of the two, such as the
// mutating one to switch ranking off. It is an error if there is none.
func Configurations(ctx context.Context, from client.Client, name string) (found []Configuration, err error) {
	var absent error
	for _, c := range []Configuration{Validating(&admissionregistration.ValidatingWebhookConfiguration{}),
		Mutating(&admissionregistration.MutatingWebhookConfiguration{})} {
		err := from.Get(ctx, client.ObjectKey{Name: name}, c.Object)
		switch {
		case apierrors.IsNotFound(err):
			absent = fmt.Errorf("read webhooks %s: %w", name, err)
		case err != nil:
			return nil, fmt.Errorf("read webhooks %s: %w", name, err)
		default:
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		return nil, absent
	}
	return found, nil
}

// Patch changes the configuration, unless somebody else has changed it since it was read: then the error is Invalid. It
// uses a JSON patch, which keeps fields that this program does not know.
func (c Configuration) Patch(ctx context.Context, to client.Client, changes []jsonpatch.Operation) error {
	text, err := json.Marshal(append([]jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion",
		c.Object.GetResourceVersion())}, changes...))
	if err != nil {
		return err
	}
	if err := to.Patch(ctx, c.Object, client.RawPatch(types.JSONPatchType, text)); err != nil {
		return fmt.Errorf("write %s %s: %w", c.Kind, c.Object.GetName(), err)
	}
	return nil
}

// trust writes the CA bundle into the webhook configurations, where it differs.
func (m *Manager) trust(ctx context.Context, authorities []byte) error {
	all, err := Configurations(ctx, m.Client, m.Configuration)
	if err != nil {
		return err
	}
	for _, c := range all {
		var changes []jsonpatch.Operation
		for i, webhook := range c.Webhooks() {
			if !bytes.Equal(webhook.ClientConfig.CABundle, authorities) {
				changes = append(changes, jsonpatch.NewOperation("add",
					fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), authorities))
			}
		}
		if len(changes) == 0 {
			continue
		}
		if err := c.Patch(ctx, m.Client, changes); err != nil {
			return err
		}
	}
	return nil
}
