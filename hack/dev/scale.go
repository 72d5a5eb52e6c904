// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"
)

// scaleProgram is the binary of test/scale.
const scaleProgram = bin + "/scale"

// scale measures large clusters and writes docs/project/results/scale.md. SCALE has more flags of the program.
func scale(ctx context.Context) error {
	args, err := onControlPlane(ctx, scaleProgram, "./test/scale")
	if err != nil {
		return err
	}
	args = append(append(args, "-docs", "docs/project/results/scale.md"), strings.Fields(os.Getenv("SCALE"))...)
	return command{args: args}.attach(ctx)
}
