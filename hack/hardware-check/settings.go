// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/internal/check"
)

// settings applies the settings that claims may request of a GPU, and reverts them. It changes none of a GPU whose
// settings are not the defaults, because a claim or an administrator needs them.
func (e *checker) settings(ctx context.Context) {
	const timeSlice, mode = "nvidia-smi compute-policy --set-timeslice", "nvidia-smi -c"
	g, ok := e.unpartitionedGPU()
	var why string
	switch {
	case !e.allowChanges:
		why = "it changes settings: -allow-changes"
	case !ok || e.report.Driver.NvidiaSMI == "":
		why = "no GPU is whole, or there is no nvidia-smi"
	default:
		why = e.changed(ctx, g)
	}
	if why != "" {
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

// changed says which setting of the GPU is not the default, or cannot be read; empty: both are the defaults.
func (e *checker) changed(ctx context.Context, g check.GPU) string {
	uuid := fmt.Sprint(g.Attributes["uuid"])
	text, err := e.smi(ctx, "-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader")
	if err != nil {
		return err.Error()
	}
	if mode := strings.TrimSpace(text); !strings.EqualFold(mode, "Default") {
		return fmt.Sprintf("somebody uses %s: its compute mode is %s", g.Name, mode)
	}
	text, err = e.smi(ctx, "compute-policy", "-i", uuid, "--list")
	if err != nil {
		return err.Error()
	}
	switch slice := timeSliceOf(text, g.Index); {
	case slice == "":
		return fmt.Sprintf("nvidia-smi compute-policy --list does not have the time slice of %s", g.Name)
	case !strings.EqualFold(slice, "Default"):
		return fmt.Sprintf("somebody uses %s: its time slice is %s", g.Name, slice)
	}
	return ""
}

// timeSliceOf returns the time slice of a GPU in the table of nvidia-smi compute-policy --list; empty: it has none. A
// row is "|   0     Timeslice        Default    |".
func timeSliceOf(table string, index int) string {
	for line := range strings.Lines(table) {
		cells := strings.Fields(strings.Trim(strings.TrimSpace(line), "|"))
		if len(cells) == 3 && cells[0] == strconv.Itoa(index) && strings.EqualFold(cells[1], "Timeslice") {
			return cells[2]
		}
	}
	return ""
}
