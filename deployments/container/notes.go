// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// localLink finds links to files of the repository, also in other folders.
var localLink = regexp.MustCompile(`\]\(([A-Za-z0-9_.][A-Za-z0-9_./-]*(#[^)]*)?)\)`)

// notes returns the section of the version in CHANGELOG.md, with links that work outside the repository. A candidate
// has the section of its release.
func notes(changes []byte, version string) ([]byte, error) {
	title, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	_, text, ok := strings.Cut(string(changes), "\n## "+title+"\n")
	if !ok {
		return nil, fmt.Errorf("CHANGELOG.md has no section %q: write what users notice in %s", "## "+title, version)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	text = localLink.ReplaceAllString(text, "]("+repository+"/blob/"+version+"/$1)")
	return []byte("# " + version + "\n\n" + strings.TrimSpace(text) + "\n"), nil
}
