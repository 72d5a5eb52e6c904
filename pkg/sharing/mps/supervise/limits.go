// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// noMemoryLimit is a limit above the memory of any GPU, because there is no documented way to remove a limit.
const noMemoryLimit = 1 << 20 // MiB

// commandsFor returns the commands that change limits from before. verb and to select the defaults for new servers, or
// one server.
func commandsFor(limits, before mps.Daemon, verb string, to string) []string {
	var out []string
	if limits.ThreadPercentage != before.ThreadPercentage {
		percent := limits.ThreadPercentage
		if percent == 0 {
			percent = 100
		}
		out = append(out, fmt.Sprintf("set_%sactive_thread_percentage %s%d", verb, to, percent))
	}
	for i, id := range limits.GPUs {
		bytes, limited := limits.Memory[id]
		if is, was := before.Memory[id]; is == bytes && was == limited {
			continue
		}
		mebibytes := uint64(noMemoryLimit)
		if limited {
			mebibytes = max(bytes>>20, 1)
		}
		out = append(out, fmt.Sprintf("set_%sdevice_pinned_mem_limit %s%d %dM", verb, to, i, mebibytes))
	}
	return out
}

// unknownLimits returns the daemon with limits that differ from all that can be requested.
func unknownLimits(d mps.Daemon) mps.Daemon {
	d.ThreadPercentage, d.Memory = -1, map[gpu.UUID]uint64{}
	for _, id := range d.GPUs {
		d.Memory[id] = 0
	}
	return d
}

// setLimits changes the limits of the daemon from before, for new and running servers. Connected clients keep theirs.
func (r *process) setLimits(ctx context.Context, limits, before mps.Daemon) error {
	commands := commandsFor(limits, before, "default_", "")
	if len(commands) == 0 {
		return nil
	}
	if _, err := r.send(ctx, commands...); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	servers, err := r.servers(ctx)
	if err != nil {
		return err
	}
	for _, pid := range servers {
		if _, err := r.send(ctx, commandsFor(limits, before, "", pid+" ")...); err != nil {
			return fmt.Errorf("set limits of server %s: %w", pid, err)
		}
	}
	return r.checkLimits(ctx, limits)
}

// checkLimits reads the limits back. The daemon's exit code and its answer to a command do not tell whether it has set
// them: a percentage out of range is answered by the one before, and a memory limit by nothing.
func (r *process) checkLimits(ctx context.Context, limits mps.Daemon) error {
	text, err := r.send(ctx, "get_default_active_thread_percentage")
	if err != nil {
		return fmt.Errorf("ask for limits: %w", err)
	}
	want := float64(limits.ThreadPercentage)
	if want == 0 {
		want = 100
	}
	if got, err := strconv.ParseFloat(text, 64); err != nil || got != want {
		return fmt.Errorf("active thread percentage is %q after it was set to %g", text, want)
	}
	for i, id := range limits.GPUs {
		bytes, limited := limits.Memory[id]
		if !limited {
			continue
		}
		text, err := r.send(ctx, fmt.Sprintf("get_default_device_pinned_mem_limit %d", i))
		if err != nil {
			return fmt.Errorf("ask for the memory limit of GPU %s: %w", id, err)
		}
		if want := max(bytes>>20, 1); !printsLimit(text, want) {
			return fmt.Errorf("memory limit of GPU %s is %q after it was set to %dM", id, text, want)
		}
	}
	return nil
}

// printsLimit reports whether the daemon prints so many MiB like this: in the largest unit of which it has one, and
// without what is left over, such as 2G for 3000 MiB.
func printsLimit(text string, mebibytes uint64) bool {
	number, err := strconv.ParseUint(strings.TrimRight(text, "MG"), 10, 64)
	return err == nil && (text == fmt.Sprintf("%dM", number) && number == mebibytes ||
		text == fmt.Sprintf("%dG", number) && number == mebibytes>>10)
}

// servers returns the PIDs of the daemon's servers.
func (r *process) servers(ctx context.Context) ([]string, error) {
	text, err := r.send(ctx, "get_server_list")
	if err != nil {
		return nil, fmt.Errorf("list servers: %w", err)
	}
	var out []string
	for _, word := range strings.Fields(text) {
		if _, err := strconv.Atoi(word); err == nil {
			out = append(out, word)
		}
	}
	return out, nil
}
