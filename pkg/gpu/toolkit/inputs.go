// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"maps"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// inputs are the files and directories that an answer depends on, as they were before they were read.
type inputs map[string]state

// state changes when a file is replaced, when an entry of a directory is added, removed or replaced, and when another
// file system is mounted. It is zero for what does not exist. Answers have paths, and the numbers and groups of device
// nodes, so the content of a file does not matter.
type state struct {
	dev, inode, number uint64
	mode, group        uint32
	modified           unix.Timespec // of directories only
}

func stateOf(path string) state {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return state{}
	}
	now := state{dev: st.Dev, inode: st.Ino, number: st.Rdev, mode: st.Mode, group: st.Gid}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		now.modified = st.Mtim
	}
	return now
}

// add records the state of the path, or of the first directory above it that does not exist. The first state counts,
// because find may have read what was there then.
func (in inputs) add(path string) {
	for p := path; p != filepath.Dir(p); p = filepath.Dir(p) {
		if then, known := in[p]; known && (p == path || then == (state{})) {
			return
		}
	}
	now := stateOf(path)
	for parent := filepath.Dir(path); now == (state{}) && parent != path && stateOf(parent) == now; {
		path, parent = parent, filepath.Dir(parent)
	}
	if _, known := in[path]; !known {
		in[path] = now
	}
}

// compact removes what recorded directories tell anyway.
func (in inputs) compact() {
	maps.DeleteFunc(in, func(path string, s state) bool { return s == (state{}) && in.tells(path) })
}

// tells reports whether the recorded directory of the file changes when the file is added, removed or replaced.
func (in inputs) tells(file string) bool {
	dir := in[filepath.Dir(file)]
	return dir.mode&unix.S_IFMT == unix.S_IFDIR
}

func (in inputs) unchanged() bool {
	for path, then := range in {
		if stateOf(path) != then {
			return false
		}
	}
	return true
}

// tick is more than the resolution of the times of file systems. A directory can change twice in it and look the same.
const tick = 2 * time.Second

// settled reports whether every change after the inputs were recorded, which was from start to end, will show. Times in
// the future come from a wrong clock and not from a change.
func (in inputs) settled(start, end time.Time) bool {
	for _, s := range in {
		modified := time.Unix(s.modified.Unix())
		if modified.After(start.Add(-tick)) && modified.Before(end.Add(tick)) {
			return false
		}
	}
	return true
}

// devices records what Root.Dev and NVIDIA's toolkit look at for device nodes, besides the nodes that it finds.
func (in inputs) devices(driver driverroot.Root) {
	for _, root := range []string{driver.Here, driver.HostDev} {
		if root != "" {
			in.add(filepath.Join(root, "dev/nvidiactl"))
			in.add(filepath.Join(root, "dev/dri")) // the kernel makes nodes there when it shows them in /sys
		}
	}
}

// libraries records where Root looks for libraries and programs, and the directory of ldconfig's cache, which NVIDIA's
// toolkit reads.
func (in inputs) libraries(driver driverroot.Root) {
	for _, path := range append(driverroot.Watched(), "etc") {
		in.add(filepath.Join(driver.Here, path))
	}
}

// locating is the message of NVIDIA's toolkit before it searches directories for a pattern. Another message in another
// version of the toolkit fails TestAnswersFollowTheDriver.
const locating = "Locating %q in %v"

const wildcards = `*?[`

// searchLog logs messages of NVIDIA's toolkit, and records the directories that it searches.
type searchLog struct {
	toolkitLog
	inputs
	searched map[string]bool
}

func (l searchLog) Debugf(format string, args ...any) {
	if format == locating {
		for _, dir := range args[1].([]string) {
			l.search(dir, args[0].(string))
		}
	}
	l.toolkitLog.Debugf(format, args...)
}

func (l searchLog) search(dir, pattern string) {
	path := filepath.Join(dir, pattern)
	isFile := strings.HasPrefix(pattern, "/") && !strings.ContainsAny(pattern, wildcards)
	if !isFile { // a name: one directory is less to check than all names in it
		path = filepath.Dir(path)
	}
	for strings.ContainsAny(path, wildcards) {
		path = filepath.Dir(path)
	}
	isDevice := stateOf(path).number != 0 // whose mode and group may change
	if l.searched[path] || isFile && !isDevice && l.tells(path) {
		return
	}
	l.searched[path] = true
	l.add(path)
}
