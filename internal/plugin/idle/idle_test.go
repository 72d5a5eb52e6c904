// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/usage"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// start is when the tests begin.
var start = time.Date(2026, 11, 25, 8, 0, 0, 0, time.UTC)

// node is a node whose plugin measures every minute, and marks what is idle for three.
type node struct {
	*Watcher
	t    *testing.T
	dir  string
	now  time.Time
	told []string
	// fails is called because nothing can be written; nil: everything is.
	fails func()
}

// IdleWritten implements the reporter of Options.
func (n *node) IdleWritten() bool {
	if n.fails == nil {
		return true
	}
	n.fails()
	return false
}

// Idle implements the reporter of Options.
func (n *node) Idle(claim sharing.Claim, all []report.DeviceCondition, text string) {
	line := claim.Name
	for _, c := range all {
		line += fmt.Sprintf(" %s=%s/%s/%s", c.Device, c.Status, c.Reason, c.Since.Sub(start))
	}
	if text != "" {
		line += ": " + text
	}
	n.told = append(n.told, line)
}

// do does the steps of a script: "restart", also with the feature "off", "gap" (nothing is measured for an hour), "NTP"
// (sets a clock right that was a day ahead), "lose" (the file), "blind" (the kubelet does not answer), or a measurement
// of CLAIM/DEVICE=USE, a minute after the last one. "3x " repeats a step.
func (n *node) do(script string) {
	n.t.Helper()
	for step := range strings.SplitSeq(script, "; ") {
		times := 1
		if count, rest, ok := strings.Cut(step, "x "); ok {
			if _, err := fmt.Sscan(count, &times); err == nil {
				step = rest
			}
		}
		for range times {
			n.doOnce(step)
		}
	}
}

func (n *node) doOnce(step string) {
	n.t.Helper()
	switch step {
	case "restart":
		n.Watcher = New(Options{After: 3 * time.Minute, Dir: n.dir, Reporter: n})
		n.load()
		return
	case "blind":
		n.now = n.now.Add(time.Minute)
		n.blind(n.now)
		return
	case "gap":
		n.now = n.now.Add(time.Hour)
		return
	case "NTP":
		n.now = n.now.Add(-24 * time.Hour)
		return
	case "lose":
		if err := os.WriteFile(filepath.Join(n.dir, File), []byte("{"), 0o600); err != nil {
			n.t.Fatal(err)
		}
		return
	case "off":
		n.Watcher = New(Options{Dir: n.dir, Reporter: n})
		n.Run(n.t.Context())
		return
	}
	n.now = n.now.Add(time.Minute)
	var all []usage.ClaimUse
	for _, text := range strings.Fields(step) {
		name, use, _ := strings.Cut(text, "=")
		claim, device, ok := strings.Cut(name, "/")
		if !ok {
			continue // nothing is measured
		}
		all = append(all, usage.ClaimUse{Claim: sharing.Claim{Namespace: "ml", Name: claim,
			UID: types.UID("uid-of-" + claim)}, Pool: "node", Device: device, Part: .5, Use: usage.Use(use)})
	}
	n.step(all, n.now)
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), now: start}
	n.do("restart; nothing") // the plugin has run before
	return n
}

func TestConditions(t *testing.T) {
	const isIdleBoth = "a one=True/NotUsed/2m0s two=True/NotUsed/2m0s: no pod of the claim has used one, two for 3m0s"
	const isIdle = "a one=True/NotUsed/2m0s: no pod of the claim has used one for 3m0s"
	for _, row := range []struct{ name, script, want string }{
		{"a used claim has no condition", "9x a/one=used", ""},
		{"one that pauses has none", "3x a/one=idle; a/one=used; 3x a/one=idle", ""},
		{"an idle claim is marked once", "9x a/one=idle", isIdle},
		{"and again when it is used", "4x a/one=idle; 2x a/one=used", isIdle + "\na one=False/InUse/6m0s"},
		{"and once more when it is not", "4x a/one=idle; a/one=used; 4x a/one=idle", isIdle +
			"\na one=False/InUse/6m0s\na one=True/NotUsed/7m0s: no pod of the claim has used one for 3m0s"},
		{"each device has a condition", "4x a/one=idle a/two=used; 4x a/one=idle a/two=idle", isIdle +
			"\na one=True/NotUsed/2m0s two=True/NotUsed/6m0s: no pod of the claim has used two for 3m0s"},
		{"claims do not disturb each other", "4x a/one=idle b/one=used", isIdle},
		{"what is not measured for long is told", "9x a/one=unknown", "a one=Unknown/NotMeasured/2m0s"},
		{"what is not measured for a while is not idle", "2x a/one=idle; a/one=unknown; 3x a/one=idle", ""},
		{"an idle claim that is not measured is told at once", "4x a/one=idle; a/one=unknown",
			isIdle + "\na one=Unknown/NotMeasured/6m0s"},
		{"a restart changes nothing", "2x a/one=idle; restart; 2x a/one=idle", isIdle},
		{"a restart repeats what may not have been written", "4x a/one=idle; restart; 2x a/one=idle",
			isIdle + "\na one=True/NotUsed/2m0s"},
		{"after a gap nobody knows", "4x a/one=idle; gap; a/one=idle", isIdle + "\na one=Unknown/NotMeasured/1h6m0s"},
		{"after a gap the time starts anew", "2x a/one=idle; gap; 3x a/one=idle", ""},
		{"after a gap it may be used", "4x a/one=idle; restart; gap; a/one=used",
			isIdle + "\na one=False/InUse/1h6m0s"},
		{"a clock that was ahead, and a restart", "a/one=idle; NTP; restart; 4x a/one=idle",
			"a one=True/NotUsed/-23h57m0s: no pod of the claim has used one for 3m0s"},
		{"a clock that was ahead", "a/one=idle; NTP; 4x a/one=idle",
			"a one=True/NotUsed/-23h57m0s: no pod of the claim has used one for 3m0s"},
		{"a claim that was marked by a clock that was ahead", "4x a/one=idle; NTP; restart; 4x a/one=idle",
			isIdle + "\na one=Unknown/NotMeasured/-23h54m0s" +
				"\na one=True/NotUsed/-23h54m0s: no pod of the claim has used one for 3m0s"},
		{"a silence of the kubelet after a clock that was ahead", "4x a/one=idle; NTP; restart; blind",
			isIdle + "\na one=Unknown/NotMeasured/-23h54m0s"},
		{"without its file the plugin knows nothing", "4x a/one=idle; lose; restart; 2x a/one=idle",
			isIdle + "\na one=Unknown/NotMeasured/6m0s"},
		{"without its file a claim may be used", "4x a/one=idle; lose; restart; 2x a/one=used",
			isIdle + "\na one=False/InUse/6m0s"},
		{"the pods of an idle claim have ended", "4x a/one=idle; 2x nothing",
			isIdle + "\na one=Unknown/NoContainer/6m0s"},
		{"a short silence of the kubelet", "2x a/one=idle; restart; 2x a/one=idle; blind", isIdle},
		{"a long one", "4x a/one=idle; 4x blind", isIdle + "\na one=Unknown/NotMeasured/7m0s"},
		{"idle again after it", "4x a/one=idle; 4x blind; a/one=idle; 4x a/one=idle", isIdle +
			"\na one=Unknown/NotMeasured/7m0s\na one=True/NotUsed/10m0s: no pod of the claim has used one for 3m0s"},
		{"used after it", "4x a/one=idle; 4x blind; a/one=used", isIdle +
			"\na one=Unknown/NotMeasured/7m0s\na one=False/InUse/10m0s"},
		{"a container with one of its devices has ended", "4x a/one=idle a/two=idle; a/one=idle", isIdleBoth +
			"\na one=True/NotUsed/2m0s two=Unknown/NoContainer/6m0s"},
		{"and the other one is used at that time", "4x a/one=idle a/two=idle; a/one=used", isIdleBoth +
			"\na one=False/InUse/6m0s two=Unknown/NoContainer/6m0s"},
		{"a used device of a claim that ends keeps its condition", "4x a/one=idle a/two=idle; a/one=used a/two=idle; " +
			"nothing", isIdleBoth + "\na one=False/InUse/6m0s two=True/NotUsed/2m0s" +
			"\na one=False/InUse/6m0s two=Unknown/NoContainer/7m0s"},
		{"the pods of a used claim have ended", "4x a/one=used; nothing", ""},
		{"claims are not marked any more", "4x a/one=idle b/one=used; off; off",
			isIdle + "\na one=Unknown/NotMeasured"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			n.do(row.script)
			got := strings.Join(n.told, "\n")
			if strings.Contains(row.script, "off") { // by the real clock
				got = got[:strings.LastIndex(got, "/")]
			}
			if got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// If the plugin ends before it has written that claims are not marked any more, the next one writes it.
func TestOffIsRepeated(t *testing.T) {
	n := newNode(t)
	n.do("4x a/one=idle")
	n.told = nil
	ctx, end := context.WithCancel(t.Context())
	n.fails = end
	New(Options{Dir: n.dir, Reporter: n}).Run(ctx)
	if _, err := os.Stat(filepath.Join(n.dir, File)); err != nil || len(n.told) != 1 {
		t.Errorf("told %q, want once; the file: %v", n.told, err)
	}
	n.fails = nil
	n.do("off; off")
	if _, err := os.Stat(filepath.Join(n.dir, File)); !errors.Is(err, fs.ErrNotExist) || len(n.told) != 2 {
		t.Errorf("told %q, want twice; the file: %v", n.told, err)
	}
}

// Seconds count for the use that was measured at their end. Nothing counts that this instance has not measured.
func TestMetrics(t *testing.T) {
	n := newNode(t)
	n.do("a/one=used b/one=idle; 4x a/one=used b/one=idle; a/one=unknown b/one=idle")
	n.do("gap; a/one=used b/one=idle; 4x a/one=used b/one=idle")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(n)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			line := family.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetValue()
			}
			got = append(got, fmt.Sprintf("%s %v", line, m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	slices.Sort(got)
	const want = `gpu_dra_claim_idle_seconds b one ml 240
gpu_dra_namespace_gpu_seconds_total ml idle 300
gpu_dra_namespace_gpu_seconds_total ml unknown 30
gpu_dra_namespace_gpu_seconds_total ml used 270`
	if got := strings.Join(got, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
