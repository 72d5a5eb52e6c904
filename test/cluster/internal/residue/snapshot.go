// SPDX-License-Identifier: Apache-2.0

// Package residue detects what a cluster left behind on a machine: it lists, as lines of text, everything that a
// cluster can create, and compares two such lists. Another cluster that starts or ends between two snapshots also shows
// as a change.
package residue

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Snapshot is the state of a machine as sorted lines, each of which starts with its subject.
type Snapshot []string

// Take reads the state of this machine in the namespaces of this process. It needs root.
func Take() (Snapshot, error) {
	var all Snapshot
	for _, read := range []func() ([]string, error){
		sysctls, mounts, links, namespaces, controlGroups, firewall, processes, paths,
	} {
		lines, err := read()
		if err != nil {
			return nil, fmt.Errorf("take snapshot: %w", err)
		}
		all = append(all, lines...)
	}
	slices.Sort(all)
	return all, nil
}

// Diff returns the removed ("- …") and added ("+ …") lines, nil if there are none. It counts duplicate lines.
func Diff(before, after Snapshot) []string {
	count := map[string]int{}
	for _, line := range after {
		count[line]++
	}
	for _, line := range before {
		count[line]--
	}
	var changes []string
	for line, n := range count {
		for ; n < 0; n++ {
			changes = append(changes, "- "+line)
		}
		for ; n > 0; n-- {
			changes = append(changes, "+ "+line)
		}
	}
	// By subject, so that an old and a new value are adjacent.
	slices.SortFunc(changes, func(a, b string) int {
		if byLine := strings.Compare(a[2:], b[2:]); byLine != 0 {
			return byLine
		}
		return strings.Compare(a, b)
	})
	return changes
}

func mounts() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if line = parseMount(line); line != "" {
			lines = append(lines, "mount "+line)
		}
	}
	return lines, nil
}

// parseMount drops the numbers that the kernel assigns.
func parseMount(line string) string {
	before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
	fields := strings.Fields(before)
	if !ok || len(fields) < 6 {
		return ""
	}
	const root, point, options = 3, 4, 5
	return strings.Join([]string{fields[point], fields[root], fields[options], after}, " ")
}

func firewall() ([]string, error) {
	out, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("list firewall rules: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, "firewall "+strings.TrimRight(line, "\n"))
	}
	return lines, nil
}

// paths are the standard paths of which each node has its own: on the host, a cluster neither creates nor fills them.
func paths() ([]string, error) {
	patterns := []string{
		"/etc/cdi/*", "/etc/cni/*", "/etc/containerd/*", "/etc/kubernetes/*", "/opt/cni/*",
		"/run/cdi/*", "/run/containerd/*", "/run/netns/*", "/run/gpu-dra-cluster/*",
		"/var/lib/cni/*", "/var/lib/containerd/*", "/var/lib/kubelet/*", "/var/lib/gpu-dra-driver/*",
		"/var/lib/gpu-dra-cluster/*", "/var/log/pods/*", "/var/log/containers/*",
	}
	var lines []string
	for _, p := range patterns {
		for _, pattern := range []string{filepath.Dir(p), p} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			for _, f := range found {
				lines = append(lines, "path "+f)
			}
		}
	}
	return lines, nil
}

// printable joins a text into one line.
func printable(text string) string { return strings.Join(strings.Fields(text), " ") }
