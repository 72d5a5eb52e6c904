// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/check"
)

// Every problem that check can find is on the page, and none that it cannot.
func TestTheProblemsAreListed(t *testing.T) {
	page := read(t, "reference/check.md")
	for _, k := range check.AllKinds {
		if row := fmt.Sprintf("\n| `%s` | %s | ", k.ID, k.Severity); strings.Count(page, row) != 1 {
			t.Errorf("the page does not have the row %q once", row)
		}
	}
	section := page[strings.Index(page, "## Problems"):strings.Index(page, "## JSON")]
	if got, want := strings.Count(section, "\n| `"), len(check.AllKinds); got != want {
		t.Errorf("the page has %d problems, want %d", got, want)
	}
}

// Every field of the report is on the page, but those of Kubernetes and CDI.
func TestTheFieldsOfTheReportAreListed(t *testing.T) {
	page := read(t, "reference/check.md")
	for _, name := range fieldsOf(reflect.TypeFor[check.Report]()) {
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+"[]`") {
			t.Errorf("the page does not have the field %s", name)
		}
	}
}

func fieldsOf(t reflect.Type) []string {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.Contains(t.PkgPath(), "/internal/check") {
		return nil
	}
	var out []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out = append(append(out, name), fieldsOf(t.Field(i).Type)...)
	}
	return out
}
