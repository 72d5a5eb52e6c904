// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/inotify"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// xids are the numbers of the events.
func xids(events []node.Event) string {
	var out []uint64
	for _, e := range events {
		out = append(out, e.XID)
	}
	return fmt.Sprint(out)
}

func emit(t *testing.T, n *node.Node, numbers ...uint64) {
	t.Helper()
	for _, number := range numbers {
		e, err := n.NewEvent("0", node.EventXID, number)
		must(t, err)
		must(t, n.Emit(e))
	}
}

func TestEventsAreReadOnceAndInOrder(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	early := n.Events() // before there is a file
	defer early.Close()
	emit(t, n, 1, 2)
	late := n.Events()
	defer late.Close()
	emit(t, n, 3)
	other, err := node.Attach(dir)
	must(t, err)
	emit(t, other, 4)
	for _, tt := range []struct {
		name string
		from *node.Events
		want string
	}{{"early", early, "[1 2 3 4]"}, {"again", early, "[]"}, {"late", late, "[3 4]"}} {
		if got := xids(tt.from.Next()); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// The file is replaced when it is full. A reader misses nothing, and the files do not grow.
func TestEventsOfReplacedFile(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	reader := n.Events()
	defer reader.Close()
	e, err := n.NewEvent("0", node.EventXID, 1)
	must(t, err)
	const count, batch = 20_000, 500
	read := 0
	for range count / batch {
		var events []node.Event
		for range batch {
			events = append(events, e)
		}
		must(t, n.Emit(events...))
		read += len(reader.Next())
	}
	if read != count {
		t.Errorf("read %d events, want %d", read, count)
	}
	files, err := filepath.Glob(filepath.Join(dir, "events*"))
	must(t, err)
	for _, file := range files {
		if st, err := os.Stat(file); err != nil || st.Size() > 1<<20 {
			t.Errorf("%s: %d bytes, %v", file, st.Size(), err)
		}
	}
}

func TestIncompleteEventIsDropped(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	emit(t, n, 1)
	reader := n.Events()
	defer reader.Close()
	f, err := os.OpenFile(filepath.Join(dir, "events"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString(`{"GPU":"GPU-`) // of a writer that died
	must(t, err)
	must(t, f.Close())
	if got := xids(reader.Next()); got != "[]" {
		t.Errorf("got %s, want none yet", got)
	}
	emit(t, n, 2, 3)
	if got := xids(reader.Next()); got != "[3]" {
		t.Errorf("got %s, want [3]", got)
	}
}

func TestNewEvent(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "rtx2080ti-x4"))
	for _, tt := range []struct {
		name, which string
		kind        node.EventType
		xid         uint64
		want        string
	}{
		{"an XID", "0", node.EventXID, 999, "<nil>"},
		{"clocks", "gpu-18-00-0", node.EventClock, 0, "<nil>"},
		{"no XID", "0", node.EventXID, 0, "XID 0: want a number from 1 to 1023"},
		{"more than the highest", "0", node.EventXID, 1024, "XID 1024: want a number from 1 to 1023"},
		{"clocks with an XID", "0", node.EventClock, 3, "XID 3: want a number from 1 to 1023"},
		{"ECC without ECC", "0", node.EventDoubleBitECC, 0,
			"gpu-18-00-0 reports no such events: the types are 0x1c (ERROR_NOT_SUPPORTED)"},
		{"no GPU", "9", node.EventXID, 3, `no GPU "9"; this node has gpu-18-00-0`},
		{"no partition", "0/1g.5gb@0", node.EventXID, 3, "gpu-18-00-0 has no partition 1g.5gb@0"},
	} {
		_, err := n.NewEvent(tt.which, tt.kind, tt.xid)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestSupportedEvents(t *testing.T) {
	const head = "name: x\nsystem: {SystemGetDriverVersion: 580.95.05}\ngpus:\n- pci: {address: \"0000:18:00.0\", " +
		"root: \"pci0000:17\", numaNode: 0, deviceId: 0x1e07}\n  calls:\n    GetName: x\n"
	const modern = "    GetCudaComputeCapability: {major: 7, minor: 5}\n"
	for _, tt := range []struct{ name, calls, want string }{
		{"as recorded", "    GetSupportedEventTypes: 0x8\n", "0x8 "},
		{"none as recorded", modern + "    GetSupportedEventTypes: {error: ERROR_UNKNOWN}\n", "0x0 ERROR_UNKNOWN"},
		{"without ECC", modern + "    GetEccMode: {error: ERROR_NOT_SUPPORTED}\n", "0x18 "},
		{"with ECC", modern + "    GetEccMode: {current: FEATURE_ENABLED, pending: FEATURE_ENABLED}\n", "0x1b "},
		{"with ECC off", modern + "    GetEccMode: {current: FEATURE_DISABLED, pending: FEATURE_ENABLED}\n", "0x18 "},
		{"a very old GPU", "    GetCudaComputeCapability: {major: 1, minor: 3}\n", "0x0 ERROR_NOT_SUPPORTED"},
		{"a virtual GPU", modern + "    GetBrand: 10\n", "0x0 ERROR_NOT_SUPPORTED"},
	} {
		p, err := hwprofile.ParseProfile([]byte(head + tt.calls))
		must(t, err)
		v, err := open(t, tmpfs.Dir(t), p).View()
		must(t, err)
		types, e := v.GPUs[0].SupportedEvents().Get()
		if got := fmt.Sprintf("%#x %s", types, e); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A watch notices what others do at once. Without inotify it polls, and notices it nearly as soon.
func TestWatch(t *testing.T) {
	inotify.Need(t)
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	other, err := node.Attach(dir)
	must(t, err)
	w := n.Watch()
	defer w.Close()
	states := 0
	for _, tt := range []struct {
		name   string
		change func() error
	}{
		{"an event", func() error { emit(t, other, 3); return nil }},
		{"a state", func() error {
			states++
			return other.Slow("0", node.AllCalls, time.Duration(states)*time.Second)
		}},
		{"the end", func() error { w.Close(); return nil }},
	} {
		var took time.Duration
		for attempt := 0; attempt == 0 || took < 0 || took > 500*time.Millisecond; attempt++ {
			if attempt == 20 { // not even once on a busy machine
				t.Fatalf("%s: noticed after %s", tt.name, took)
			}
			w.Wait(20 * time.Millisecond) // what is left of the last change
			noticed := make(chan time.Time, 1)
			go func() {
				w.Wait(time.Minute)
				noticed <- time.Now()
			}()
			time.Sleep(5 * time.Millisecond)
			start := time.Now()
			must(t, tt.change())
			took = (<-noticed).Sub(start)
		}
	}
}
