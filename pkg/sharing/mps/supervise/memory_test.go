// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps/supervise"
)

// TestMemoryOfADaemon: a daemon that asks for it has file systems of its own, of limited size, which its process sees
// as /dev/shm, and which are gone with it.
func TestMemoryOfADaemon(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	w := newFixture(t)
	w.supervise(t)
	const size = 4 << 20
	d, other := w.daemon("g0"), w.daemon("g1")
	d.SharedMemory, other.SharedMemory = size, size
	must(t, w.dir.Request(d))
	must(t, w.dir.Request(other))
	s := w.await(t, d)
	w.await(t, other)
	shm := filepath.Join(string(w.dir), "g0", "shm")
	t.Cleanup(func() {
		for _, id := range []string{"g0", "g1"} { // what a failed test has left
			_ = unix.Unmount(w.dir.Pipe(id), unix.MNT_DETACH)
			_ = unix.Unmount(w.dir.SharedMemory(id), unix.MNT_DETACH)
		}
	})
	if s.SharedMemory != shm {
		t.Errorf("clients are told %q, want %q", s.SharedMemory, shm)
	}
	for dir, most := range map[string]int{shm: size, w.dir.Pipe("g0"): 1 << 20} {
		file := filepath.Join(dir, "full")
		if err := os.WriteFile(file, make([]byte, most+1<<20), 0o600); err == nil || !strings.Contains(err.Error(),
			"no space") {
			t.Errorf("%s takes more than %d bytes: %v", dir, most, err)
		}
		must(t, os.Remove(file))
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
			t.Errorf("%s: mode %v, error %v", dir, info.Mode(), err)
		}
	}

	must(t, os.WriteFile(filepath.Join(shm, "segment"), nil, 0o600))
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/shm/segment", s.PID)); err != nil {
		t.Errorf("the daemon does not share the memory of its clients: %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.dir.SharedMemory("g1"), "segment")); !os.IsNotExist(err) {
		t.Errorf("another daemon has it too: %v", err)
	}
	if _, err := os.Stat("/dev/shm/segment"); !os.IsNotExist(err) {
		t.Errorf("the supervisor has it too: %v", err)
	}

	// Containers have these file systems mounted: a daemon that is started again has the same ones.
	before := device(t, shm)
	must(t, syscall.Kill(s.PID, syscall.SIGKILL))
	eventually(t, "it is another one", func() bool {
		now, err := w.dir.State("g0")
		must(t, err)
		return now.Ready && now.PID != s.PID
	})
	if device(t, shm) != before {
		t.Error("a daemon that was started again has another /dev/shm")
	}

	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
	must(t, w.dir.Request(d))
	w.await(t, d)
	if left, err := os.ReadDir(shm); err != nil || len(left) > 0 {
		t.Errorf("the next daemon finds %v, error %v", left, err)
	}
	must(t, w.dir.Release("g0"))
	must(t, w.dir.Release("g1"))
	eventually(t, "both are gone", func() bool { return w.gone("g0") && w.gone("g1") })
}

// TestLinkInPlaceOfSharedMemory: a link that a user of the host has put there opens no other directory to all users.
func TestLinkInPlaceOfSharedMemory(t *testing.T) {
	other, link := t.TempDir(), filepath.Join(t.TempDir(), "gpu.nvidia.com")
	must(t, os.Symlink(other, link))
	before, err := os.Stat(other)
	must(t, err)
	err = supervise.Run(t.Context(), supervise.SupervisorConfig{Dir: mps.Dir(t.TempDir()), SharedMemory: link,
		Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), link) {
		t.Errorf("got error %v, want one about %s", err, link)
	}
	if after, err := os.Stat(other); err != nil || after.Mode() != before.Mode() {
		t.Errorf("the directory behind the link has mode %v, error %v, want %v", after.Mode(), err, before.Mode())
	}
}

// TestLinksOfClients: a link that a client makes leads the daemon, which is root, to no file of the host.
func TestLinksOfClients(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, tt := range []struct {
		name  string
		older bool // an older supervisor has mounted the directories
	}{
		{"new mount", false},
		{"old mount", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t)
			host := filepath.Join(t.TempDir(), "file")
			must(t, os.WriteFile(host, nil, 0o666))
			dirs := []string{w.dir.Pipe("g0"), w.dir.SharedMemory("g0")}
			for _, dir := range dirs {
				t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
				if tt.older {
					must(t, os.MkdirAll(dir, 0o755))
					must(t, unix.Mount("mps", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"))
				}
			}
			w.supervise(t)
			d := w.daemon("g0")
			d.SharedMemory = 4 << 20
			must(t, w.dir.Request(d))
			root := fmt.Sprintf("/proc/%d/root", w.await(t, d).PID)
			for _, dir := range dirs {
				must(t, os.Symlink(host, filepath.Join(dir, "link")))
			}
			for _, link := range []string{
				filepath.Join(dirs[0], "link"), filepath.Join(dirs[1], "link"),
				filepath.Join(root, dirs[0], "link"), filepath.Join(root, "dev/shm/link"),
			} {
				file, err := os.OpenFile(link, os.O_WRONLY|os.O_CREATE, 0o600)
				if !errors.Is(err, unix.ELOOP) {
					t.Errorf("open %s: got error %v, want %v", link, err, unix.ELOOP)
					_ = file.Close()
				}
			}
			var st unix.Statfs_t
			must(t, unix.Statfs(dirs[0], &st))
			if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); st.Flags&want != want {
				t.Errorf("mount flags %#x, want %#x among them", st.Flags, want)
			}
		})
	}
}

// TestMemoryOfAnOlderDaemon: a daemon that was started without memory of its own goes on so, because its clients have
// that of all daemons mounted.
func TestMemoryOfAnOlderDaemon(t *testing.T) {
	w := newFixture(t)
	w.supervise(t)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	d.SharedMemory, d.ThreadPercentage = 4<<20, 50
	must(t, w.dir.Request(d))
	if s := w.await(t, d); s.PID != pid || s.SharedMemory != "" {
		t.Errorf("got %+v, want process %d without memory of its own", s, pid)
	}
}

// device identifies the file system of a directory.
func device(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(dir, &st))
	return st.Dev
}
