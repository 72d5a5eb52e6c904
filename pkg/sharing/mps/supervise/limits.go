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

// noMemoryLimit is a limit that no GPU reaches: there is no documented way to take one away again.
const noMemoryLimit = 1 << 20 // MiB

// commandsFor set the limits of a daemon that has had those before; verb and to say whose: that of the servers to come, or of one.
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

// unknownLimits is the daemon with limits that differ from all that can be wanted.
func unknownLimits(d mps.Daemon) mps.Daemon {
	d.ThreadPercentage, d.Memory = -1, map[gpu.UUID]uint64{}
	for _, id := range d.GPUs {
		d.Memory[id] = 0
	}
	return d
}

// setLimits gives the daemon, which has those before, its limits: for servers to come and for those that run. Clients that are
// connected keep theirs.
func (r *running) setLimits(ctx context.Context, limits, before mps.Daemon) error {
	commands := commandsFor(limits, before, "default_", "")
	if len(commands) == 0 {
		return nil
	}
	if _, err := say(ctx, r.program, r.env, commands...); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	servers, err := r.servers(ctx)
	if err != nil {
		return err
	}
	for _, pid := range servers {
		if _, err := say(ctx, r.program, r.env, commandsFor(limits, before, "", pid+" ")...); err != nil {
			return fmt.Errorf("set limits of server %s: %w", pid, err)
		}
	}
	return r.checkLimits(ctx, limits)
}

// checkLimits asks for the limit that is answered as a number.
func (r *running) checkLimits(ctx context.Context, limits mps.Daemon) error {
	text, err := say(ctx, r.program, r.env, "get_default_active_thread_percentage")
	if err != nil {
		return fmt.Errorf("ask for limits: %w", err)
	}
	want := float64(limits.ThreadPercentage)
	if want == 0 {
		want = 100
	}
	if got, err := strconv.ParseFloat(text, 64); err == nil && got != want {
		return fmt.Errorf("active thread percentage is %g after it was set to %g", got, want)
	}
	return nil
}

// servers are the numbers of the daemon's servers.
func (r *running) servers(ctx context.Context) ([]string, error) {
	text, err := say(ctx, r.program, r.env, "get_server_list")
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
