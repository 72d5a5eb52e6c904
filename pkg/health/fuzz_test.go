// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// FuzzSaved loads any bytes as the state of an earlier plugin. It is refused, or says the same after it was saved
// again, and no condition stays longer after it was last seen than the longest quiet time.
func FuzzSaved(f *testing.F) {
	for _, text := range []string{`{}`, `null`, `[]`, `{`, `{"letGo": "x"}`,
		`{"conditions": [{"gpu": "GPU-1", "cause": "XID 48", "since": "2026-01-01T00:00:00Z",
			"last": "2026-01-02T00:00:00Z", "count": 2, "returns": 3}], "gpus": [{"name": "gpu-3b-00-0", "uuid": "GPU-1",
			"rules": {"XID 48": {"effect": "NoSchedule", "recovery": "QuietTime", "quietTime": 3600000000000}}}]}`,
		`{"conditions": [{"gpu": "GPU-1", "cause": "GPULost", "returns": 9223372036854775807, "count": -1,
			"partition": {"size": -1}, "detail": "a\nb\tc"}], "gpus": [{"name": "a\nb", "uuid": "GPU-1",
			"rules": {"GPULost": {"recovery": "QuietTime", "quietTime": 9223372036854775807}}}]}`,
	} {
		f.Add([]byte(text))
	}
	dir := tmpfs.Dir(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, stateFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Load(dir)
		if err != nil {
			return
		}
		for _, g := range s.GPUs {
			for _, c := range s.Conditions {
				until := c.Until(NewPolicy(g.Rules))
				if !until.IsZero() && (until.Before(c.Last) || until.Sub(c.Last) > maxQuiet) {
					t.Errorf("a condition of %s stays until %s", c.Last, until)
				}
			}
		}
		now := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		s.See(now, "boot", Subject{GPU: "GPU-new"}, XIDCause(48), "")
		last := s.Conditions[len(s.Conditions)-1]
		if len(s.Conditions) > maxConditions+len(data) || last.GPU != "GPU-new" || !last.Active() {
			t.Errorf("a new condition is not the last of %d", len(s.Conditions))
		}
		if err := s.Save(dir); err != nil {
			if json.Valid(data) && strings.Contains(err.Error(), "year outside") {
				return // encoding/json reads years that it does not write
			}
			t.Fatal(err)
		}
		again, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if before, after := strings.Join(Lines(s), "\n"), strings.Join(Lines(again), "\n"); before != after {
			t.Errorf("got\n%s\nwant\n%s", after, before)
		}
	})
}
