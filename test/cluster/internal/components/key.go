// SPDX-License-Identifier: Apache-2.0

package components

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// Inputs is all that decides what a build of a component results in. The
// sources of the driver are not among them.
type Inputs struct {
	GoVersion string
	Platform  string // GOOS/GOARCH
	GoMod     string // text of the component's go.mod
	GoSum     string // text of the component's go.sum
}

// Key names the cache folder of a component: name, version, and a short hash
// of everything else that would change the result.
func (c Component) Key(in Inputs) (string, error) {
	version, err := c.versionIn(in.GoMod)
	if err != nil {
		return "", err
	}
	return c.Name + "-" + version + "-" + hash(
		in.GoVersion, in.Platform, in.GoMod, in.GoSum,
		strings.Join(c.Packages, " "), strings.Join(c.Binaries, " "), c.Tags, c.linkerFlags(version), fmt.Sprint(c.Cgo),
	), nil
}

func hash(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		// The length in front keeps ("ab", "c") and ("a", "bc") apart.
		fmt.Fprintf(sum, "%d:", len(p))
		_, _ = io.WriteString(sum, p)
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}
