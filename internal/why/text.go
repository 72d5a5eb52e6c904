// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// Text writes the report for people. The first line is the cause, the second is the smallest change.
func (r *Answer) Text(out io.Writer) error {
	var b lines
	b.add("%s", r.Cause)
	if second := r.Advice(); second != "" {
		b.add("%s", second)
	}
	for _, other := range r.Alternatives {
		b.add("or: %s", changesText(other))
	}
	if !r.Search.Complete && r.Search.NotTried != "" {
		b.add("the search reached its limit and did not try: %s", r.Search.NotTried)
	}
	r.places(&b)
	r.losses(&b)
	r.holders(&b)
	for _, note := range r.Notes {
		b.add("")
		b.add("note: %s", note)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// lines is a text of lines. What an object says begins no line of its own.
type lines struct{ strings.Builder }

// add adds a line.
func (l *lines) add(format string, args ...any) {
	l.WriteString(Printable(fmt.Sprintf(format, args...)) + "\n")
}

// Printable returns the text on one line, without control characters, which could change the terminal: attributes of
// devices, messages, manifests, and what pods answer can have any.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// Advice returns the second line: the smallest change, that none helps, or what the scheduler does next. It is empty if
// there is nothing to change.
func (r *Answer) Advice() string {
	switch {
	case len(r.Change) > 0 && r.unless != "":
		return r.changeLine() + ", unless " + r.unless
	case len(r.Change) > 0:
		return r.changeLine()
	case len(r.Requests) > 0 && r.Outcome == Waits:
		return r.noChange()
	case len(r.Binding) > 0:
		return bindingAdvice(r.Binding[0])
	}
	return ""
}

// changeLine is the second line, if there is a change.
func (r *Answer) changeLine() string {
	if onlyWaits(r.Change) {
		if !slices.ContainsFunc(r.Alternatives, func(all []advice.Change) bool { return !onlyWaits(all) }) {
			text := "it would fit when " + strings.ReplaceAll(changesText(r.Change), advice.WaitUntil, "")
			if r.Search.Complete { // each single change was tried
				text = "no single change of this " + r.kind() + " helps; " + text
			}
			return text
		}
		return "without a change: " + changesText(r.Change)
	}
	return "smallest change: " + changesText(r.Change)
}

func onlyWaits(all []advice.Change) bool {
	return !slices.ContainsFunc(all, func(c advice.Change) bool { return c.Kind != advice.Wait })
}

// kind is the kind for people: pod, claim or claimtemplate.
func (r *Answer) kind() string { return strings.ToLower(strings.TrimPrefix(r.Kind, "Resource")) }

// noChange says that nothing was found.
func (r *Answer) noChange() string {
	lost := func(kind schedule.LossKind) bool {
		return !slices.ContainsFunc(r.Requests, func(q RequestLosses) bool {
			return q.Left > 0 || !slices.ContainsFunc(q.Losses, func(l Loss) bool { return l.Kind == kind })
		})
	}
	switch {
	case !r.Search.Complete:
		return "no change was found that helps"
	case lost(schedule.LostHeld):
		return "no change of this " + r.kind() + " helps: all devices that it could get are held"
	case lost(schedule.LostTaint):
		return "no change of this " + r.kind() + " helps: it waits until the taints have gone"
	}
	return "no change of this " + r.kind() + " helps, and no end of other claims"
}

func changesText(all []advice.Change) string {
	var texts []string
	for _, c := range all {
		switch {
		case c.Kind == advice.Wait:
			texts = append(texts, c.Text)
		case c.Request != "":
			texts = append(texts, fmt.Sprintf("in %s, request %s: %s", c.In, c.Request, c.Text))
		default:
			texts = append(texts, fmt.Sprintf("in %s: %s", c.In, c.Text))
		}
	}
	return strings.Join(texts, "; and ")
}

func (r *Answer) places(b *lines) {
	const most = 20
	for i, p := range r.Places {
		if i == most {
			b.add("and %d more kinds of nodes", len(r.Places)-most)
			return
		}
		name := p.Nodes[0]
		if n := len(p.Nodes) - 1; n > 0 {
			name += fmt.Sprintf(" and %d like it", n)
		}
		var devices []string
		for _, d := range p.Devices {
			text := fmt.Sprintf("%s gets %s", d.Request, d.Device)
			if d.Asked != "" {
				text += fmt.Sprintf(" (all of it, not %s: the GPU has no shares)", d.Asked)
			}
			devices = append(devices, text)
		}
		if len(devices) == 0 {
			b.add("  %s", name)
			continue
		}
		b.add("  %s: %s", name, strings.Join(devices, ", "))
	}
}

func (r *Answer) losses(b *lines) {
	if r.Outcome != Waits {
		return
	}
	for _, q := range r.Requests {
		wants := fmt.Sprintf("wants %d", q.Wanted)
		if q.Wanted == 0 {
			wants = "wants all of a node"
		}
		b.add("")
		b.add("claim %s, request %s %s; of %d %s:", q.Claim, q.Request, wants, q.Devices,
			schedule.Plural(q.Devices, "device", "devices"))
		for _, l := range q.Losses {
			b.add("  %6d  %s", l.Devices, lossText(l))
		}
		b.add("  %6d  left, at most %d on one node", q.Left, q.MostOnOneNode)
	}
	if len(r.Nodes.Excluded) > 0 {
		b.add("")
		b.add("of %d %s, the pod excludes:", r.Nodes.Total, schedule.Plural(r.Nodes.Total, "node", "nodes"))
		for _, e := range r.Nodes.Excluded {
			b.add("  %6d  by %s", e.Nodes, e.Reason)
		}
	}
}

func lossText(l Loss) string {
	text := l.Detail
	switch l.Kind {
	case schedule.LostClause:
		text = schedule.Plural(l.Devices, "does", "do") + " not meet " + l.Detail
	case schedule.LostTaint:
		text = taintText(l.Devices, l.Detail)
	case schedule.LostError:
		text = "error in " + l.Detail
	}
	if l.Alone > 0 && l.Alone < l.Devices {
		text += fmt.Sprintf(" (%d of them for no other reason)", l.Alone)
	}
	return text
}

// taintText says that devices have the taint, or who it keeps them for.
func taintText(devices int, taint string) string {
	is := schedule.Plural(devices, "is", "are")
	if value, ok := strings.CutPrefix(taint, cluster.ReservedTaint); ok {
		team, _, _ := strings.Cut(strings.TrimPrefix(value, "="), ":")
		return fmt.Sprintf("%s kept for %s by kubectl gpu reserve (the taint %s)", is, cmp.Or(team, "others"), taint)
	}
	if taint == cluster.PreemptionTaint {
		return fmt.Sprintf("%s kept for a pod that preempted others (the taint %s)", is, taint)
	}
	return schedule.Plural(devices, "has", "have") + " the taint " + taint
}

func (r *Answer) holders(b *lines) {
	if r.Outcome != Waits || len(r.Holders) == 0 {
		return
	}
	b.add("")
	b.add("held by:")
	for i, h := range r.Holders {
		if i == shownHolders {
			b.add("  and others: kubectl gpu ls lists all")
			break
		}
		since := ""
		if h.Since != nil {
			since = " since " + h.Since.UTC().Format(time.RFC3339)
		}
		users := ""
		if len(h.Pods) > 0 {
			users = " for " + strings.Join(h.Pods, ", ")
		}
		b.add("  claim %s: %s on node %s%s%s", h.Claim, strings.Join(h.Devices, ", "), h.Node, since, users)
	}
}
