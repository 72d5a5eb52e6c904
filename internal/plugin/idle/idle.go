// SPDX-License-Identifier: Apache-2.0

// Package idle marks claims whose pods do not use their GPUs, and counts how long GPUs are used. It stands beside the
// driver: without it, claims and metrics are the same but for that.
package idle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/usage"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// File is the name of the file in the plugin's directory that keeps the time of idle claims over a restart.
const File = "idle.json"

// The time between two measurements is a tenth of Options.After, within these bounds. It is less than what a
// measurement looks back: see gpu.Process.Peak.
const (
	minPeriod = 2 * time.Second
	maxPeriod = 30 * time.Second
)

// gap is the longest time between two measurements after which the use is still known: what a measurement looks back.
const gap = time.Minute

// writePeriod is the time between two questions whether everything is written.
const writePeriod = 100 * time.Millisecond

// Options are what a Watcher needs.
type Options struct {
	// After is how long a device is not used until its claim is marked; 0: claims are not marked.
	After time.Duration
	Dir   string // of the plugin
	// Claims measures which devices of claims are used; false: it could not.
	Claims   func() ([]usage.ClaimUse, bool)
	Reporter interface {
		Idle(claim sharing.Claim, all []report.DeviceCondition, text string)
		IdleWritten() bool // all of it
	}
}

// Watcher marks idle claims, and exports their metrics.
type Watcher struct {
	Options
	seconds *prometheus.CounterVec // namespace, use

	mu    sync.Mutex
	state state
}

// New returns a Watcher to run and to register.
func New(o Options) *Watcher {
	return &Watcher{Options: o, seconds: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: report.Prefix + "namespace_gpu_seconds_total",
		Help: "Seconds in which claims of the namespace held GPUs of the node, by whether the pods used them: used, " +
			"idle, or unknown where that cannot be measured. A whole GPU counts 1, a share or a partition the part " +
			"of the GPU's memory that it has."}, []string{"namespace", "use"})}
}

var idleDesc = prometheus.NewDesc(report.Prefix+"claim_idle_seconds",
	"Time since the device of a claim was last used, if the claim is marked as idle.",
	[]string{"namespace", "claim", "device"}, nil)

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(ch chan<- *prometheus.Desc) {
	w.seconds.Describe(ch)
	ch <- idleDesc
}

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(ch chan<- prometheus.Metric) {
	w.seconds.Collect(ch)
	w.mu.Lock()
	defer w.mu.Unlock()
	ages := map[[3]string]time.Duration{} // two shares of a GPU in one claim are one series
	for _, d := range w.state.Devices {
		if d.Told != nil && d.Told.Status == metav1.ConditionTrue {
			ages[[3]string{d.Claim.Namespace, d.Claim.Name, d.Device}] = w.state.At.Sub(d.Since)
		}
	}
	for labels, age := range ages {
		ch <- prometheus.MustNewConstMetric(idleDesc, prometheus.GaugeValue, age.Seconds(), labels[:]...)
	}
}

// Run measures until ctx ends. If claims are not marked any more, it only says so of those that are.
func (w *Watcher) Run(ctx context.Context) {
	w.load()
	if w.After == 0 {
		for _, c := range withdraw(w.state.Devices, time.Now(), "NotMeasured", "idle.after of the chart is 0") {
			w.Reporter.Idle(c.claim, c.all, "")
		}
		w.mu.Lock()
		w.state = state{}
		w.mu.Unlock()
		for !w.Reporter.IdleWritten() {
			select {
			case <-ctx.Done():
				return // the next instance tells them again
			case <-time.After(writePeriod):
			}
		}
		_ = os.Remove(filepath.Join(w.Dir, File)) // if it stays, they are told again
		return
	}
	period := min(max(w.After/10, minPeriod), maxPeriod)
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		if claims, ok := w.Claims(); ok {
			w.step(claims, time.Now())
		} else {
			w.blind(time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// blind is called when nothing could be measured. After a gap, no claim stays idle.
func (w *Watcher) blind(at time.Time) {
	w.mu.Lock()
	before := w.state
	if at.Sub(before.At).Abs() <= gap {
		w.mu.Unlock()
		return
	}
	changes := before.forget(at)
	w.mu.Unlock()
	w.tell(changes)
}

// step takes a measurement, and writes what has changed.
func (w *Watcher) step(claims []usage.ClaimUse, at time.Time) {
	w.mu.Lock()
	before := w.state
	next, changes := before.next(claims, at, w.After)
	w.state = next
	w.mu.Unlock()
	took := at.Sub(before.At).Abs()
	for _, c := range claims {
		if took > gap || before.restarted {
			took = 0 // this instance has not measured it
		}
		w.seconds.WithLabelValues(c.Claim.Namespace, string(c.Use)).Add(took.Seconds() * c.Part)
	}
	if before.restarted || len(before.Devices)+len(next.Devices) > 0 {
		if err := w.save(next); err != nil {
			klog.Background().Error(err, "After a restart of the plugin, claims are not idle until they have been so "+
				"for the whole time again")
		}
	}
	w.tell(changes)
}

func (w *Watcher) tell(changes []change) {
	for _, c := range changes {
		text := ""
		if len(c.idle) > 0 {
			text = fmt.Sprintf("no pod of the claim has used %s for %s", strings.Join(c.idle, ", "), w.After)
		}
		w.Reporter.Idle(c.claim, c.all, text)
	}
}

// load reads what an earlier instance has saved.
func (w *Watcher) load() {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := os.ReadFile(filepath.Join(w.Dir, File))
	if err == nil {
		err = json.Unmarshal(text, &w.state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.Background().Error(err, "The time of idle claims starts anew", "file", File)
	}
	if err != nil {
		w.state = state{lost: true}
	}
	w.state.restarted = true
}

func (w *Watcher) save(s state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(w.Dir, File), text, 0o600)
}
