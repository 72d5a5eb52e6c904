// SPDX-License-Identifier: Apache-2.0

// Package caller tells API servers and schedulers from everybody else who reaches the port of the webhooks. Somebody
// else gets nothing: no answer about the cluster, no charge, no place among those who wait, and no memory.
//
// By default an API server has no credential for webhooks. Only API servers, and who may read webhook configurations,
// know the paths of the webhooks. So the last part of each path is a secret, which the replicas write and follow. They
// accept:
//
//   - the secret that the configuration has;
//   - the next one, which is in an annotation of the configuration: so each replica knows it before it is used;
//   - one that was replaced, for Overlap, or for AfterLeak if it may be known: an API server follows the configuration
//     later.
//
// An API server prints the URL of a call that failed, also to the user whose object it is about. So the secret is
// replaced every Period, soon after a call that an API server has given up, and when a replica starts. Addresses and
// client certificates are asked for in addition where the administrator knows them.
//
// Schedulers have a client certificate: that of the secret from which they have the certificate authority.
package caller

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
)

const (
	// Overlap is how long a secret is accepted that was replaced.
	Overlap = 25 * time.Second
	// AfterLeak is the same for one that an API server may have told.
	AfterLeak = 5 * time.Second
	// nextAnnotation of a webhook configuration is the secret of the paths to come, and leakedAnnotation the last one
	// that an API server may have told somebody: only one replica knows that by itself.
	nextAnnotation, leakedAnnotation = "gpu.nvidia.com/next-path", "gpu.nvidia.com/leaked-path"
	// settle is the shortest time between two secrets: every replica must know the next one before it is used.
	settle = 2 * time.Second
	// writeTimeout is how long reading and writing the configurations may take.
	writeTimeout = 5 * time.Second
)

// Webhooks keeps the secret of the webhooks' paths, and knows API servers by it.
type Webhooks struct {
	Client        client.Client // without a cache
	Configuration string        // name of both webhook configurations
	// Period is how long the paths keep their secret.
	Period time.Duration

	mu       sync.Mutex
	secrets  map[string]*secrets  // by kind of configuration
	replaced map[string]time.Time // secrets that were replaced, and until when they are accepted
	leaked   chan struct{}        // has room for one
}

// secrets are those of one webhook configuration.
type secrets struct {
	now, next string    // empty: not all paths have the same secret, or there is no next one
	since     time.Time // when this replica has seen now first
	leaked    string    // one of them, or of those before, that an API server may have told
}

// NewWebhooks returns what knows the API servers that call the webhooks of the configurations of that name.
func NewWebhooks(configuration string, period time.Duration) *Webhooks {
	return &Webhooks{Configuration: configuration, Period: period, secrets: map[string]*secrets{},
		replaced: map[string]time.Time{}, leaked: make(chan struct{}, 1)}
}

// NeedLeaderElection is false: every replica must see at once that a call was given up.
func (w *Webhooks) NeedLeaderElection() bool { return false }

// Start replaces secrets until ctx ends.
func (w *Webhooks) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("caller")
	for {
		if err := w.renew(ctx); err != nil && ctx.Err() == nil && !apierrors.IsInvalid(err) { // another was faster
			logger.Error(err, "The paths of the webhooks keep their secret")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.leaked:
		case <-time.After(time.Second):
		}
	}
}

// renew replaces the secrets that are due.
func (w *Webhooks) renew(ctx context.Context) error {
	if !w.anyDue() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	all, err := certificate.Configurations(ctx, w.Client, w.Configuration)
	if err != nil {
		return err
	}
	for _, c := range all {
		w.See(c)
		if now, next, leaked := w.due(c.Kind); next != "" {
			if err := c.Patch(ctx, w.Client, paths(c, now, next, leaked)); err != nil {
				return err
			}
			w.See(c)
		}
	}
	return nil
}

// anyDue reports whether a secret is to be replaced, as far as this replica has seen.
func (w *Webhooks) anyDue() bool {
	w.mu.Lock()
	kinds := slices.Collect(maps.Keys(w.secrets))
	w.mu.Unlock()
	return slices.ContainsFunc(kinds, func(kind string) bool {
		_, next, _ := w.due(kind)
		return next != ""
	})
}

// due returns the secret for the paths of a configuration, the one after it, and the last one that an API server may
// have told; all empty: the paths stay as they are.
func (w *Webhooks) due(kind string) (now, next, leaked string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.secrets[kind]
	if !known {
		return "", "", ""
	}
	age := time.Since(s.since)
	switch {
	case s.now == "":
		return cmp.Or(s.next, newSecret()), newSecret(), s.leaked
	case s.next == "":
		return s.now, newSecret(), s.leaked
	case age >= w.Period || s.leaked == s.now && age >= max(settle, w.Period/60):
		return s.next, newSecret(), s.leaked
	}
	return "", "", ""
}

func newSecret() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// paths changes the secret of all paths, and the annotations.
func paths(c certificate.Configuration, now, next, leaked string) (changes []jsonpatch.Operation) {
	if c.Object.GetAnnotations() == nil {
		changes = append(changes, jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{}))
	}
	annotate := func(name, value string) {
		changes = append(changes, jsonpatch.NewOperation("add",
			"/metadata/annotations/"+strings.ReplaceAll(name, "/", "~1"), value))
	}
	annotate(nextAnnotation, next)
	annotate(leakedAnnotation, leaked)
	for i, webhook := range c.Webhooks() {
		if webhook.ClientConfig.Service == nil {
			continue // somebody else's
		}
		at := fmt.Sprintf("/webhooks/%d/clientConfig/service/path", i)
		changes = append(changes, jsonpatch.NewOperation("add", at, pathOf(webhook.Name)+"/"+now))
	}
	return changes
}

// pathOf returns the path of a webhook, without the secret: the first part of its name.
func pathOf(webhook string) string {
	name, _, _ := strings.Cut(webhook, ".")
	return "/" + name
}

// See takes note of a webhook configuration as it is now. A replica replaces the first secret that it sees.
func (w *Webhooks) See(c certificate.Configuration) {
	now, any := secretOf(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !any {
		delete(w.secrets, c.Kind)
		return
	}
	s, known := w.secrets[c.Kind]
	if !known {
		s = &secrets{now: now, since: time.Now(), leaked: now}
		w.secrets[c.Kind] = s
	}
	s.next = c.Object.GetAnnotations()[nextAnnotation]
	if s.now == now {
		return
	}
	maps.DeleteFunc(w.replaced, func(_ string, end time.Time) bool { return !time.Now().Before(end) })
	if s.now != "" {
		w.replaced[s.now] = time.Now().Add(Overlap)
		if s.leaked == s.now || c.Object.GetAnnotations()[leakedAnnotation] == s.now {
			w.replaced[s.now] = time.Now().Add(AfterLeak)
		}
	}
	s.now, s.since = now, time.Now()
}

// secretOf returns the secret that all paths of the configuration have; empty: they have none, or several. any reports
// whether there are such paths.
func secretOf(c certificate.Configuration) (secret string, any bool) {
	for _, webhook := range c.Webhooks() {
		if webhook.ClientConfig.Service == nil {
			continue
		}
		of, ok := strings.CutPrefix(ptr.Deref(webhook.ClientConfig.Service.Path, ""), pathOf(webhook.Name)+"/")
		if !ok || len(of) < 32 || any && of != secret {
			return "", true
		}
		secret, any = of, true
	}
	return secret, any
}

// Forget takes note that the webhook configuration was deleted.
func (w *Webhooks) Forget(c certificate.Configuration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.secrets, c.Kind)
}

// knows reports whether API servers call paths with that secret.
func (w *Webhooks) knows(secret string) bool {
	if secret == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.secrets {
		if secret == s.now || secret == s.next {
			return true
		}
	}
	end, ok := w.replaced[secret]
	return ok && time.Now().Before(end)
}

// gaveUp takes note that an API server may have told somebody the secret.
func (w *Webhooks) gaveUp(secret string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.secrets {
		if secret == s.now || secret == s.next {
			s.leaked = secret
		}
	}
	if end, ok := w.replaced[secret]; ok && time.Until(end) > AfterLeak {
		w.replaced[secret] = time.Now().Add(AfterLeak)
	}
	select {
	case w.leaked <- struct{}{}:
	default:
	}
}

// Ready returns an error while a configuration has paths without a secret.
func (w *Webhooks) Ready(*http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, s := range w.secrets {
		if s.now == "" {
			return fmt.Errorf("the paths of %s %s have no secret yet", kind, w.Configuration)
		}
	}
	return nil
}
