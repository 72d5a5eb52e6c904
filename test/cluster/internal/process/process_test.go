// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestKillEndsOnlyTheRecordedProcess(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Record)
		want   string
	}{
		{"the record fits", func(*Record) {}, "ended"},
		{"it started at another time", func(r *Record) { r.Started = "1" }, "runs"},
		{"it is of another boot", func(r *Record) { r.Boot = "another" }, "runs"},
		{"it is another program", func(r *Record) { r.Command = []string{"sleep", "61"} }, "runs"},
	} {
		t.Run(row.name, func(t *testing.T) {
			cmd := exec.Command("sleep", "60")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			record, err := Started(cmd)
			if err != nil {
				t.Fatal(err)
			}
			changed := record
			row.change(&changed)
			if err := changed.Kill(10 * time.Second); err != nil {
				t.Fatal(err)
			}
			got := "ended"
			if record.Alive() {
				got = "runs"
			}
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
			if err := changed.Kill(time.Second); err != nil {
				t.Errorf("kill again: %v", err)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	const tail = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for _, row := range []struct {
		name, stat, want string
		gone             bool
	}{
		{"a running process", "7 (sleep) S" + tail, "4711", false},
		{"a name with parentheses and spaces", "7 (a) S (b c) R" + tail, "4711", false},
		{"a zombie", "7 (sleep) Z" + tail, "", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			stat, err := parseStat(row.stat)
			got := stat.Started
			if got != row.want || errors.Is(err, ErrGone) != row.gone {
				t.Errorf("got %q, %v; want %q, gone=%v", got, err, row.want, row.gone)
			}
		})
	}
	if _, err := parseStat("7 (sleep) S 1"); err == nil {
		t.Error("got no error for a text that is too short")
	}
}

func TestFreezeStopsAFamily(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 60 & echo started; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := io.ReadFull(out, make([]byte, len("started"))); err != nil {
		t.Fatal(err)
	}
	parent, err := NewRecord(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	states := func() (text string) {
		family, err := parent.family()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range family {
			text += m.state
		}
		return text
	}
	for range 2 { // may be repeated
		if err := parent.Freeze(); err != nil {
			t.Fatal(err)
		}
		if got := states(); got != "TT" {
			t.Errorf("frozen: got states %s, want TT", got)
		}
	}
	if err := parent.Thaw(); err != nil {
		t.Fatal(err)
	}
	if got := states(); strings.Contains(got, "T") {
		t.Errorf("thawed: got states %s", got)
	}
	for _, m := range must(parent.family()) { // the child outlives its parent otherwise
		_ = unix.Kill(m.pid, unix.SIGKILL)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
