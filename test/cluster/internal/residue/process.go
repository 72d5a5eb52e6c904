// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

// entry is a running process. Zombies are ignored, because their parents decide how long they exist.
type entry struct {
	pid, parent int
	command     string
	space       string // its PID namespace
	cluster     string // whose machine it runs in, if any
}

// tag is the cluster in a line of a snapshot.
func (e entry) tag() string {
	if e.cluster == "" {
		return ""
	}
	return "[" + e.cluster + "] "
}

// processTable returns the running processes ordered by PID.
func processTable() ([]entry, error) {
	records, err := process.Find(func([]string) bool { return true })
	if err != nil {
		return nil, err
	}
	byPID := map[int]entry{}
	for _, r := range records {
		stat, err := process.ReadStat(r.PID)
		if err != nil {
			continue // it ended while we looked
		}
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", r.PID))
		if err != nil {
			continue
		}
		byPID[r.PID] = entry{
			pid: r.PID, parent: stat.Parent, space: space, command: printable(strings.Join(r.Command, " ")),
		}
	}
	machines := map[string]string{}
	for _, e := range byPID {
		if name := machineOf(e); name != "" {
			machines[e.space] = name
		}
	}
	var table []entry
	for _, e := range byPID {
		e.cluster = clusterOf(e, byPID, machines)
		table = append(table, e)
	}
	slices.SortFunc(table, func(a, b entry) int { return a.pid - b.pid })
	return table, nil
}

// machineForm matches the command line of a machine's PID 1.
var machineForm = regexp.MustCompile(`^gpu-dra-cluster machine (.+)/[^/]+$`)

// machineOf returns the cluster if the process is PID 1 of one of its machines.
func machineOf(e entry) string {
	if m := machineForm.FindStringSubmatch(e.command); m != nil {
		return filepath.Base(m[1])
	}
	return ""
}

// clusterOf returns the cluster of a process: one of its ancestors is PID 1 of a machine, or it is in the PID namespace
// of a machine, because the parent of a process of `exec` is outside. machines maps those namespaces to clusters.
func clusterOf(e entry, all map[int]entry, machines map[string]string) string {
	for {
		if name, ok := machines[e.space]; ok {
			return name
		}
		parent, ok := all[e.parent]
		if !ok {
			return ""
		}
		e = parent
	}
}

var clusterForms = []*regexp.Regexp{
	regexp.MustCompile(`^(?:process|namespace) \[([a-z0-9-]+)\] `),
	regexp.MustCompile(`^cgroup .*/gpu-dra-cluster\.([a-z0-9-]+)(?:/|$)`),
	regexp.MustCompile(`^path /var/lib/gpu-dra-cluster/([a-z0-9-]+)$`),
}

// ClusterOf returns the cluster of a line or a change; empty if it concerns none.
func ClusterOf(line string) string {
	line = strings.TrimPrefix(strings.TrimPrefix(line, "+ "), "- ")
	for _, form := range clusterForms {
		if m := form.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return ""
}
