// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

const (
	// timeout is how long the webhook may take. The API server waits for ten seconds.
	timeout = 9 * time.Second
	// again is how long the webhook waits after a conflict. For the first count of a new quota it is ten times as long,
	// and firstCount altogether: requests that wait take the places of other namespaces.
	again, firstCount = 20 * time.Millisecond, time.Second
	// amountTimeout is how long the amount of a claim may take. Users choose how long their selectors take.
	amountTimeout = 800 * time.Millisecond
	// newClass is how long the webhook waits for a class that it does not know: one file may have a class and a claim.
	newClass = 500 * time.Millisecond
	// maxPending is how many claims can be pending in a quota: they are part of the object.
	maxPending = 1000
)

// Webhook admits claims within the quotas of their namespace. Claims that come at the same time are charged together.
type Webhook struct {
	view   *cluster.View
	known  func() error
	direct client.Client
	guard  feature.Guard

	mu      sync.Mutex
	waiting map[string][]*request // by namespace; an entry without requests: the last ones are being charged
}

// request is a claim to admit.
type request struct {
	cluster.PendingClaim
	ctx    context.Context
	dryRun bool
	done   chan error // has room for the answer
}

// NewWebhook returns a webhook.
func NewWebhook(c *feature.Controller) *Webhook {
	return &Webhook{view: c.View, known: c.Known, direct: c.Direct, guard: c.Guard, waiting: map[string][]*request{}}
}

// Handle admits claims on create.
func (w *Webhook) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := w.known(); err != nil {
		return webhook.Errored(http.StatusServiceUnavailable, err)
	}
	var claim resourceapi.ResourceClaim
	if err := json.Unmarshal(req.Object.Raw, &claim); err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("claim %s: %w", req.Name, err))
	}
	claim.Status = resourceapi.ResourceClaimStatus{}
	amount, err := amountOf(ctx, w.view, &claim)
	for end := time.Now().Add(newClass); errors.Is(err, cluster.ErrNoClass) && time.Now().Before(end); {
		time.Sleep(again)
		amount, err = amountOf(ctx, w.view, &claim)
	}
	if amount.IsZero() {
		return webhook.Allowed("it asks for no GPUs")
	}
	r := &request{ctx: ctx, dryRun: ptr.Deref(req.DryRun, false), done: make(chan error, 1),
		PendingClaim: cluster.PendingClaim{UID: claim.UID, Claim: claim.Name, Amount: amount}}
	w.enqueue(req.Namespace, r)
	var refused exceededError
	select {
	case <-ctx.Done():
		return webhook.Errored(http.StatusServiceUnavailable, errLate)
	case charged := <-r.done:
		switch {
		case errors.As(charged, &refused):
			return refusal(name(&claim), refused+exceededError(w.view.Whole(ctx, &claim)), err)
		case charged != nil:
			return webhook.Errored(http.StatusServiceUnavailable, charged)
		}
	}
	return webhook.Allowed("")
}

// refusal is the answer about a claim that a quota has no room for. unknown says why everything counted, if it did.
func refusal(claim string, refused exceededError, unknown error) webhook.Response {
	switch {
	case errors.Is(unknown, cluster.ErrNoClass):
		return webhook.Errored(http.StatusServiceUnavailable, fmt.Errorf("%s: %w: create it, or correct the name, "+
			"and try again", claim, unknown))
	case errors.Is(unknown, context.DeadlineExceeded):
		return webhook.Errored(http.StatusServiceUnavailable, fmt.Errorf("%s: %w", claim, errSlow))
	case unknown != nil:
		return webhook.Denied(fmt.Sprintf("%s: how much of GPUs it may take is not known, and a GPUQuota limits that: "+
			"%v", claim, unknown))
	}
	return webhook.Denied(claim + ": " + refused.Error())
}

// amountOf returns how much the claim takes. If there is an error, everything is unknown.
func amountOf(ctx context.Context, v *cluster.View, claim *resourceapi.ResourceClaim) (cluster.Amount, error) {
	ctx, cancel := context.WithTimeout(ctx, amountTimeout)
	defer cancel()
	amount, err := v.AmountOf(ctx, claim)
	if err != nil {
		return cluster.Amount{}, err
	}
	return amount, nil
}

// name returns a name for messages. One that is generated would make each refusal another event.
func name(claim *resourceapi.ResourceClaim) string {
	if claim.GenerateName != "" {
		return "the claim"
	}
	return "claim " + claim.Name
}

// enqueue lets the request be charged with the next ones of its namespace.
func (w *Webhook) enqueue(namespace string, r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, running := w.waiting[namespace]
	w.waiting[namespace] = append(before, r)
	if running {
		return
	}
	go func() {
		for batch := w.next(namespace); len(batch) > 0; batch = w.next(namespace) {
			if err := w.guard.Do("charge quotas", func() error { return w.charge(namespace, batch) }); err != nil {
				answer(batch, err)
			}
		}
	}()
}

// next returns the requests that wait. There is one caller per namespace, until there are none.
func (w *Webhook) next(namespace string) []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch := w.waiting[namespace]
	if w.waiting[namespace] = nil; len(batch) == 0 {
		delete(w.waiting, namespace)
	}
	return batch
}

// answer answers the requests that have none yet.
func answer(batch []*request, err error) {
	for _, r := range batch {
		select {
		case r.done <- err:
		default:
		}
	}
}

// errLate means that the API server is slow.
var errLate = errors.New("the GPUQuotas of the namespace could not be charged in time: try again")

// errSlow means that the controller is slow, or the selectors are.
var errSlow = errors.New("the GPUs that it may take could not be found in time, and a GPUQuota limits them: try " +
	"again, or use fewer selectors")

// errUncounted means that a quota has not been counted yet.
var errUncounted = errors.New("is not counted yet: try again, and see whether the controller has a leader")

// charge adds the requests to the quotas of their namespace, as far as there is room, and answers them.
func (w *Webhook) charge(namespace string, batch []*request) error {
	for start := time.Now(); ; {
		var live []*request
		for _, r := range batch {
			if r.ctx.Err() == nil { // else its API server has given up
				live = append(live, r)
			}
		}
		if batch = live; len(batch) == 0 {
			return nil
		}
		verdicts, err := w.try(namespace, batch)
		switch {
		case apierrors.IsConflict(err):
			time.Sleep(again)
			continue
		case errors.Is(err, errUncounted) && time.Since(start) < firstCount:
			time.Sleep(10 * again)
			continue
		}
		for i, r := range batch {
			if err != nil {
				verdicts[i] = err
			}
			r.done <- verdicts[i]
		}
		return nil
	}
}

// try charges the requests once. It returns the answer to each.
func (w *Webhook) try(namespace string, batch []*request) ([]error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	verdicts := make([]error, len(batch))
	var quotas cluster.GPUQuotaList
	err := w.direct.List(ctx, &quotas, client.InNamespace(namespace))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return verdicts, nil // there are none
	}
	if err != nil {
		return verdicts, fmt.Errorf("read the GPUQuotas: %w", err)
	}
	changed := make([]bool, len(quotas.Items))
	for i, r := range batch {
		if verdicts[i] = exceeded(quotas.Items, r); errors.Is(verdicts[i], errUncounted) {
			return verdicts, verdicts[i]
		}
		if verdicts[i] != nil || r.dryRun {
			continue
		}
		for j := range quotas.Items {
			changed[j] = add(&quotas.Items[j], r) || changed[j]
		}
	}
	for j := range quotas.Items {
		if !changed[j] {
			continue
		}
		if err := w.direct.Status().Update(ctx, &quotas.Items[j]); err != nil {
			return verdicts, fmt.Errorf("charge GPUQuota %s: %w", quotas.Items[j].Name, err)
		}
	}
	return verdicts, nil
}

// has reports whether the claim is charged to the quota already: another quota had a conflict.
func has(q *cluster.GPUQuota, r *request) bool {
	return slices.ContainsFunc(q.Status.Pending, func(p cluster.PendingClaim) bool { return p.UID == r.UID })
}

// add adds the claim to the quota.
func add(q *cluster.GPUQuota, r *request) bool {
	if has(q, r) {
		return false
	}
	used := q.Used()
	used.Add(r.Amount, 1)
	use(q, used)
	r.Since = metav1.Now()
	q.Status.Pending = append(q.Status.Pending, r.PendingClaim)
	q.Status.Enforced = true // or nobody would ask this webhook
	return true
}

// exceededError says which limits a claim would exceed.
type exceededError string

func (e exceededError) Error() string { return string(e) }

// exceeded returns why the claim cannot be added to all quotas.
func exceeded(quotas []cluster.GPUQuota, r *request) error {
	var texts []string
	for i := range quotas {
		q := &quotas[i]
		if has(q, r) {
			continue
		}
		if len(q.Status.Pending) >= maxPending {
			return fmt.Errorf("GPUQuota %s: %d claims are being created: try again", q.Name, maxPending)
		}
		for _, e := range q.Exceeded(r.Amount) {
			if e.Asked != nil && e.Used == nil {
				return fmt.Errorf("GPUQuota %s %w", q.Name, errUncounted)
			}
			texts = append(texts, e.Text(q.Name))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return exceededError(strings.Join(texts, "; ") + ": ask for less in capacity.requests, select a smaller GPU, " +
		"delete claims of the namespace, or let the administrator raise the quota")
}
