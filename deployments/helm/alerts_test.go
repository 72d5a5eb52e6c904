// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// alert is a rule of the chart.
type alert struct {
	Alert, Record       string
	Expr, For           string
	Labels, Annotations map[string]string
}

// alerts returns the rules of the chart. Package test/alerts tests when alerts fire.
func alerts(t *testing.T) []alert {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "alerts", "*.yaml"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files of alerts: %v, %v", files, err)
	}
	var all []alert
	for _, file := range files {
		var rules struct{ Groups []struct{ Rules []alert } }
		if err := yaml.Unmarshal([]byte(read(t, file)), &rules); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, g := range rules.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// Each alert says what is wrong and what to do, and operate.md lists it.
func TestAlerts(t *testing.T) {
	page := read(t, "../../docs/operate/monitor.md")
	_, page, _ = strings.Cut(page, "## Alerts\n")
	page, _, _ = strings.Cut(page, "\n## ")
	listed := map[string]string{} // alert → severity
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(page, -1) {
		listed[row[1]] = row[2]
	}
	for _, a := range alerts(t) {
		if a.Record != "" {
			continue
		}
		severity := a.Labels["severity"]
		if got := listed[a.Alert]; got != severity || severity == "" {
			t.Errorf("%s: operate.md has severity %q, the chart %q", a.Alert, got, severity)
		}
		delete(listed, a.Alert)
		for _, name := range []string{"summary", "description"} {
			if text := a.Annotations[name]; !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %s %q: want a sentence", a.Alert, name, text)
			}
		}
		if a.Annotations["runbook_url"] == "" { // TestLinks of docs looks whether it leads somewhere
			t.Errorf("%s has no runbook_url", a.Alert)
		}
		for _, file := range regexp.MustCompile(`docs/[\w/-]+\.md`).FindAllString(a.Annotations["description"], -1) {
			if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
				t.Errorf("%s: %v", a.Alert, err)
			}
		}
	}
	for name := range listed {
		t.Errorf("operate.md has the alert %s, the chart does not", name)
	}
}
