// SPDX-License-Identifier: Apache-2.0

package steps_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

func TestDo(t *testing.T) {
	errStop := errors.New("stop")
	var seen []string
	note := func(who string) steps.Observer {
		return func(ctx context.Context, name string, do func(context.Context) error) error {
			seen = append(seen, who+" before "+name)
			err := do(ctx)
			seen = append(seen, who+" after "+name)
			return err
		}
	}
	stop := func(context.Context, string, func(context.Context) error) error { return errStop }
	work := func(ctx context.Context) error {
		return steps.Do(ctx, "outer", func(ctx context.Context) error {
			return steps.Do(ctx, "inner", func(context.Context) error { seen = append(seen, "done"); return nil })
		})
	}
	for _, tt := range []struct {
		name      string
		observers []steps.Observer
		want      []string
		err       error
	}{
		{"no observer", nil, []string{"done"}, nil},
		{"one observer sees steps of steps", []steps.Observer{note("a")},
			[]string{"a before outer", "a before inner", "done", "a after inner", "a after outer"}, nil},
		{"the first observer is around the second", []steps.Observer{note("a"), note("b")},
			[]string{"a before outer", "b before outer", "a before inner", "b before inner", "done",
				"b after inner", "a after inner", "b after outer", "a after outer"}, nil},
		{"an observer stops the operation", []steps.Observer{note("a"), stop},
			[]string{"a before outer", "a after outer"}, errStop},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen = nil
			ctx := t.Context()
			for _, o := range tt.observers {
				ctx = steps.With(ctx, o)
			}
			if err := work(ctx); !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if !slices.Equal(seen, tt.want) {
				t.Errorf("got %q, want %q", seen, tt.want)
			}
		})
	}
}
