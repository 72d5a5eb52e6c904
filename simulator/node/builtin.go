// SPDX-License-Identifier: Apache-2.0

package node

import (
	"embed"
	"fmt"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

//go:embed profiles/*.yaml
var builtIn embed.FS

// Names returns the names of the built-in profiles, sorted.
func Names() []string { return hwprofile.FileNames(builtIn) }

// BuiltIn returns the built-in profile with that name.
func BuiltIn(name string) (hwprofile.Profile, error) {
	text, err := builtIn.ReadFile("profiles/" + name + ".yaml")
	if err != nil {
		return hwprofile.Profile{}, fmt.Errorf("no profile %q; built in are %s", name, strings.Join(Names(), ", "))
	}
	p, err := hwprofile.ParseProfile(text)
	if err != nil {
		return hwprofile.Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}
