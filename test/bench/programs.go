// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// programs notes when the programs that start a pod run on this machine, and when containerd reads its CDI directory.
// The kernel tells it: process events of the netlink connector, and fanotify. It needs root and the first PID
// namespace.
type programs struct {
	mu    sync.Mutex
	live  map[string]*ran // by PID, and for the hook that a program is at by PID and "hook"
	ended []ran
	err   error
}

// ran is one run of a program. Its times are of the kernel's monotonic clock.
type ran struct {
	name       string
	begin, end time.Duration
	args       []string // of the program
}

// Names of runs that are handled in a special way.
const (
	hookProgram = "– the hooks, in one program"
	cdiRead     = "containerd reads the CDI specs"
	runcCreate  = "runc create"
)

// monotonic returns the kernel's monotonic clock.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(now.Nano())
}

// watchPrograms watches until this program ends.
func watchPrograms() (*programs, error) {
	events, failed := make(chan netlink.ProcEvent, 1<<12), make(chan error, 1)
	if err := netlink.ProcEventMonitor(events, nil, failed); err != nil {
		return nil, fmt.Errorf("watch programs: %w", err)
	}
	p := &programs{live: map[string]*ran{}}
	go func() {
		for e := range events {
			p.note(e)
		}
		p.fail(fmt.Errorf("watch programs: %w", <-failed))
	}()
	containerd, err := theOnly("containerd")
	if err != nil {
		return nil, err
	}
	return p, p.watchCDI(containerd)
}

// theOnly returns the PID of the only process of a program.
func theOnly(program string) (int, error) {
	var found []int
	for _, pid := range pids() {
		if executable(pid) == program {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("there are %d processes of %s on this machine, want 1: stop what else uses it, such as "+
			"another cluster", len(found), program)
	}
	return found[0], nil
}

func (p *programs) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// note notes an event.
func (p *programs) note(e netlink.ProcEvent) {
	pid, at := e.Msg.Tgid(), time.Duration(e.Timestamp)
	process := fmt.Sprint(pid)
	hook := process + " hook"
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m := e.Msg.(type) {
	case *netlink.ExecProcEvent:
		args := arguments(pid) // at once, before it ends
		p.begin(process, nameOf(args), at)
		if started := p.live[process]; started != nil {
			started.args = args
		}
	case *netlink.CommProcEvent: // so cdi-hooks tells which hook it is at
		if of := p.live[process]; of != nil && of.name == hookProgram {
			p.begin(hook, "– – "+of.hook(string(bytes.TrimRight(m.Comm[:], "\x00"))), at)
		}
	case *netlink.ExitProcEvent:
		if m.ProcessPid == pid { // not only one of its threads
			p.begin(hook, "", at)
			p.begin(process, "", at)
		}
	}
}

// begin ends what ran under the key, and begins a run unless the name is empty. The caller holds the lock.
func (p *programs) begin(key, name string, at time.Duration) {
	if r := p.live[key]; r != nil {
		r.end = at
		p.ended = append(p.ended, *r)
		delete(p.live, key)
	}
	if name != "" {
		p.live[key] = &ran{name: name, begin: at}
	}
}

// arguments returns the command line of a process; empty if it has ended.
func arguments(pid uint32) []string {
	text, _ := os.ReadFile(proc(int(pid), "cmdline"))
	return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
}

// hook returns the whole name of a hook, of which the kernel has 15 bytes.
func (r *ran) hook(comm string) string {
	for _, arg := range r.args {
		if strings.HasPrefix(arg, comm) {
			return arg
		}
	}
	return comm
}

// nameOf returns what a program with these arguments does for the start of a pod; empty if it does nothing for it.
func nameOf(args []string) string {
	has := func(word string) bool { return slices.Contains(args, word) }
	switch name := filepath.Base(args[0]); {
	case name == "ptp":
		return "network: ptp, with what it starts"
	case name == "containerd-shim-runc-v2" && has("start"):
		return "containerd-shim start"
	case name == "runc" && has("create"):
		return runcCreate
	case name == "runc" && has("start"):
		return "runc start"
	case name == "cdi-hooks":
		return hookProgram
	case name == "nvidia-cdi-hook" && len(args) > 1:
		return "– " + args[1]
	case name == "reexec-update-ldcache":
		return "– – – its isolated child, before ldconfig"
	case name == "ldconfig":
		return "– – – ldconfig"
	}
	return ""
}

// between returns the runs that began between two times, oldest first, and forgets all. It is an error if they are not
// those of one pod.
func (p *programs) between(begin, end time.Duration) ([]ran, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []ran
	for _, r := range p.ended {
		if begin <= r.begin && r.begin < end {
			out = append(out, r)
		}
	}
	p.ended = nil
	slices.SortFunc(out, func(a, b ran) int { return cmp.Compare(a.begin, b.begin) })
	creates := 0
	for _, r := range out {
		if r.name == runcCreate {
			creates++
		}
	}
	if creates != 2 {
		return out, errors.Join(p.err, fmt.Errorf("the kernel tells of %d runs of %q for one pod, want 2: of the "+
			"sandbox and of the container", creates, runcCreate))
	}
	return out, p.err
}

// watchCDI notes each time that containerd reads its CDI directory: from when it opens the directory until it closes
// the last file. The times are those at which this program hears of it.
func (p *programs) watchCDI(containerd int) error {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("watch the CDI directory: %w", err)
	}
	const mask = unix.FAN_OPEN | unix.FAN_CLOSE_NOWRITE | unix.FAN_EVENT_ON_CHILD | unix.FAN_ONDIR
	err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, mask, -1, proc(containerd, "root/run/cdi"))
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("watch the CDI directory: %w", err)
	}
	go func() {
		file := os.NewFile(uintptr(fd), "fanotify")
		defer file.Close()
		for buffer := make([]byte, 1<<14); ; {
			n, err := file.Read(buffer)
			if err != nil {
				p.fail(fmt.Errorf("watch the CDI directory: %w", err))
				return
			}
			p.noteOpens(buffer[:n], containerd)
		}
	}()
	return nil
}

// noteOpens notes what containerd does in events of fanotify.
func (p *programs) noteOpens(events []byte, containerd int) {
	now := monotonic()
	for len(events) >= int(unsafe.Sizeof(unix.FanotifyEventMetadata{})) {
		event := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&events[0]))
		events = events[event.Event_len:]
		if event.Mask&unix.FAN_Q_OVERFLOW != 0 {
			p.fail(errors.New("watch the CDI directory: events were lost"))
			continue
		}
		if int(event.Pid) == containerd {
			p.noteCDI(event, now)
		}
		_ = unix.Close(int(event.Fd))
	}
}

// noteCDI notes that containerd opens or closes the directory or a file in it.
func (p *programs) noteCDI(event *unix.FanotifyEventMetadata, now time.Duration) {
	var is unix.Stat_t
	if err := unix.Fstat(int(event.Fd), &is); err != nil {
		p.fail(err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if event.Mask&unix.FAN_OPEN != 0 && is.Mode&unix.S_IFMT == unix.S_IFDIR {
		p.ended = append(p.ended, ran{name: cdiRead, begin: now, end: now})
		return
	}
	for i := len(p.ended) - 1; i >= 0; i-- { // the read that goes on
		if p.ended[i].name == cdiRead {
			p.ended[i].end = now
			return
		}
	}
}
