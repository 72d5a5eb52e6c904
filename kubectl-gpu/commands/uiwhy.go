// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// reasonsAge is how old the snapshot of an answer on the page may be.
const reasonsAge = 15 * time.Second

// reasons tells why claims wait, one at a time. It reads the cluster when somebody asks, and not before.
type reasons struct {
	read func(context.Context) *cluster.Snapshot

	busy      chan struct{} // has an element while an answer is made; guards the fields below
	explainer *why.Explainer
	at        time.Time // of its snapshot
}

func newReasons(read func(context.Context) *cluster.Snapshot) *reasons {
	return &reasons{read: read, busy: make(chan struct{}, 1)}
}

// of returns the first lines of kubectl gpu why about the pod or claim. The error wraps why.ErrNotFound if it is gone.
func (r *reasons) of(ctx context.Context, kind, namespace, name string) (string, error) {
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if r.explainer == nil || time.Since(r.at) > reasonsAge {
		s := r.read(ctx)
		if err := ctx.Err(); err != nil {
			return "", err // what was read is not all
		}
		r.explainer, r.at = why.NewExplainer(s, why.Options{}), time.Now()
	}
	explain := r.explainer.Claim
	if kind == "pod" {
		explain = r.explainer.Pod
	}
	report, err := explain(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	lines := []string{report.Cause}
	if advice := report.Advice(); advice != "" {
		lines = append(lines, advice)
	}
	if report.Outcome == why.Fits { // then something else keeps it waiting
		lines = append(lines, report.Notes...)
	}
	return strings.Join(lines, "\n"), nil
}

// why answers why a claim waits.
func (s *pageServer) why(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	query := r.URL.Query()
	var text string
	err := guard.Do("why", func() (err error) {
		text, err = s.reasons.of(r.Context(), query.Get("kind"), query.Get("namespace"), query.Get("name"))
		return err
	})
	switch {
	case errors.Is(err, guard.ErrPanic):
		http.Error(w, "no answer, because of a mistake in kubectl gpu: its output has the details",
			http.StatusInternalServerError)
	case errors.Is(err, why.ErrNotFound):
		http.Error(w, "it has gone", http.StatusNotFound)
	case err == nil:
		fmt.Fprintln(w, text)
	} // otherwise the page has gone
}
