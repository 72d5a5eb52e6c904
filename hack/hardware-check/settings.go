// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
)

// settings applies the settings that claims may request of a GPU, and reverts them.
func (e *checker) settings(ctx context.Context) {
	const timeSlice, mode = "nvidia-smi compute-policy --set-timeslice", "nvidia-smi -c"
	g, ok := e.unpartitionedGPU()
	if !e.allowChanges || !ok || e.report.Driver.NvidiaSMI == "" {
		why := "it changes settings: -allow-changes"
		if e.allowChanges {
			why = "no GPU is whole, or there is no nvidia-smi"
		}
		e.add(skipped, timeSlice, "%s", why)
		e.add(skipped, mode, "%s", why)
		return
	}
	uuid := fmt.Sprint(g.Attributes["uuid"])
	_, err := e.smi(ctx, "compute-policy", "-i", uuid, "--set-timeslice", "1")
	undo := context.WithoutCancel(ctx) // also after cancellation
	_, back := e.smi(undo, "compute-policy", "-i", uuid, "--set-timeslice", "0")
	e.expect(errors.Join(err, back), timeSlice, "set to Short, and back")
	_, err = e.smi(ctx, "-i", uuid, "-c", "EXCLUSIVE_PROCESS")
	_, back = e.smi(undo, "-i", uuid, "-c", "DEFAULT")
	e.expect(errors.Join(err, back), mode, "set to EXCLUSIVE_PROCESS, and back to DEFAULT")
}
