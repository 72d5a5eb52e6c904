// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestHungEngine: an engine that has answered once, and then hangs, is not taken for one that works.
func TestHungEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes, hangs := 0, false
		s := &Server{Dial: func() (net.Conn, error) { conn, _ := net.Pipe(); return conn, nil },
			Probe: func(conn net.Conn) error {
				probes++
				if !hangs {
					return nil
				}
				_, err := conn.Read(make([]byte, 1))
				return err
			}}
		for _, row := range []struct {
			name   string
			hangs  bool
			after  time.Duration
			want   string
			probes int
		}{
			{"the first answer", false, 0, "<nil>", 1},
			{"a moment later", false, time.Second, "<nil>", 1},
			{"later", false, probePeriod, "<nil>", 2},
			{"it hangs", true, probePeriod, "read pipe: i/o timeout", 3},
			{"it still hangs", true, 0, "read pipe: i/o timeout", 4},
			{"it answers again", false, 0, "<nil>", 5},
		} {
			time.Sleep(row.after)
			hangs = row.hangs
			if got := fmt.Sprint(s.probe()); got != row.want || probes != row.probes {
				t.Errorf("%s: got %s after %d probes, want %s after %d", row.name, got, probes, row.want, row.probes)
			}
		}
	})
}
