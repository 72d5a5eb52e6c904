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

// Keeper keeps the certificate in a secret that all replicas share, and its authority in the configurations of the webhooks.
type Keeper struct {
	Client        client.Client // reads from the API server itself
	Secret        types.NamespacedName
	ServiceName   string        // as the API server calls it: "name.namespace.svc"
	Configuration string        // of both kinds of webhooks
	Lifetime      time.Duration // of a certificate
	Period        time.Duration // between two looks
	Settle        time.Duration // between the moment when a certificate is trusted and its first use

	last    state // as of the last look
	serving atomic.Pointer[tls.Certificate]
}

// GetCertificate is for the server of the webhooks.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Ready says whether there is a certificate.
func (k *Keeper) Ready(*http.Request) error {
	_, err := k.GetCertificate(nil)
	return err
}

// NeedLeaderElection is for the manager: every replica serves.
func (k *Keeper) NeedLeaderElection() bool { return false }

// Start looks after the certificate until ctx ends. What fails is tried again; the last certificate is served meanwhile.
func (k *Keeper) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certificate")
	said := ""
	for {
		wait, problem := k.Period, ""
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			wait = min(wait, time.Second)
			if faster := apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err); !faster { // than another replica
				problem = err.Error()
			}
			if problem != said && problem != "" {
				logger.Error(err, "Certificate not looked after; the last one is served")
			}
		}
		said = problem
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// look brings secret, webhooks and server up to date.
func (k *Keeper) look(ctx context.Context) error {
	var secret corev1.Secret
	err := k.Client.Get(ctx, k.Secret, &secret)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("read secret %s: %w", k.Secret, err)
	}
	before, now := stateOf(secret.Data), time.Now()
	from := before
	if from.current.unfit(k.ServiceName, now) && !k.last.current.unfit(k.ServiceName, now) {
		from = k.last // somebody has removed or spoilt the secret: what is served is still good
	}
	after, err := from.step(issuer{k.ServiceName, k.Lifetime}, now, k.Settle)
	if err != nil {
		return err
	}
	// The secret comes first: of several replicas that renew at the same time, the one that is first is followed by the others. Trusted is
	// what comes into use before it does.
	if !after.equal(before) {
		if err := k.save(ctx, &secret, absent, after); err != nil {
			return err
		}
		log.FromContext(ctx).WithName("certificate").Info("Certificate written", "secret", k.Secret, "successor", after.next.certificate != nil)
	}
	if err := k.trust(ctx, after.trusted); err != nil {
		return err
	}
	k.last = after
	return k.serve(after.current)
}

func (k *Keeper) save(ctx context.Context, secret *corev1.Secret, absent bool, s state) error {
	secret.Data = s.data()
	if absent {
		owner, err := k.owner(ctx)
		if err != nil {
			return err
		}
		secret.ObjectMeta = metav1.ObjectMeta{Name: k.Secret.Name, Namespace: k.Secret.Namespace, OwnerReferences: []metav1.OwnerReference{owner}}
		secret.Type = corev1.SecretTypeOpaque
		if err := k.Client.Create(ctx, secret); err != nil {
			return fmt.Errorf("create secret %s: %w", k.Secret, err)
		}
		return nil
	}
	if err := k.Client.Update(ctx, secret); err != nil {
		return fmt.Errorf("write secret %s: %w", k.Secret, err)
	}
	return nil
}

// owner is what the secret goes with when the driver is uninstalled: the webhooks.
func (k *Keeper) owner(ctx context.Context) (metav1.OwnerReference, error) {
	var webhooks admissionregistration.ValidatingWebhookConfiguration
	if err := k.Client.Get(ctx, client.ObjectKey{Name: k.Configuration}, &webhooks); err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("read webhooks %s: %w", k.Configuration, err)
	}
	return metav1.OwnerReference{APIVersion: admissionregistration.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration", Name: webhooks.Name, UID: webhooks.UID}, nil
}

func (k *Keeper) serve(p pair) error {
	c, err := tls.X509KeyPair(p.certificate, p.key)
	if err != nil {
		return fmt.Errorf("certificate in secret %s: %w", k.Secret, err)
	}
	if now := k.serving.Load(); now == nil || !bytes.Equal(now.Certificate[0], c.Certificate[0]) {
		k.serving.Store(&c)
	}
	return nil
}

// trust has the API server trust these authorities.
func (k *Keeper) trust(ctx context.Context, authorities []byte) error {
	var validating admissionregistration.ValidatingWebhookConfiguration
	if err := k.Client.Get(ctx, client.ObjectKey{Name: k.Configuration}, &validating); err != nil {
		return fmt.Errorf("read webhooks %s: %w", k.Configuration, err)
	}
	var configs []*admissionregistration.WebhookClientConfig
	for i := range validating.Webhooks {
		configs = append(configs, &validating.Webhooks[i].ClientConfig)
	}
	if err := k.patch(ctx, &validating, configs, authorities); err != nil {
		return err
	}
	var mutating admissionregistration.MutatingWebhookConfiguration
	if err := k.Client.Get(ctx, client.ObjectKey{Name: k.Configuration}, &mutating); err != nil {
		return fmt.Errorf("read webhooks %s: %w", k.Configuration, err)
	}
	configs = nil
	for i := range mutating.Webhooks {
		configs = append(configs, &mutating.Webhooks[i].ClientConfig)
	}
	return k.patch(ctx, &mutating, configs, authorities)
}

// patch writes the authorities where they differ and touches nothing else: the object may have fields that this program does not know.
func (k *Keeper) patch(ctx context.Context, of client.Object, configs []*admissionregistration.WebhookClientConfig, authorities []byte) error {
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", of.GetResourceVersion())}
	for i, config := range configs {
		if !bytes.Equal(config.CABundle, authorities) {
			operations = append(operations, jsonpatch.NewOperation("add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), authorities))
		}
	}
	if len(operations) == 1 {
		return nil
	}
	text, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	if err := k.Client.Patch(ctx, of, client.RawPatch(types.JSONPatchType, text)); err != nil {
		return fmt.Errorf("write the authority into webhooks %s: %w", k.Configuration, err)
	}
	return nil
}
