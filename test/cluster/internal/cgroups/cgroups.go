// SPDX-License-Identifier: Apache-2.0

// Package cgroups creates and removes the control groups of pods. On a cgroup v1 host there is one hierarchy per
// controller, and a new cpuset group needs CPUs and memory nodes before use. On a cgroup v2 host there is a single
// hierarchy, in which each group must delegate its controllers. The tests of clusters have run on version 1 and
// on the hybrid layout. On version 2, clusters of one node have run in an emulated machine (hack/guest.sh).
package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is a mounted hierarchy of control groups.
type Hierarchy struct {
	Root        string
	Controllers []string // v1 only
	Unified     bool     // cgroup v2
}

// Layout is the list of this machine's hierarchies.
type Layout []Hierarchy

// Detect returns the layout of this machine.
func Detect() (Layout, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	layout := parse(string(data))
	if len(layout) == 0 {
		return nil, errors.New("find control groups: no cgroup file system is mounted")
	}
	return layout, nil
}

func parse(mountinfo string) Layout {
	var layout Layout
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch tail[0] {
		case "cgroup":
			layout = append(layout, Hierarchy{Root: fields[4], Controllers: strings.Split(tail[2], ",")})
		case "cgroup2":
			layout = append(layout, Hierarchy{Root: fields[4], Unified: true})
		}
	}
	return layout
}

// V1 reports whether controllers are on cgroup v1 hierarchies.
func (l Layout) V1() bool {
	return slices.ContainsFunc(l, func(h Hierarchy) bool { return !h.Unified })
}

// Make creates the group in every hierarchy that the kubelet uses. It is idempotent.
func (l Layout) Make(group string) error {
	for _, h := range l {
		if h.Unified && l.V1() {
			continue // hybrid: the unified tree has no controllers
		}
		if err := h.make(group); err != nil {
			return fmt.Errorf("make control group %s: %w", group, err)
		}
	}
	return nil
}

func (h Hierarchy) make(group string) error {
	dir := h.Root
	for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		parent := dir
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.Unified {
			if err := delegate(parent); err != nil {
				return err
			}
		}
		if !slices.Contains(h.Controllers, "cpuset") {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate enables the controllers that the kubelet needs for the children of dir (cgroup v2). An init system does so
// at the root, too. It is not undone, because others may depend on it by then.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	passed, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, name := range []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(have)), name) || slices.Contains(strings.Fields(string(passed)),
			name) {
			continue
		}
		if err := os.WriteFile(file, []byte("+"+name), 0o644); err != nil {
			return fmt.Errorf("pass on controller %s: %w", name, err)
		}
	}
	return nil
}

// Remove removes the group and its children in every hierarchy. It is idempotent. No process may be in the group.
func (l Layout) Remove(group string) error {
	var failed []error
	for _, h := range l {
		if err := removeTree(filepath.Join(h.Root, group)); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func removeTree(root string) error {
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs) // children before parents
	for _, dir := range dirs {
		if err := removeGroup(dir); err != nil {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
	return nil
}

// busyTimeout is for groups that somebody else uses.
const busyTimeout = time.Minute

// removeGroup retries: a group stays busy until the kernel has cleaned up after its last process.
func removeGroup(dir string) error {
	deadline := time.Now().Add(busyTimeout)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
