// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// report writes a log line, events, and conditions of claims about a condition that began or ended.
func (m *Manager) report(ctx context.Context, now time.Time, c health.Condition) {
	rule := m.rule(c)
	text := m.subject(c) + ": "
	node, claim := report.Events.GPUUnhealthy, report.Events.DeviceUnhealthy
	switch {
	case !c.Active():
		text += m.ended(c)
		node, claim = report.Events.GPURecovered, report.Events.DeviceRecovered
		if c.End == health.EndGone || rule.Effect == health.EffectNone {
			node, claim = report.Events.GPUNotice, report.Events.DeviceNotice
		}
	case rule.Effect == health.EffectNone:
		text += describe(c, rule) + " It keeps no claim away."
		node, claim = report.Events.GPUNotice, report.Events.DeviceNotice
	default:
		text += describe(c, rule) + " " + m.consequence(c, rule)
	}
	klog.FromContext(ctx).Info("Health of GPU", "uuid", c.GPU, "cause", c.Cause, "active", c.Active(), "effect",
		rule.Effect, "recovery", rule.Recovery, "message", text)
	// Users of a new machine wait for its license.
	if !c.Active() && rule.Effect == health.EffectNone && c.Cause != health.VGPUUnlicensed {
		return
	}
	if c.Cause != health.GPULost || !c.Active() { // the discovery reports lost GPUs
		m.actions.Notices = append(m.actions.Notices, report.Notice{Event: node, Text: text})
	}
	m.reportToClaims(ctx, now, c, claim, text)
}

// reportToClaims writes an event and conditions for each claim that has an affected device.
func (m *Manager) reportToClaims(ctx context.Context, now time.Time, c health.Condition, e event.Kind, text string) {
	records, err := m.records.List()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Some claims are not told of the health of their GPUs", "err", err)
	}
	for _, rec := range records {
		affected := false
		var conditions []report.DeviceCondition
		for _, a := range rec.Plan.Assignments {
			d, ok := m.device(a.Device)
			if !ok || a.AdminAccess {
				continue
			}
			affected = affected || c.Affects(d)
			conditions = append(conditions, m.condition(d, report.DeviceCondition{Pool: a.Pool, Device: a.Device,
				ShareID: a.ShareID, Since: now}))
		}
		if !affected {
			continue
		}
		if m.rule(c).Effect == health.EffectNone {
			conditions = nil
		}
		m.actions.Notices = append(m.actions.Notices, report.Notice{Event: e, Text: text, Claim: rec.Claim,
			Conditions: conditions})
	}
}

// device returns the named device.
func (m *Manager) device(name string) (gpu.Device, bool) {
	if d, ok := m.known.Published.Find(name); ok {
		return d, true
	}
	return m.known.GPUs.Find(name)
}

// condition fills in the condition of a device for a claim. Since is the present.
func (m *Manager) condition(d gpu.Device, c report.DeviceCondition) report.DeviceCondition {
	c.Status, c.Reason = metav1.ConditionTrue, "Healthy"
	if ended := m.state.LastEnded(d); !ended.IsZero() {
		c.Reason, c.Since = "Recovered", ended
	}
	for _, wrong := range m.state.Of(d) {
		if rule := m.rule(wrong); rule.Effect != health.EffectNone {
			c.Status, c.Reason, c.Since = metav1.ConditionFalse, string(wrong.Cause), wrong.Since
			c.Message = describe(wrong, rule) + " " + m.consequence(wrong, rule)
			break
		}
	}
	return c
}

// subject names what the condition is about.
func (m *Manager) subject(c health.Condition) string {
	name, product := string(c.GPU), ""
	for _, d := range m.known.GPUs {
		if d.UUID != c.GPU {
			continue
		}
		name, product = d.Name, d.Product.Name+", "
		if c.Partition != nil {
			return fmt.Sprintf("partition %s (%s%s)", gpu.PartitionName(d.Name, *c.Partition), product, c.GPU)
		}
	}
	return fmt.Sprintf("GPU %s (%s%s)", name, product, c.GPU)
}

// describe says what happened, since when, and what a person can do.
func describe(c health.Condition, rule health.Rule) string {
	meaning, advice := health.Describe(c.Cause)
	what := c.Cause.Title()
	if c.Detail != "" {
		what += " (" + c.Detail + ")"
	}
	text := fmt.Sprintf("%s: %s Since %s.", what, meaning, c.Since.UTC().Format(time.RFC3339))
	if c.Returns > 0 {
		times := "once"
		if c.Returns > 1 {
			times = fmt.Sprintf("%d times", c.Returns)
		}
		text += fmt.Sprintf(" It has come back %s within a day", times)
		if quiet := c.Quiet(rule); quiet > 0 {
			text += fmt.Sprintf(", so it does not end before it has been gone for %s", quiet)
		}
		text += "."
	}
	return text + " What to do: " + health.OfGPU(advice, string(c.GPU))
}

// consequence says what the driver does, and until when.
func (m *Manager) consequence(c health.Condition, rule health.Rule) string {
	text := "New claims avoid it (NoSchedule)"
	switch {
	case rule.Effect == health.EffectNoExecute && m.known.Untainted:
		text = "Its pods stay, because the API server stores no taints (feature gate DRADeviceTaints); new claims " +
			"avoid it"
	case rule.Effect == health.EffectNoExecute:
		text = "Its pods are evicted unless they tolerate the taint by effect: NoExecute, and new claims avoid it"
	}
	return text + ", until " + c.EndsWhen(rule) + "."
}

// ended says why the condition ended and what is left.
func (m *Manager) ended(c health.Condition) string {
	text := fmt.Sprintf("%s has ended (%s) after %s", c.Cause.Title(), c.End, c.Ended.Sub(c.Since).Round(time.Second))
	if c.End == health.EndGone || m.rule(c).Effect == health.EffectNone {
		return text
	}
	var left []string
	for _, d := range m.known.GPUs {
		for _, other := range m.state.Of(d) {
			if c.GPU == d.UUID && m.rule(other).Effect != health.EffectNone {
				left = append(left, other.Cause.Title())
			}
		}
	}
	if len(left) > 0 {
		return text + "; still wrong: " + strings.Join(left, ", ")
	}
	return text + "; new claims can have it"
}

// Reports returns the health of all devices.
func (m *Manager) Reports() []health.DeviceReport {
	all := make([]health.DeviceReport, 0, len(m.known.Published)+1)
	for _, d := range m.known.Published {
		all = append(all, m.reportOf(d))
	}
	return append(all, m.reportOfMonitor())
}

// reportOf returns the health of a device.
func (m *Manager) reportOf(d gpu.Device) health.DeviceReport {
	r := health.DeviceReport{Device: d.Name, Status: health.Healthy}
	var texts []string
	for _, c := range m.state.Of(d) {
		rule := m.rule(c)
		if rule.Effect != health.EffectNone {
			r.Status = health.Unhealthy
		}
		texts = append(texts, describe(c, rule))
	}
	if d.Lost && r.Status == health.Healthy {
		r.Status = health.Unhealthy
		texts = append(texts, "The device does not answer, or was removed.")
	}
	if why := m.unwatched(d); why != "" && r.Status == health.Healthy {
		r.Status = health.Unknown
		texts = append(texts, "not watched: "+why)
	}
	r.Message = event.Text(strings.Join(texts, "\n")) // the kubelet has the same limit
	return r
}

// reportOfMonitor returns the health of the monitor device, which is healthy as long as the plugin is. It names the
// sick GPUs.
func (m *Manager) reportOfMonitor() health.DeviceReport {
	r := health.DeviceReport{Device: inventory.Monitor, Status: health.Healthy}
	var texts []string
	for _, d := range m.known.GPUs {
		for _, c := range m.state.Of(d) {
			texts = append(texts, d.Name+": "+c.Cause.Title())
		}
	}
	r.Message = event.Text(strings.Join(texts, "; "))
	return r
}
