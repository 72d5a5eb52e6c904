// SPDX-License-Identifier: Apache-2.0

package health

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestDefaults(t *testing.T) {
	for _, row := range []struct {
		name   string
		causes []Cause
		want   string
	}{
		{"programs make mistakes", xidCauses(13, 31, 43, 45, 94), "None, QuietTime 10m"},
		{"the driver is asked for the action", xidCauses(154), "None, QuietTime 10m"},
		{"a reset helps", xidCauses(46, 48, 62, 64, 74, 95, 109, 119, 120, 140), "NoSchedule, Reset"},
		{"a reboot helps", xidCauses(79), "NoSchedule, Reboot"},
		{"a person has to help", xidCauses(54, 142), "NoSchedule, Manual"},
		{"an XID without a row", xidCauses(1, 61, 169, 500), "NoSchedule, QuietTime 10m"},
		{"a cause of a later version", []Cause{"RecoveryActionReplace"}, "NoSchedule, Manual"},
		{"NVIDIA's driver asks for a reset", []Cause{RecoveryActionReset, RecoveryActionDrainAndReset},
			"NoSchedule, Reset"},
		{"programs can use the GPU until its rows are replaced", []Cause{RowRemapPending}, "None, Reset"},
		{"programs can use a slow GPU", []Cause{HardwareSlowdown}, "None, Manual"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, c := range row.causes {
				if got := (Policy{}).For(c).String(); got != row.want {
					t.Errorf("%s: got %s, want %s", c, got, row.want)
				}
			}
		})
	}
}

func xidCauses(numbers ...uint64) []Cause {
	var causes []Cause
	for _, n := range numbers {
		causes = append(causes, XIDCause(n))
	}
	return causes
}

func TestTableOfDefaults(t *testing.T) {
	var causes []Cause
	for _, e := range Defaults() {
		causes = append(causes, e.Cause)
		if e.Rule.Effect != EffectNone && e.Rule.Effect != EffectNoSchedule {
			t.Errorf("%s: effect %s is no default", e.Cause, e.Rule.Effect)
		}
		if !slices.Contains([]Recovery{RecoveryQuietTime, RecoveryReset, RecoveryReboot, RecoveryManual},
			e.Rule.Recovery) {
			t.Errorf("%s: unknown recovery %q", e.Cause, e.Rule.Recovery)
		}
		if quiet := e.Rule.QuietTime > 0; quiet != (e.Rule.Recovery == RecoveryQuietTime) {
			t.Errorf("%s: recovery %s with a quiet time of %s", e.Cause, e.Rule.Recovery, e.Rule.QuietTime)
		}
		for _, text := range []string{e.Meaning, e.Advice} {
			if n := utf8.RuneCountInString(text); n == 0 || n > 120 || !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %q has %d characters; want a sentence of 120 at most", e.Cause, text, n)
			}
		}
		if e.Source == "" || strings.Contains(e.Source, "|") {
			t.Errorf("%s: source %q", e.Cause, e.Source)
		}
		if meaning, advice := Describe(e.Cause); meaning != e.Meaning || advice != e.Advice {
			t.Errorf("Describe(%s): got %q and %q, want those of the table", e.Cause, meaning, advice)
		}
	}
	for i, c := range causes {
		if slices.Contains(causes[:i], c) {
			t.Errorf("%s has two rows", c)
		}
		number, ok := c.XID()
		if before, xid := causes[max(i-1, 0)].XID(); i > 0 && xid && (!ok || before >= number) {
			t.Errorf("%s stands after %s", c, causes[i-1])
		}
	}
	for _, c := range constants(t) {
		if !slices.Contains(causes, c) {
			t.Errorf("the constant %s has no row", c)
		}
	}
}

// constants returns the exported constants of policy.go with type Cause, by their names, which are their values.
func constants(t *testing.T) []Cause {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "policy.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []Cause
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].IsExported() {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Cause" {
				all = append(all, Cause(spec.Names[0].Name))
			}
		}
		return true
	})
	if len(all) < 10 {
		t.Fatalf("found %d constants: is this test looking for the right ones?", len(all))
	}
	return all
}

func TestDescribeUnknown(t *testing.T) {
	for _, c := range []Cause{XIDCause(500), "Unheard"} {
		if meaning, advice := Describe(c); meaning == "" || advice == "" {
			t.Errorf("%s: got %q and %q, want texts", c, meaning, advice)
		}
	}
}

func TestXID(t *testing.T) {
	for _, row := range []struct {
		cause  Cause
		number uint64
		ok     bool
	}{
		{XIDCause(79), 79, true}, {"XID0", 0, true}, {"XID", 0, false}, {"XID079", 0, false}, {"XID-1", 0, false},
		{"79", 0, false}, {RowRemapPending, 0, false},
	} {
		if number, ok := row.cause.XID(); number != row.number || ok != row.ok {
			t.Errorf("%q: got %d, %t, want %d, %t", row.cause, number, ok, row.number, row.ok)
		}
	}
}

func TestPolicyOfAdministrator(t *testing.T) {
	rules := map[Cause]Rule{XIDCause(48): {Effect: EffectNoExecute, Recovery: RecoveryReset},
		XIDCause(95): {Effect: EffectNoSchedule, Recovery: RecoveryManual}}
	p := NewPolicy(rules)
	rules[XIDCause(79)] = Rule{} // belongs to the caller
	for _, row := range []struct {
		cause     Cause
		want      string
		overrides bool
	}{
		{XIDCause(48), "NoExecute, Reset", true},
		{XIDCause(95), "NoSchedule, Manual", true},
		{XIDCause(79), "NoSchedule, Reboot", false},
		{XIDCause(500), "NoSchedule, QuietTime 10m", false},
	} {
		overrides := p.Overrides(row.cause)
		if got := p.For(row.cause).String(); got != row.want || overrides != row.overrides {
			t.Errorf("%s: got %s, %t, want %s, %t", row.cause, got, overrides, row.want, row.overrides)
		}
	}
}

func TestRuleString(t *testing.T) {
	for quiet, want := range map[time.Duration]string{
		time.Second: "1s", 30 * time.Second: "30s", 10 * time.Minute: "10m", 90 * time.Second: "1m30s",
		time.Hour: "1h", 90 * time.Minute: "1h30m", 24 * time.Hour: "24h",
	} {
		if got := (Rule{EffectNone, RecoveryQuietTime, quiet}).String(); got != "None, QuietTime "+want {
			t.Errorf("got %q, want %s at the end", got, want)
		}
	}
}
