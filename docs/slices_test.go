// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/nodetemplate"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

var slicesBlock = regexp.MustCompile("(?s)\n```yaml slices (\\S+)\n(.*?)\n```")

// The command slices prints what the page shows, in this order.
func TestTheTemplateOnThePage(t *testing.T) {
	block := slicesBlock.FindStringSubmatch(read(t, "options/other-software.md"))
	if block == nil {
		t.Fatal("the page shows no template")
	}
	template, err := nodetemplate.FromProfile(block[1], nodeconfig.Config{},
		nodetemplate.Target{Driver: "gpu.nvidia.com", Name: "template"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := template.YAML()
	if err != nil {
		t.Fatal(err)
	}
	rest := string(text)
	for _, part := range strings.Split(block[2], "\n# …\n") {
		_, after, found := strings.Cut(rest, "\n"+part+"\n")
		if !found {
			t.Fatalf("the command does not print, after what is before it on the page:\n%s", part)
		}
		rest = "\n" + after
	}
}
