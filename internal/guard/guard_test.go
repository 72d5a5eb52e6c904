// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"errors"
	"io"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/guard"
)

func TestDo(t *testing.T) {
	if err := guard.Do("work", func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the error of the function", err)
	}
	var none map[string]int
	err := guard.Do("claim ns/a", func() error {
		none["a"] = 1
		return nil
	})
	const want = "claim ns/a: panic: assignment to entry in nil map"
	if !errors.Is(err, guard.ErrPanic) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
