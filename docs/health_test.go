// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

func TestHealth(t *testing.T) {
	comparePage(t, "reference/conditions.md",
		map[string]func(*testing.T) string{"conditions": conditions, "xids": xids})
}

// conditions are the defaults of the causes that are no XIDs.
func conditions(t *testing.T) string {
	return defaults(t, "condition", func(c health.Cause) string {
		if _, ok := c.XID(); ok {
			return ""
		}
		return code(string(c))
	})
}

// xids are the defaults of XIDs.
func xids(t *testing.T) string {
	return defaults(t, "XID", func(c health.Cause) string {
		number, ok := c.XID()
		if !ok {
			return ""
		}
		return strconv.FormatUint(number, 10)
	})
}

// defaults are the rows of the causes that have a name. Causes whose rows say the same share one.
func defaults(t *testing.T, head string, name func(health.Cause) string) string {
	t.Helper()
	var rows [][]string
	for _, e := range health.Defaults() {
		title := name(e.Cause)
		if title == "" {
			continue
		}
		effect, recovery, _ := strings.Cut(e.Rule.String(), ", ")
		row := []string{title, e.Meaning, effect, recovery, e.Advice, e.Source}
		if i := slices.IndexFunc(rows, func(r []string) bool { return slices.Equal(r[1:], row[1:]) }); i >= 0 {
			rows[i][0] += ", " + title
			continue
		}
		rows = append(rows, row)
	}
	return table(t, []string{head, "is", "effect", "recovery", "what to do", "source"}, rows)
}

// The example of a node configuration is valid.
func TestExampleOfHealthRules(t *testing.T) {
	_, example, ok := strings.Cut(read(t, "operate/health.md"), "```yaml\n")
	example, _, closed := strings.Cut(example, "```\n")
	if !ok || !closed {
		t.Fatal("the page has no example")
	}
	if _, err := nodeconfig.Parse([]byte(example)); err != nil {
		t.Error(err)
	}
}
