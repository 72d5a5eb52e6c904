// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strings"
	"testing"
)

func TestSilentFaults(t *testing.T) {
	const full = "link=x16g5 max=x16g5"
	three := func(answer string) string { return " others " + answer + "|" + answer + "|" + answer }
	for _, row := range []struct{ name, script, want string }{
		{"lanes that were there are gone", "0s answer " + full + "; 30s answer link=x8g5 max=x16g5; " +
			"60s answer link=x8g5 max=x16g5; 90s answer " + full,
			"60s PCIeLinkDegraded began (x8 generation 5, want x16 generation 5)\n" +
				"90s PCIeLinkDegraded ended (healthy again)"},
		{"one look is not enough, however often its answer is taken", "0s answer " + full + "; " +
			"30s answer link=x8g5; 40s answer link=x8g5 asked 30s; 60s answer " + full + "; 90s answer link=x8g5; " +
			"120s answer " + full, ""},
		{"at rest a GPU reduces its link", "0s answer " + full + "; 30s answer link=x16g1 resting; " +
			"60s answer link=x8g1 resting; 90s answer link=x8g1 resting", ""},
		{"what is wrong in use is not forgotten at rest", "0s answer " + full + "; 30s answer link=x16g2; " +
			"60s answer link=x16g2; 90s answer link=x16g1 resting; 120s answer link=x16g5 resting",
			"60s PCIeLinkDegraded began (x16 generation 2, want x16 generation 5)\n" +
				"120s PCIeLinkDegraded ended (healthy again)"},
		{"after a boot, a GPU at rest has another chance", "0s answer " + full + "; 30s answer link=x8g5; " +
			"60s answer link=x8g5; 90s boot b; 100s answer link=x16g1 resting",
			"60s PCIeLinkDegraded began (x8 generation 5, want x16 generation 5)\n" +
				"100s PCIeLinkDegraded ended (healthy again)"},
		{"another slot has another link", "0s answer " + full + "; 30s answer slot link=x8g4; " +
			"60s answer slot link=x8g4", ""},
		{"a slot that cannot do more", "0s answer link=x16g5; 30s answer link=x8g5 max=x8g5; " +
			"60s answer link=x8g5 max=x8g5", ""},
		{"a person accepts the link", "0s answer " + full + "; 30s answer link=x8g5; 60s answer link=x8g5; " +
			"70s clear; 90s answer link=x8g5; 120s answer link=x8g5",
			"60s PCIeLinkDegraded began (x8 generation 5, want x16 generation 5)\n" +
				"70s PCIeLinkDegraded ended (cleared)"},
		{"a person accepts a link that others have not", "0s answer link=x8g5" + three(full) +
			"; 30s answer link=x8g5" + three(full) + "; 40s clear; 60s answer link=x8g5" + three(full) +
			"; 90s answer link=x8g5" + three(full) + "; 120s answer link=x4g5" + three(full) +
			"; 150s answer link=x4g5" + three(full),
			"30s PCIeLinkDegraded began (x8 generation 5, want x16 generation 5)\n" +
				"40s PCIeLinkDegraded ended (cleared)\n" +
				"150s PCIeLinkDegraded began (x4 generation 5, want x8 generation 5) again, 1"},
		{"a reset ends it, also at rest", "0s answer " + full + "; 30s answer link=x8g5; 60s answer link=x8g5; " +
			"70s reset; 90s answer resting link=x16g1",
			"60s PCIeLinkDegraded began (x8 generation 5, want x16 generation 5)\n" +
				"70s PCIeLinkDegraded ended (reset)"},
		{"each chooses its generation at rest", "0s answer resting link=x16g1" + three("resting link=x16g2") +
			"; 30s answer resting link=x16g1" + three("resting link=x16g2"), ""},
		{"three others are better from the first look on", "0s answer link=x4g5 max=x16g5" + three(full) +
			"; 30s answer link=x4g5 max=x16g5" + three(full),
			"30s PCIeLinkDegraded began (x4 generation 5, want x16 generation 5)"},
		{"which are at rest later, or gone", "0s answer link=x4g5 max=x16g5" + three(full) +
			"; 30s answer link=x4g5 max=x16g5" + three(full) + "; 60s answer link=x4g5 max=x16g5" +
			three("resting link=x16g1") + "; 90s answer link=x4g5 max=x16g5; 120s answer " + full,
			"30s PCIeLinkDegraded began (x4 generation 5, want x16 generation 5)\n" +
				"120s PCIeLinkDegraded ended (healthy again)"},
		{"also at rest", "0s answer resting link=x4g1" + three("resting link=x16g1") +
			"; 30s answer resting link=x4g1" + three("resting link=x16g1"),
			"30s PCIeLinkDegraded began (x4 generation 1, want x16 generation 1)"},
		{"others that are in use accuse none at rest", "0s answer resting link=x8g1" + three(full) +
			"; 30s answer resting link=x8g1" + three(full), ""},
		{"two others accuse nobody", "0s answer link=x4g3 others " + full + "|" + full +
			"; 30s answer link=x4g3 others " + full + "|" + full, ""},
		{"nor do others of which one is as bad", "0s answer link=x8g5 others " + full + "|link=x8g5|" + full + "|" +
			full + "; 30s answer link=x8g5 others " + full + "|link=x8g5|" + full + "|" + full, ""},
		{"nor others whose slots are better", "0s answer link=x8g4 max=x8g4" + three(full) +
			"; 30s answer link=x8g4 max=x8g4" + three(full), ""},
		{"ECC was on", "0s answer ecc=Enabled; 30s answer ecc=Disabled; 60s answer ecc=Disabled; 90s answer healthy; " +
			"120s answer ecc=Enabled", "60s ECCOff began\n120s ECCOff ended (healthy again)"},
		{"ECC was never on", "0s answer ecc=Disabled; 30s answer ecc=Disabled", ""},
		{"ECC is on at the others", "0s answer ecc=Disabled" + three("ecc=Enabled") + "; 30s answer ecc=Disabled" +
			three("ecc=Enabled"), "30s ECCOff began"},
		{"fewer NVLinks than the others", "0s answer links=0" + three("links=0,1") + "; 30s answer links=0" +
			three("links=0,1") + "; 60s answer links=0,1" + three("links=0,1"),
			"30s NVLinkMissing began (1, want 2)\n60s NVLinkMissing ended (healthy again)"},
		{"none of them", "0s answer links=" + three("links=0,1") + "; 30s answer links=" + three("links=0,1"),
			"30s NVLinkMissing began (0, want 2)"},
		{"a link that was active says it better", "0s answer links=0,1" + three("links=0,1") + "; 30s answer links=0" +
			three("links=0,1") + "; 60s answer links=0" + three("links=0,1"), "30s NVLinkDown began (links 1)"},
		{"bridges join only some GPUs", "0s answer links= others links=0@7|links=0@8|links=0@9" +
			"; 30s answer links= others links=0@7|links=0@8|links=0@9", ""},
		{"others in MIG mode have none", "0s answer links=0 others links=0,1|links=0,1|healthy; " +
			"30s answer links=0 others links=0,1|links=0,1|healthy", ""},
		{"links come after the registration with the fabric", "0s answer registering links=" + three("links=0,1") +
			"; 30s answer registering links=" + three("links=0,1"), ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := &machine{T: t, bootID: "a"}
			m.play(row.script)
			if got := strings.Join(m.log, "\n"); got != row.want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}
