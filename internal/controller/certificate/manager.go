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
			if faster := apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err); !faster {
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
	all, err := configurations(ctx, c, name)
	if err != nil {
		return metav1.OwnerReference{}, err
	}
	return metav1.OwnerReference{APIVersion: admissionregistration.SchemeGroupVersion.String(), Kind: all[0].kind,
		Name: all[0].object.GetName(), UID: all[0].object.GetUID()}, nil
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

// configuration is a webhook configuration.
type configuration struct {
	kind    string
	object  client.Object
	clients func() []*admissionregistration.WebhookClientConfig // of each webhook
}

// configurations returns the webhook configurations of that name. Somebody may have deleted one of the two, such as the
// mutating one to switch ranking off. It is an error if there is none.
func configurations(ctx context.Context, from client.Client, name string) ([]configuration, error) {
	var validating admissionregistration.ValidatingWebhookConfiguration
	var mutating admissionregistration.MutatingWebhookConfiguration
	var found []configuration
	var absent error
	for _, c := range []configuration{
		{"ValidatingWebhookConfiguration", &validating, func() (all []*admissionregistration.WebhookClientConfig) {
			for i := range validating.Webhooks {
				all = append(all, &validating.Webhooks[i].ClientConfig)
			}
			return all
		}},
		{"MutatingWebhookConfiguration", &mutating, func() (all []*admissionregistration.WebhookClientConfig) {
			for i := range mutating.Webhooks {
				all = append(all, &mutating.Webhooks[i].ClientConfig)
			}
			return all
		}},
	} {
		err := from.Get(ctx, client.ObjectKey{Name: name}, c.object)
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

// trust writes the CA bundle into the webhook configurations.
func (m *Manager) trust(ctx context.Context, authorities []byte) error {
	all, err := configurations(ctx, m.Client, m.Configuration)
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := m.patch(ctx, c.object, c.clients(), authorities); err != nil {
			return err
		}
	}
	return nil
}

// patch writes the CA bundle where it differs. It uses a JSON patch, which keeps fields that this program does not
// know.
func (m *Manager) patch(ctx context.Context, of client.Object, configs []*admissionregistration.WebhookClientConfig,
	authorities []byte) error {
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion",
		of.GetResourceVersion())}
	for i, config := range configs {
		if !bytes.Equal(config.CABundle, authorities) {
			operations = append(operations, jsonpatch.NewOperation("add",
				fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), authorities))
		}
	}
	if len(operations) == 1 {
		return nil
	}
	text, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	if err := m.Client.Patch(ctx, of, client.RawPatch(types.JSONPatchType, text)); err != nil {
		return fmt.Errorf("write the authority into webhooks %s: %w", m.Configuration, err)
	}
	return nil
}
