// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
)

// bin is the folder of what is built here.
const bin = "_output/bin"

// sharedFlags are those of the Makefile, of test/cluster/internal/components and of deployments/container. What several
// programs need is compiled once if all are built with the same flags.
var sharedFlags = []string{"-trimpath", "-gcflags=all=-dwarf=false", "-tags=netgo,osusergo"}

// program is a command that builds a program of this module into bin, without cgo.
func program(name, pkg string, flags ...string) command {
	args := slices.Concat([]string{"go", "build"}, sharedFlags, flags, []string{"-o", filepath.Join(bin, name), pkg})
	return command{label: name, args: args, env: []string{"CGO_ENABLED=0"}}
}
