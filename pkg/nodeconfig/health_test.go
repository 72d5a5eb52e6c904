// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// rulesOf is what a configuration means for the health of the node, one line for each GPU with rules of its own; or the
// error.
func rulesOf(text string) string {
	c, err := Parse([]byte(text))
	if err != nil {
		return err.Error()
	}
	causes := []health.Cause{health.XIDCause(1023)} // not in the table
	for _, e := range health.Defaults() {
		causes = append(causes, e.Cause)
	}
	var lines []string
	for _, d := range node {
		var rules []string
		for _, cause := range causes {
			if p := c.Health(d); p.Overrides(cause) {
				rules = append(rules, fmt.Sprintf("%s %s", cause, p.For(cause)))
			} else if p.For(cause) != (health.Policy{}).For(cause) {
				rules = append(rules, fmt.Sprintf("%s changed without a rule", cause))
			}
		}
		slices.Sort(rules)
		if len(rules) > 0 {
			lines = append(lines, d.Name+" "+strings.Join(rules, "; "))
		}
	}
	return strings.Join(append(lines, c.Warnings...), "\n")
}

const conditionNames = "RecoveryActionReset, RecoveryActionReboot, RecoveryActionDrainP2P, " +
	"RecoveryActionDrainAndReset, RecoveryActionRecoverIMEXDomain, RecoveryActionBusReset, " +
	"RecoveryActionSystemReboot, RowRemapPending, RowRemapFailed, PageRetirementPending, NVLinkDown, " +
	"FabricUnhealthy, HardwareSlowdown, PCIeLinkDegraded, NVLinkMissing, ECCOff, DeviceNodeMissing, VGPUUnlicensed, " +
	"ComputeModeProhibited, " +
	"ComputeModeExclusiveProcess, GPULost, ResetRequired, NotRestored, ECCDoubleBit, AERFatal or AERNonfatal"

func TestHealth(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"nothing about health", ownHead + "gpus: [{sharing: exclusive}]", ""},
		{"NVIDIA's device plugin has nothing about health",
			"version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", ""},
		{"effects, recoveries and quiet times", ownHead + `
gpus:
- select: {product: "NVIDIA H100*"}
  health:
  - xids: [48, 79]
    effect: NoExecute
  - xids: [109]
    effect: None
  - conditions: [NVLinkDown]
    effect: NoSchedule
    recovery: QuietTime
    quietTime: 30m`,
			"gpu-2 NVLinkDown NoSchedule, QuietTime 30m; XID109 None, Reset; XID48 NoExecute, Reset; " +
				"XID79 NoExecute, Reboot"},
		{"an XID of a program gets an effect, and the quiet time of the default",
			ownHead + "gpus: [{select: {index: 0}, health: [{xids: [13], effect: NoSchedule}]}]",
			"gpu-0 XID13 NoSchedule, QuietTime 10m"},
		{"an XID that is not in the table",
			ownHead + "gpus: [{select: {index: 0}, health: [{xids: [1023], recovery: Manual}]}]",
			"gpu-0 XID1023 NoSchedule, Manual"},
		{"a quiet time instead of a reset has a default",
			ownHead + "gpus: [{select: {index: 0}, health: [{xids: [79], recovery: QuietTime}]}]",
			"gpu-0 XID79 NoSchedule, QuietTime 10m"},
		{"XIDs and conditions in one rule",
			ownHead + "gpus: [{select: {index: 3}, health: [{xids: [48], conditions: [ECCDoubleBit], effect: None}]}]",
			"gpu-3 ECCDoubleBit None, Reset; XID48 None, Reset"},
		{"a rule that repeats a default is a rule",
			ownHead + "gpus: [{select: {index: 3}, health: [{xids: [48], effect: NoSchedule}]}]",
			"gpu-3 XID48 NoSchedule, Reset"},
		{"the first entry that selects a GPU decides about health, too", ownHead + `
gpus:
- {select: {index: 0}, sharing: exclusive}
- {select: {architecture: Ampere}, health: [{xids: [48], effect: None}]}
- {health: [{xids: [79], effect: None}]}`,
			"gpu-1 XID48 None, Reset\ngpu-2 XID79 None, Reboot\ngpu-3 XID79 None, Reboot"},
		{"the shortest and the longest quiet time", ownHead + `
gpus:
- select: {index: 0}
  health:
  - {xids: [13], recovery: QuietTime, quietTime: 1s}
  - {xids: [31], recovery: QuietTime, quietTime: 24h}`,
			"gpu-0 XID13 None, QuietTime 1s; XID31 None, QuietTime 24h"},
	} {
		t.Run(row.name, func(t *testing.T) { compare(t, rulesOf(row.text), row.want) })
	}
}

// An entry with nothing but rules leaves the use of its GPUs at the default.
func TestHealthLeavesUse(t *testing.T) {
	compare(t, usesOf(ownHead+"gpus: [{health: [{xids: [48], effect: None}]}, ]"), untouched)
}

func TestInvalidHealth(t *testing.T) {
	for _, row := range []struct{ name, rules, want string }{
		{"no list", "{xids: [48], effect: None}", "line 5: gpus[0].health: a map: want a list"},
		{"an empty list", "[]", "line 5: gpus[0].health: empty: want one rule or more; without the field, all causes " +
			"have their defaults"},
		{"nothing", "", "line 5: gpus[0].health: nothing: want a list"},
		{"a rule that is no map", "[XID48]",
			`line 5: gpus[0].health[0]: "XID48": want a map with the fields xids, conditions, effect, recovery, quietTime`},
		{"an unknown field", "[{xid: [48], effect: None}]", `
line 5: gpus[0].health[0].xid: unknown field; accepted here: xids, conditions, effect, recovery, quietTime
line 5: gpus[0].health[0]: names no cause: want xids, conditions or both`},
		{"a rule for nothing", "[{effect: None}]",
			"line 5: gpus[0].health[0]: names no cause: want xids, conditions or both"},
		{"a rule for no XID", "[{xids: [], effect: None}]", "line 5: gpus[0].health[0].xids: empty: want one or more"},
		{"a rule for no condition", "[{conditions: [], effect: None}]",
			"line 5: gpus[0].health[0].conditions: empty: want one or more"},
		{"one XID, and no list", "[{xids: 48, effect: None}]", `line 5: gpus[0].health[0].xids: "48": want a list`},
		{"XIDs that cannot be", "[{xids: [0, 1024, XID48], effect: None}]", `
line 5: gpus[0].health[0].xids[0]: "0": want a whole number from 1 to 1023
line 5: gpus[0].health[0].xids[1]: "1024": want a whole number from 1 to 1023
line 5: gpus[0].health[0].xids[2]: "XID48": want a whole number from 1 to 1023`},
		{"an unknown condition", "[{conditions: [NVLinkUp], effect: None}]",
			`line 5: gpus[0].health[0].conditions[0]: "NVLinkUp": want ` + conditionNames},
		{"an XID among the conditions", "[{conditions: [XID48], effect: None}]",
			`line 5: gpus[0].health[0].conditions[0]: "XID48": want ` + conditionNames},
		{"a rule that changes nothing", "[{xids: [48]}]",
			"line 5: gpus[0].health[0]: changes nothing: want effect, recovery or both"},
		{"an effect that does not exist", "[{xids: [48], effect: Evict}]",
			`line 5: gpus[0].health[0].effect: "Evict": want None, NoSchedule or NoExecute`},
		{"no effect", "[{xids: [48], effect: }]",
			`line 5: gpus[0].health[0].effect: nothing: want None, NoSchedule or NoExecute`},
		{"a recovery that does not exist", "[{xids: [48], recovery: Wait, quietTime: 5m}]",
			`line 5: gpus[0].health[0].recovery: "Wait": want QuietTime, Reset, Reboot or Manual`},
		{"a quiet time alone", "[{xids: [13], quietTime: 5m}]",
			"line 5: gpus[0].health[0].quietTime: only recovery: QuietTime has one"},
		{"a quiet time until a reset", "[{xids: [48], recovery: Reset, quietTime: 5m}]",
			"line 5: gpus[0].health[0].quietTime: only recovery: QuietTime has one"},
		{"a quiet time without a unit", "[{xids: [48], recovery: QuietTime, quietTime: 30}]",
			`line 5: gpus[0].health[0].quietTime: "30": want a duration from 1s to 24h, such as 30m`},
		{"a quiet time that is too short", "[{xids: [48], recovery: QuietTime, quietTime: 999ms}]",
			`line 5: gpus[0].health[0].quietTime: "999ms": want a duration from 1s to 24h, such as 30m`},
		{"a quiet time that is too long", "[{xids: [48], recovery: QuietTime, quietTime: 25h}]",
			`line 5: gpus[0].health[0].quietTime: "25h": want a duration from 1s to 24h, such as 30m`},
		{"an XID twice in a rule", "[{xids: [48, 48], effect: None}]",
			"line 5: gpus[0].health[0].xids[1]: 48 has a rule already, in line 5: want one for each cause"},
		{"a condition in two rules",
			"\n  - {conditions: [GPULost], effect: None}\n  - {conditions: [GPULost], effect: NoExecute}",
			"line 7: gpus[0].health[1].conditions[0]: GPULost has a rule already, in line 6: want one for each cause"},
	} {
		t.Run(row.name, func(t *testing.T) {
			compare(t, rulesOf(ownHead+"gpus:\n- select: {index: 0}\n  health: "+row.rules+"\n"), row.want)
		})
	}
}
