// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

func TestStatePersists(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	must(t, n.SetComputeMode("gpu-3b-00-0", hwprofile.ComputeModeExclusiveProcess))
	must(t, n.SetMemoryUsed("1", 1<<30))
	must(t, n.Fail("gpu-af-00-0", "GetName", "ERROR_UNKNOWN"))
	want := `t4-x2 driver=580.95.05
gpu-3b-00-0 Tesla T4 memory=15360MiB numa=0 root=pci0000:3a mode=Exclusive_Process
gpu-af-00-0 Tesla T4 memory=15360MiB numa=1 root=pci0000:ae mode=Default used=1024MiB
gpu-af-00-0 fails GetName ERROR_UNKNOWN
`
	again := open(t, dir, profile(t, "t4-x2"))
	if got := again.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	attached, err := node.Attach(dir)
	must(t, err)
	must(t, attached.Heal("gpu-af-00-0"))
	must(t, attached.Heal("gpu-af-00-0"))
	if got := n.String(); strings.Contains(got, "fails") {
		t.Errorf("healed, got:\n%s", got)
	}
	if got, want := uuids(t, again), uuids(t, n); got != want {
		t.Errorf("UUIDs %s, want %s", got, want)
	}
}

func TestOpenWithOtherProfile(t *testing.T) {
	upgraded, err := hwprofile.ParseProfile([]byte(strings.ReplaceAll(profile(t, "t4-x2").YAML(), "580.95.05",
		"590.10.01")))
	must(t, err)
	for _, tt := range []struct {
		name string
		to   hwprofile.Profile
		want string // first line of the text
	}{
		{"with the same driver", profile(t, "l40s-x4"), "l40s-x4 driver=580.95.05"},
		{"with another driver", upgraded, "t4-x2 driver=590.10.01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			old := open(t, dir, profile(t, "t4-x2"))
			must(t, old.SetMajor(125))
			must(t, old.Fail("0", node.AllCalls, "ERROR_GPU_IS_LOST"))
			before := uuids(t, old)
			open(t, dir, tt.to)
			first, _, _ := strings.Cut(old.String(), "\n") // the one opened before sees it, too
			if first != tt.want || strings.Contains(old.String(), "fails") {
				t.Errorf("got:\n%s\nwant %s without faults", old, tt.want)
			}
			if uuids(t, old) == before {
				t.Error("the new machine has the old UUIDs")
			}
			v, err := old.View()
			must(t, err)
			if v.Major != 125 {
				t.Errorf("major %d, want 125", v.Major)
			}
		})
	}
}

func TestOpenWithEquivalentProfile(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	before := uuids(t, n)
	same, err := hwprofile.ParseProfile([]byte("# a comment\n" + profile(t, "t4-x2").YAML()))
	must(t, err)
	open(t, dir, same)
	if got := uuids(t, n); got != before {
		t.Errorf("UUIDs %s, want %s", got, before)
	}
}

func TestUUIDsAreUniqueAcrossNodes(t *testing.T) {
	seen := map[string]bool{}
	for range 4 {
		for _, id := range strings.Fields(uuids(t, open(t, tmpfs.Dir(t), profile(t, "dgx-h100")))) {
			if seen[id] {
				t.Errorf("%s twice", id)
			}
			seen[id] = true
		}
	}
	if len(seen) != 32 {
		t.Errorf("%d UUIDs, want 32", len(seen))
	}
}

func TestInvalidChanges(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	before := n.String()
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"an unknown GPU", n.Heal("gpu-00-00-0"),
			`no GPU "gpu-00-00-0"; this node has gpu-3b-00-0, gpu-af-00-0 (an index from 0 to 1 or a UUID will also do)`},
		{"an unknown call", n.Fail("0", "GetNmae", "ERROR_UNKNOWN"), `NVML has no device call "GetNmae"`},
		{"an unknown error", n.Fail("0", "GetName", "UNKNOWN"),
			`error "UNKNOWN" is not one of ERROR_UNINITIALIZED, ERROR_INVALID_ARGUMENT`},
		{"a mode that does not exist", n.SetComputeMode("0", 1), "is not one of the compute modes DEFAULT, " +
			"EXCLUSIVE_PROCESS, PROHIBITED"},
		{"more memory than there is", n.SetMemoryUsed("0", 1<<40), "gpu-3b-00-0: 1099511627776 bytes used: at most " +
			"15639511040 of its memory are free for use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
				t.Errorf("error %v, want %s", tt.err, tt.want)
			}
		})
	}
	if got := n.String(); got != before {
		t.Errorf("got:\n%s\nwant:\n%s", got, before)
	}
}

func TestWithoutANode(t *testing.T) {
	dir := tmpfs.Dir(t)
	if _, err := node.Attach(dir); !errors.Is(err, node.ErrNoNode) {
		t.Errorf("attach: error %v, want ErrNoNode", err)
	}
	if _, err := node.Attach(filepath.Join(dir, "missing")); !errors.Is(err, node.ErrNoNode) {
		t.Errorf("attach: error %v, want ErrNoNode", err)
	}
	n := open(t, dir, profile(t, "t4-x2"))
	must(t, os.RemoveAll(dir))
	if _, err := n.View(); !errors.Is(err, node.ErrNoNode) {
		t.Errorf("view: error %v, want ErrNoNode", err)
	}
	if err := n.Heal("0"); !errors.Is(err, node.ErrNoNode) {
		t.Errorf("heal: error %v, want ErrNoNode", err)
	}
	must(t, os.Mkdir(dir, 0o700)) // as while the directory is removed, and a call goes on
	if err := n.Heal("0"); !errors.Is(err, node.ErrNoNode) {
		t.Errorf("heal in an empty directory: error %v, want ErrNoNode", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a change left %v in an empty directory, %v", left, err)
	}
	fresh := open(t, dir, profile(t, "t4-x2"))
	if got, want := uuids(t, n), uuids(t, fresh); got != want {
		t.Errorf("the node that was opened before has %s, want those of the new one, %s", got, want)
	}
}

func TestAttachLibraryIsReadOnly(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	library, err := node.AttachLibrary(node.LibraryPath(dir, "580.95.05"))
	must(t, err)
	must(t, n.SetMemoryUsed("0", 1<<20))
	if got, want := library.String(), n.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if err := library.Heal("0"); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Errorf("heal: error %v, want one that says it can only be read", err)
	}
}

// The layout of the state file, see store.go.
const (
	firstSlot = 4096
	slotSize  = 512 << 10
)

func TestCorruptStateFiles(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(b []byte) []byte
		want  string // the memory used after it, or part of the error
	}{
		{"untouched", func(b []byte) []byte { return b }, "used=3MiB"},
		{"the newest slot torn in its content", func(b []byte) []byte { return spoil(b, newest(b)+100) }, "used=2MiB"},
		{"the newest slot torn in its head", func(b []byte) []byte { return spoil(b, newest(b)+13) }, "used=2MiB"},
		{"the newest slot cut off", func(b []byte) []byte { return zero(b, newest(b)+200) }, "used=2MiB"},
		{"the older slot torn", func(b []byte) []byte { return spoil(b, oldest(b)+100) }, "used=3MiB"},
		{"the text at the start overwritten", func(b []byte) []byte { return spoil(b, 3) }, "used=3MiB"},
		{"both slots torn", func(b []byte) []byte { return spoil(spoil(b, newest(b)+100), oldest(b)+100) },
			"no whole state in the file: "},
		{"truncated", func(b []byte) []byte { return b[:1000] }, "libnvidia-ml.so.580.95.05 (1000 bytes, 1052672 " +
			"expected)"},
		{"empty", func([]byte) []byte { return nil }, "remove the file and restart the plugin of this node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			p := profile(t, "t4-x2")
			n := open(t, dir, p)
			for mib := range 4 {
				must(t, n.SetMemoryUsed("0", uint64(mib)<<20))
			}
			path := node.LibraryPath(dir, p.Driver())
			b, err := os.ReadFile(path)
			must(t, err)
			b = tt.spoil(b)
			must(t, os.WriteFile(path, b, 0o644))

			attached, err := node.Attach(dir)
			if !strings.HasPrefix(tt.want, "used=") {
				if !errors.Is(err, node.ErrCorrupt) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("attach: error %v, want ErrCorrupt with %q", err, tt.want)
				}
				if _, err := node.Open(dir, p); !errors.Is(err, node.ErrCorrupt) {
					t.Errorf("open: error %v, want ErrCorrupt", err)
				}
				if after, err := os.ReadFile(path); err != nil || string(after) != string(b) {
					t.Errorf("the file was touched (%v)", err)
				}
				return
			}
			must(t, err)
			if got := attached.String(); !strings.Contains(got, tt.want) {
				t.Errorf("got:\n%s\nwant %s", got, tt.want)
			}
			must(t, attached.SetMemoryUsed("0", 9<<20)) // and the file is whole again
			if got := open(t, dir, p).String(); !strings.Contains(got, "used=9MiB") {
				t.Errorf("got:\n%s\nwant used=9MiB", got)
			}
		})
	}
}

func TestUnknownFormat(t *testing.T) {
	dir := tmpfs.Dir(t)
	p := profile(t, "t4-x2")
	open(t, dir, p)
	path := node.LibraryPath(dir, p.Driver())
	must(t, os.Remove(path))
	must(t, node.CreateForTest(path, []byte(`{"Format":11}`)))
	for name, open := range map[string]func() (*node.Node, error){
		"attach": func() (*node.Node, error) { return node.Attach(dir) },
		"open":   func() (*node.Node, error) { return node.Open(dir, p) },
	} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(),
			"the state has format 11, this program knows 1 to 10") {
			t.Errorf("%s: error %v, want one that names both formats", name, err)
		}
	}
}

func sequence(b []byte, slot int) uint64 {
	return binary.LittleEndian.Uint64(b[firstSlot+slot*slotSize:])
}

func newest(b []byte) int {
	if sequence(b, 1) > sequence(b, 0) {
		return firstSlot + slotSize
	}
	return firstSlot
}

func oldest(b []byte) int { return 2*firstSlot + slotSize - newest(b) }

func spoil(b []byte, at int) []byte {
	b[at] ^= 0xff
	return b
}

func zero(b []byte, from int) []byte {
	clear(b[from:min(len(b), (from-firstSlot)/slotSize*slotSize+firstSlot+slotSize)])
	return b
}

func uuids(t *testing.T, n *node.Node) string {
	t.Helper()
	v, err := n.View()
	must(t, err)
	var out []string
	for _, c := range v.GPUs {
		out = append(out, c.UUID)
	}
	return strings.Join(out, " ")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}

// TestReplacedRoot: another driver root is mounted over the one before. A process that opens it again sees that driver,
// although the library of before is still there, elsewhere.
func TestReplacedRoot(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	root := node.DriverRoot(dir)
	must(t, os.CopyFS(dir+"/other", os.DirFS(root)))
	if got := version(t, n); got != "580.95.05" {
		t.Fatalf("got driver %s", got)
	}
	must(t, os.Rename(root, dir+"/before"))
	must(t, os.Rename(dir+"/other", root))
	other, err := node.Attach(dir)
	must(t, err)
	must(t, other.ReloadDriver("575.57.08", nil))
	n.Reopen()
	if got := version(t, n); got != "575.57.08" {
		t.Errorf("got driver %s, want that of the root which is there now", got)
	}
}

func version(t *testing.T, n *node.Node) string {
	t.Helper()
	v, err := n.View()
	must(t, err)
	return v.Profile.Driver()
}
