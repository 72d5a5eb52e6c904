// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/convert"
)

// What helm uninstall leaves is named, with the label that finds it.
func TestUninstallNamesWhatStays(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "operate/upgrade.md"), "## Uninstall")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, want := range []string{"resourceclaimtemplates --all-namespaces --selector " + convert.FamilyLabel,
		"delete lease gpu-dra-driver-scheduler"} {
		if !strings.Contains(section, want) {
			t.Errorf("got %s, want %q in it", section, want)
		}
	}
}
