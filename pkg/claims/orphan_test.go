// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// orphaned has the spec of claim a without a record, as a plugin leaves it that is killed while it releases the claim.
func orphaned(t *testing.T) *fixture {
	t.Helper()
	w := newFixture(t)
	w.do("prepare a gpu-1")
	records := w.preparer().Records
	rec, err := records.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Delete(rec); err != nil {
		t.Fatal(err)
	}
	if got := w.String(); !strings.Contains(got, "cdi a-gpu-1") || strings.Contains(got, "a Prepared") {
		t.Fatalf("want only a spec, got:\n%s", got)
	}
	return w
}

// The cleanup removes the spec of a claim without a record while the kubelet prepares the claim again: whatever comes
// first, the spec is there when the claim is prepared.
func TestOrphanOfAClaimThatIsBeingPrepared(t *testing.T) {
	cleanup := func(t *testing.T, ctx context.Context, w *fixture) {
		t.Helper()
		if err := w.preparer().Unprepare(ctx, sharing.Claim{UID: "a"}); err != nil {
			t.Error(err)
		}
	}
	prepare := func(t *testing.T, ctx context.Context, w *fixture) {
		t.Helper()
		if _, err := w.preparer().Prepare(ctx, claim("a", "gpu-1")); err != nil {
			t.Error(err)
		}
	}
	for _, row := range []struct {
		name          string
		first, second func(*testing.T, context.Context, *fixture)
		at            string // the step of the first before which the second runs
	}{
		{"the cleanup before the record", prepare, cleanup, steps.WriteRecord},
		{"Prepare before the cleanup removes the spec", cleanup, prepare, steps.RemoveClaimSpec},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := orphaned(t)
			ran := false
			ctx := steps.With(w.context(), func(ctx context.Context, name string,
				do func(context.Context) error) error {
				if name == row.at && !ran {
					ran = true
					row.second(t, w.context(), w)
				}
				return do(ctx)
			})
			row.first(t, ctx, w)
			got := w.String()
			if !ran || !strings.Contains(got, "cdi a-gpu-1") || !strings.Contains(got, "a Prepared") {
				t.Errorf("the claim is prepared without its CDI device:\n%s", got)
			}
		})
	}
}

// The record is gone and the spec not yet when the kubelet prepares the claim, which has another GPU now: the spec that
// Prepare has written is there in the end.
func TestReleaseOfAClaimThatIsBeingPrepared(t *testing.T) {
	w := newFixture(t)
	w.do("prepare a gpu-1")
	ran := false
	ctx := steps.With(w.context(), func(ctx context.Context, name string, do func(context.Context) error) error {
		if name == steps.RemoveClaimSpec && !ran {
			ran = true
			if _, err := w.preparer().Prepare(w.context(), claim("a", "gpu-2")); err != nil {
				t.Error(err)
			}
		}
		return do(ctx)
	})
	if err := w.preparer().Unprepare(ctx, sharing.Claim{UID: "a"}); err != nil {
		t.Fatal(err)
	}
	if got := w.String(); !ran || !strings.Contains(got, "cdi a-gpu-2") || !strings.Contains(got, "a Prepared") {
		t.Errorf("the claim is prepared without its CDI device:\n%s", got)
	}
}
