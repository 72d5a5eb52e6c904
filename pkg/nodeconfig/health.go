// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// maxXID is far above the XIDs of NVIDIA's catalog.
const maxXID = 1023

// The shortest and the longest quiet time.
const (
	minQuietTime = time.Second
	maxQuietTime = 24 * time.Hour
)

// health reads the rules of an entry.
func (r *reader) health(path string, n *yaml.Node) health.Policy {
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		r.problem(n.Line, path, "empty: want one rule or more; without the field, all causes have their defaults")
	}
	rules := map[health.Cause]health.Rule{}
	lines := map[health.Cause]int{} // of the causes that already have a rule
	r.list(path, n, func(path string, n *yaml.Node) {
		f := r.fields(path, n, "xids", "conditions", "effect", "recovery", "quietTime")
		if f == nil {
			return
		}
		change := r.change(path, n, f)
		for _, c := range r.causes(path, n, f, lines) {
			rules[c] = change.of(health.Policy{}.For(c))
		}
	})
	return health.NewPolicy(rules)
}

// causes reads the causes that a rule names. It reports those that have a rule already.
func (r *reader) causes(path string, n *yaml.Node, f map[string]*yaml.Node, lines map[health.Cause]int) []health.Cause {
	if f["xids"] == nil && f["conditions"] == nil {
		r.problem(n.Line, path, "names no cause: want xids, conditions or both")
	}
	var all []health.Cause
	for _, kind := range []struct {
		field string
		read  func(path string, n *yaml.Node) (health.Cause, bool)
	}{{"xids", r.xid}, {"conditions", r.condition}} {
		list := f[kind.field]
		if list == nil {
			continue
		}
		if list.Kind == yaml.SequenceNode && len(list.Content) == 0 {
			r.problem(list.Line, path+"."+kind.field, "empty: want one or more")
		}
		r.list(path+"."+kind.field, list, func(path string, n *yaml.Node) {
			c, ok := kind.read(path, n)
			switch {
			case !ok:
			case lines[c] > 0:
				r.problem(n.Line, path, "%s has a rule already, in line %d: want one for each cause", n.Value, lines[c])
			default:
				lines[c] = n.Line
				all = append(all, c)
			}
		})
	}
	return all
}

func (r *reader) xid(path string, n *yaml.Node) (health.Cause, bool) {
	number, ok := r.number(path, n, 1, maxXID)
	return health.XIDCause(uint64(number)), ok
}

func (r *reader) condition(path string, n *yaml.Node) (health.Cause, bool) {
	var accepted []health.Cause
	for _, e := range health.Defaults() {
		if _, xid := e.Cause.XID(); !xid {
			accepted = append(accepted, e.Cause)
		}
	}
	c := oneOf(r, path, n, accepted...)
	return c, c != ""
}

// change is what a rule changes of the defaults. A zero field changes nothing.
type change struct {
	effect    health.Effect
	recovery  health.Recovery
	quietTime time.Duration
}

// change reads what a rule changes.
func (r *reader) change(path string, n *yaml.Node, f map[string]*yaml.Node) change {
	var c change
	effect, recovery, quietTime := f["effect"], f["recovery"], f["quietTime"]
	if effect == nil && recovery == nil && quietTime == nil {
		r.problem(n.Line, path, "changes nothing: want effect, recovery or both")
	}
	if effect != nil {
		c.effect = oneOf(r, path+".effect", effect, health.EffectNone, health.EffectNoSchedule, health.EffectNoExecute)
	}
	if recovery != nil {
		c.recovery = oneOf(r, path+".recovery", recovery, health.RecoveryQuietTime, health.RecoveryReset,
			health.RecoveryReboot, health.RecoveryManual)
	}
	if quietTime != nil {
		c.quietTime = r.quietTime(path+".quietTime", quietTime)
		if mistyped := recovery != nil && c.recovery == ""; c.recovery != health.RecoveryQuietTime && !mistyped {
			r.problem(quietTime.Line, path+".quietTime", "only recovery: %s has one", health.RecoveryQuietTime)
		}
	}
	return c
}

// of returns the rule with the changes.
func (c change) of(rule health.Rule) health.Rule {
	rule.Effect = cmp.Or(c.effect, rule.Effect)
	if c.recovery == "" {
		return rule
	}
	rule.Recovery, rule.QuietTime = c.recovery, 0
	if c.recovery == health.RecoveryQuietTime {
		rule.QuietTime = cmp.Or(c.quietTime, health.DefaultQuietTime)
	}
	return rule
}

func (r *reader) quietTime(path string, n *yaml.Node) time.Duration {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < minQuietTime || d > maxQuietTime {
		r.problem(n.Line, path, "%s: want a duration from 1s to 24h, such as 30m", show(n))
		return 0
	}
	return d
}

// oneOf reads one of the accepted words, none if it is invalid.
func oneOf[T ~string](r *reader, path string, n *yaml.Node, accepted ...T) T {
	if word := T(n.Value); n.Kind == yaml.ScalarNode && slices.Contains(accepted, word) {
		return word
	}
	var words []string
	for _, word := range accepted {
		words = append(words, string(word))
	}
	last := len(words) - 1
	r.problem(n.Line, path, "%s: want %s or %s", show(n), strings.Join(words[:last], ", "), words[last])
	return ""
}
