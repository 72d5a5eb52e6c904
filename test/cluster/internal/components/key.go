// SPDX-License-Identifier: Apache-2.0

package components

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// Inputs are all inputs of a component's build. The driver's sources are not among them.
type Inputs struct {
	GoVersion string
	Platform  string // GOOS/GOARCH
	GoMod     string // text of the component's go.mod
	GoSum     string // text of the component's go.sum
}

// Key returns the name of the component's cache folder: name, version, and a short hash of all other inputs.
func (c Component) Key(in Inputs) (string, error) {
	version, err := c.versionIn(in.GoMod)
	if err != nil {
		return "", err
	}
	linker, err := c.linkerFlags(in.GoMod)
	if err != nil {
		return "", err
	}
	return c.Name + "-" + version + "-" + hash(
		in.GoVersion, in.Platform, in.GoMod, in.GoSum,
		strings.Join(c.Packages, " "), strings.Join(c.Binaries, " "), strings.Join(c.flags(), " "), linker,
		fmt.Sprint(c.Cgo),
	), nil
}

func hash(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		// The length prefix makes ("ab", "c") and ("a", "bc") differ.
		fmt.Fprintf(sum, "%d:", len(p))
		_, _ = io.WriteString(sum, p)
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}
