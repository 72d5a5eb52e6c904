// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"fmt"
	"slices"
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
		if last, was := before.Memory[id]; last == bytes && was == limited {
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

// listServers is the command that lists the PIDs of the daemon's servers.
const listServers = "get_server_list"

// setLimits changes the limits of the daemon from before, for new and running servers. Connected clients keep theirs.
// One start of the control program sets those of new servers, reads them back and lists the servers. Error:
// errNoAnswer.
func (r *process) setLimits(ctx context.Context, limits, before mps.Daemon) error {
	commands := commandsFor(limits, before, "default_", "")
	if len(commands) == 0 {
		return nil
	}
	// A server that starts meanwhile is listed, or has the new limits.
	text, err := r.send(ctx, slices.Concat(commands, questionsFor(limits), []string{listServers})...)
	if err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	answers := strings.Fields(text)
	if limits.ThreadPercentage != before.ThreadPercentage && len(answers) > 0 {
		answers = answers[1:] // to the command that sets it, and no proof: see checkLimits
	}
	servers, err := checkLimits(limits, answers)
	if err != nil {
		return err
	}
	for _, pid := range servers {
		if _, err := r.send(ctx, commandsFor(limits, before, "", pid+" ")...); err != nil {
			return fmt.Errorf("set limits of server %s: %w", pid, err)
		}
	}
	return nil
}

// questionsFor returns the commands that read back the limits for new servers.
func questionsFor(limits mps.Daemon) []string {
	out := []string{"get_default_active_thread_percentage"}
	for i, id := range limits.GPUs {
		if _, limited := limits.Memory[id]; limited {
			out = append(out, fmt.Sprintf("get_default_device_pinned_mem_limit %d", i))
		}
	}
	return out
}

// checkLimits compares the limits with the answers to questionsFor. It returns the PIDs of servers among the words that
// follow. The daemon's exit code and its answer to a command do not tell whether it has set them: a percentage out of
// range is answered by the one before, and a memory limit by nothing.
func checkLimits(limits mps.Daemon, answers []string) (servers []string, err error) {
	next := func() (answer string) {
		if len(answers) > 0 {
			answer, answers = answers[0], answers[1:]
		}
		return answer
	}
	want := float64(limits.ThreadPercentage)
	if want == 0 {
		want = 100
	}
	text := next()
	if got, err := strconv.ParseFloat(text, 64); err != nil || got != want {
		return nil, fmt.Errorf("active thread percentage is %q after it was set to %g", text, want)
	}
	for _, id := range limits.GPUs {
		bytes, limited := limits.Memory[id]
		if !limited {
			continue
		}
		if text, want := next(), max(bytes>>20, 1); !printsLimit(text, want) {
			return nil, fmt.Errorf("memory limit of GPU %s is %q after it was set to %dM", id, text, want)
		}
	}
	return slices.DeleteFunc(answers, func(word string) bool {
		pid, err := strconv.ParseUint(word, 10, 31)
		return err != nil || pid == 0
	}), nil
}

// printsLimit reports whether the daemon prints so many MiB like this: in the largest unit of which it has one, and
// without what is left over, such as 2G for 3000 MiB.
func printsLimit(text string, mebibytes uint64) bool {
	number, err := strconv.ParseUint(strings.TrimRight(text, "MG"), 10, 64)
	return err == nil && (text == fmt.Sprintf("%dM", number) && number == mebibytes ||
		text == fmt.Sprintf("%dG", number) && number == mebibytes>>10)
}
