// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// policy prints the time slice of every GPU of the container, read from nvidia-smi.
func policy(ctx context.Context, out io.Writer) error {
	text, err := exec.CommandContext(ctx, "nvidia-smi", "compute-policy", "--list").CombinedOutput()
	if err != nil {
		return fmt.Errorf("nvidia-smi compute-policy --list: %w\n%s", err, text)
	}
	return timeSlices(string(text), out)
}

// timeSlices parses the rows of the table with a time slice: "|   0     Timeslice        Long |".
func timeSlices(table string, out io.Writer) error {
	for line := range strings.Lines(table) {
		fields := strings.Fields(strings.Trim(strings.TrimSpace(line), "|"))
		if len(fields) == 3 && fields[1] == "Timeslice" {
			if _, err := fmt.Fprintf(out, "GPU %s: time slice %s\n", fields[0], fields[2]); err != nil {
				return err
			}
		}
	}
	return nil
}
