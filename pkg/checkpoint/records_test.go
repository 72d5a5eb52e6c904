// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

func open(t *testing.T, dir string) *Records {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func record(uid types.UID, phase Phase, devices ...string) PreparedClaim {
	rec := PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "name-" + string(uid), UID: uid}, Phase: phase,
		BootID: "boot"}
	for _, d := range devices {
		rec.Plan.Assignments = append(rec.Plan.Assignments, sharing.Assignment{Request: "r", Pool: "n", Device: d,
			GPU: "GPU-x"})
	}
	return rec
}

func put(t *testing.T, r *Records, records ...PreparedClaim) {
	t.Helper()
	for _, rec := range records {
		if err := r.Put(rec); err != nil {
			t.Fatal(err)
		}
	}
}

// holders are the claims on the devices as text.
func holders(r *Records, except types.UID, devices ...string) string {
	found, err := r.Holders(devices, except)
	if err != nil {
		return "error: " + err.Error()
	}
	var uids []string
	for _, h := range found {
		uids = append(uids, string(h.Claim.UID))
	}
	slices.Sort(uids)
	return strings.Join(uids, " ")
}

func TestPutAndGet(t *testing.T) {
	dir := t.TempDir()
	want := record("u1", Prepared, "gpu-1", "gpu-2")
	put(t, open(t, dir), want)
	got, err := open(t, dir).Get("u1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "tmp")); len(left) > 0 {
		t.Errorf("%d temporary files left", len(left))
	}
}

// A record is decoded once, until its file changes, also by another instance. What Put has written is not decoded.
func TestGetAgain(t *testing.T) {
	dir := t.TempDir()
	r, other := open(t, dir), open(t, dir)
	rec := record("u1", Prepared, "gpu-1", "gpu-2", "gpu-3", "gpu-4")
	put(t, r, rec)
	if got, err := r.Get("u1"); err != nil || &got.Plan.Assignments[0] != &rec.Plan.Assignments[0] {
		t.Errorf("what this process has written is decoded: got %v, %v", got, err)
	}
	file := filepath.Join(dir, "claims", "u1.json")
	r.decoded.Clear()
	get := func() {
		if _, err := r.Get("u1"); err != nil {
			t.Fatal(err)
		}
	}
	get()
	again := testing.AllocsPerRun(10, get)
	read := testing.AllocsPerRun(10, func() { _, _ = os.ReadFile(file) })
	if again > read+10 { // decoding takes more for each of the assignments
		t.Errorf("another Get allocates %v objects, and reading the file %v", again, read)
	}
	want := record("u1", Releasing, "gpu-5")
	put(t, other, want)
	if got, err := r.Get("u1"); err != nil || !cmp.Equal(got, want) {
		t.Errorf("after a change by another instance: got %v, %v, want %v", got, err, want)
	}
	if err := other.Delete(want); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get("u1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after another instance has deleted it: got %v, want %v", err, ErrNotFound)
	}
	if _, kept := r.decoded.Load(types.UID("u1")); kept {
		t.Error("what was decoded is kept without a record")
	}
}

// TestDeletedByAnotherInstance: nobody asks for that record again, so List forgets what was decoded of it.
func TestDeletedByAnotherInstance(t *testing.T) {
	dir := t.TempDir()
	r, other := open(t, dir), open(t, dir)
	rec := record("u1", Prepared, "gpu-1")
	put(t, r, rec)
	put(t, r, record("u2", Prepared, "gpu-2"))
	if _, err := r.List(); err != nil {
		t.Fatal(err)
	}
	if err := other.Delete(rec); err != nil {
		t.Fatal(err)
	}
	if _, err := r.List(); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[types.UID]bool{"u1": false, "u2": true} {
		if _, kept := r.decoded.Load(uid); kept != want {
			t.Errorf("%s is kept: got %v, want %v", uid, kept, want)
		}
	}
}

// TestPrivate: the driver follows links of nobody in its directories, because only its own user can enter them.
func TestPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	put(t, open(t, dir), record("u1", Prepared, "gpu-1"))
	for _, path := range []string{"", "claims", "devices", "devices/gpu-1", "tmp"} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: got mode %v, error %v, want 0700", path, info.Mode().Perm(), err)
		}
	}
}

// Records of format 1 must load for ever, and what format 1 can hold is still written in it.
func TestGoldenRecord(t *testing.T) {
	const uid, file = "11111111-2222-3333-4444-555555555555", "testdata/v1/11111111-2222-3333-4444-555555555555.json"
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := decode(golden, uid, file)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s %s %v %s %s", rec.Claim, rec.Phase, rec.BootID, rec.Plan.Assignments[0].GPU,
		rec.Plan.Assignments[0].Environment, rec.Plan.Assignments[0].ShareID, rec.Plan.Assignments[0].CDI[0])
	want :=
		"ml/train-gpu-x7k2p Prepared b0071d00-0000-4000-8000-000000000001 GPU-0a1b2c3d-0000-4000-8000-000000000003 " +
			"map[NCCL_DEBUG:INFO] 5ba4e1d0-0000-4000-8000-000000000002 k8s.gpu.nvidia.com/driver=common"
	if got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	written, err := encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(written), string(golden)); diff != "" {
		t.Errorf("written anew: got - want +\n%s", diff)
	}
}

// golden fails unless the file is read as this record, and the record is written as the file.
func golden(t *testing.T, file string, want PreparedClaim) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(text, want.Claim.UID, file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("read: got - want +\n%s", diff)
	}
	written, err := encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(written), string(text)); diff != "" {
		t.Errorf("written: got - want +\n%s", diff)
	}
}

// So must records of format 2: one claim with a share by MPS, one by a hook, one by control groups, and a whole GPU
// with a time slice.
func TestGoldenRecordOfShares(t *testing.T) {
	const uid, file = "22222222-2222-3333-4444-555555555555", "testdata/v2/22222222-2222-3333-4444-555555555555.json"
	share := &sharing.Share{Memory: 5 << 30, Cores: 30}
	assignment := func(n string, share *sharing.Share) sharing.Assignment {
		return sharing.Assignment{Request: "r" + n, Pool: "node-1", Device: "gpu-0" + n + "-00-0",
			ShareID: types.UID("share-" + n), GPU: gpu.UUID("GPU-" + n), Share: share}
	}
	mps, hook, cgroup, slices, counted := assignment("1", share), assignment("2", share), assignment("3", share),
		assignment("4", nil), assignment("5", &sharing.Share{Replicas: 2})
	mps.Settings.Mode = gpu.ExclusiveProcess
	mps.MPS = &sharing.MPSClient{Daemon: "gpu-01-00-0", GPUs: []gpu.UUID{"GPU-1"}, ThreadPercentage: 30,
		Memory: []uint64{5 << 30}, MultiUser: true}
	hook.Hook = &sharing.Hook{Library: "/opt/libvgpu.so", Memory: 5 << 30, Cores: 30}
	cgroup.Cgroup = &sharing.Cgroup{Memory: 5 << 30}
	slices.Settings.Interval = gpu.IntervalLong
	counted.Unenforced = true
	want := PreparedClaim{Phase: Preparing, BootID: "boot", Claim: sharing.Claim{Namespace: "ml", Name: "shares",
		UID: uid},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{mps, hook, cgroup, slices, counted}}}
	golden(t, file, want)
}

// So must records of format 2 with the compute mode that was found. A driver that does not know it reads the rest, and
// sets the default mode in the end.
func TestGoldenRecordOfAComputeMode(t *testing.T) {
	const uid, file = "66666666-2222-3333-4444-555555555555", "testdata/v2/66666666-2222-3333-4444-555555555555.json"
	golden(t, file, PreparedClaim{Phase: Prepared, BootID: "boot",
		Claim: sharing.Claim{Namespace: "ml", Name: "prohibited", UID: uid},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{{Request: "r1", Pool: "node-1", Device: "gpu-01-00-0",
			ShareID: "share-1", GPU: "GPU-1", Share: &sharing.Share{Memory: 5 << 30},
			Settings: gpu.Settings{Mode: gpu.ExclusiveProcess}, FoundMode: gpu.Prohibited,
			Isolation: sharing.Isolation{MPS: &sharing.MPSClient{Daemon: "gpu-01-00-0", GPUs: []gpu.UUID{"GPU-1"},
				Memory: []uint64{5 << 30}}}, CDI: []string{"k8s.gpu.nvidia.com/claim=gpu-01-00-0"}}}}})
}

// So must records of format 3: partitions that are made, one of them not yet and one with MPS, and one that somebody
// else has made.
func TestGoldenRecordOfPartitions(t *testing.T) {
	const uid, file = "33333333-2222-3333-4444-555555555555", "testdata/v3/33333333-2222-3333-4444-555555555555.json"
	partition := func(n int, profile string, size int, id gpu.UUID) sharing.Assignment {
		at := gpu.Placement{Parent: "GPU-1", Profile: profile, Start: n, Size: size}
		return sharing.Assignment{Request: fmt.Sprint("r", n), Pool: "node-1", Device: gpu.PartitionName("gpu-01-00-0",
			at), GPU: at.Parent,
			Partition: &sharing.AssignedPartition{Placement: at, UUID: id}}
	}
	planned, made, static := partition(0, "1g.10gb", 1, ""), partition(4, "3g.40gb", 4, "MIG-4"),
		partition(2, "1g.10gb+me", 1, "MIG-2")
	made.MPS = &sharing.MPSClient{Daemon: made.Device, GPUs: []gpu.UUID{"MIG-4"}, ThreadPercentage: 50}
	static.Partition.Static, static.Unsliced = true, true
	want := PreparedClaim{Phase: Preparing, BootID: "boot", Claim: sharing.Claim{Namespace: "ml", Name: "partitions",
		UID: uid},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{planned, made, static}}}
	golden(t, file, want)
}

// So must records of format 4: a GPU that the driver binds for a virtual machine, and one that somebody else has bound.
func TestGoldenRecordOfVirtualMachines(t *testing.T) {
	bound, external := virtual("gpu-01-00-0-vfio", sharing.AssignedVFIO{Persistent: true}),
		virtual("gpu-02-00-0-vfio", sharing.AssignedVFIO{PreferIOMMUFD: true, NoAPIDevice: true})
	bound.VFIO.Functions = []gpu.PCIFunction{{PCI: bound.VFIO.PCI, Driver: "nvidia"},
		{PCI: gpu.PCIAddress{Bus: 1, Function: 1}, Driver: "snd_hda_intel"}}
	goldenVirtual(t, "testdata/v4/44444444-2222-3333-4444-555555555555.json", bound, external)
}

// So must records of format 5: a vGPU that the driver makes, and one that somebody else has made.
func TestGoldenRecordOfVGPUs(t *testing.T) {
	const made, existing = "6d8ba0b6-2d0c-8c5e-9a31-2f6c3c2a5d10", "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d11"
	goldenVirtual(t, "testdata/v5/55555555-2222-3333-4444-555555555555.json",
		virtual("gpu-01-00-0-vgpu-a16-4q-0", sharing.AssignedVFIO{VGPU: &sharing.AssignedVGPU{Type: "A16-4Q",
			UUID: made, Made: true}}),
		virtual("gpu-02-00-0-vgpu-"+existing, sharing.AssignedVFIO{VGPU: &sharing.AssignedVGPU{Type: "A16-8Q",
			UUID: existing}}))
}

// So must records of format 6: a claim with a directory for local IPC.
func TestGoldenRecordOfLocalIPC(t *testing.T) {
	const uid = "66666666-2222-3333-4444-666666666666"
	golden(t, "testdata/v6/"+uid+".json", PreparedClaim{Phase: Prepared, BootID: "boot",
		Claim: sharing.Claim{Namespace: "ml", Name: "cache", UID: uid},
		Plan: sharing.Plan{LocalIPC: 64 << 20, Assignments: []sharing.Assignment{{Request: "r1", Pool: "node-1",
			Device: "gpu-01-00-0", GPU: "GPU-1", CDI: []string{"k8s.gpu.nvidia.com/claim=gpu-01-00-0"}}}}})
}

// virtual returns an assignment to a virtual machine. The bus of the GPU is the first number in the device's name.
func virtual(device string, vfio sharing.AssignedVFIO) sharing.Assignment {
	bus := device[len("gpu-0")] - '0'
	vfio.PCI = gpu.PCIAddress{Bus: bus}
	return sharing.Assignment{Request: fmt.Sprint("r", bus), Pool: "node-1", Device: device,
		GPU: gpu.UUID(fmt.Sprint("GPU-", bus)), VFIO: &vfio, CDI: []string{"k8s.gpu.nvidia.com/claim=" + device}}
}

func goldenVirtual(t *testing.T, file string, assignments ...sharing.Assignment) {
	t.Helper()
	golden(t, file, PreparedClaim{Phase: Prepared, BootID: "boot", Plan: sharing.Plan{Assignments: assignments},
		Claim: sharing.Claim{Namespace: "ml", Name: "machines",
			UID: types.UID(strings.TrimSuffix(filepath.Base(file), ".json"))}})
}

// A driver that a downgrade brings back must not take a record for one that it can undo.
func TestFormatOfARecord(t *testing.T) {
	one := func(a sharing.Assignment) PreparedClaim {
		return PreparedClaim{Phase: Prepared, Plan: sharing.Plan{Assignments: []sharing.Assignment{a}}}
	}
	for name, row := range map[string]struct {
		rec  PreparedClaim
		want int
	}{
		"a whole GPU":           {one(sharing.Assignment{}), 1},
		"one that is shared":    {one(sharing.Assignment{Share: &sharing.Share{}}), 2},
		"one with a time slice": {one(sharing.Assignment{Settings: gpu.Settings{Interval: gpu.IntervalLong}}), 2},
		"one being prepared":    {PreparedClaim{Phase: Preparing}, 2},
		"local IPC":             {PreparedClaim{Phase: Prepared, Plan: sharing.Plan{LocalIPC: 64 << 20}}, 6},
	} {
		if got := row.rec.oldestFormat(); got != row.want {
			t.Errorf("%s: got format %d, want %d", name, got, row.want)
		}
	}
}

func TestHolders(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	put(t, r, record("u1", Prepared, "gpu-1"), record("u2", Releasing, "gpu-2", "gpu-3"),
		record("u3", Prepared, "gpu-3"))
	for _, row := range []struct {
		name    string
		devices []string
		except  types.UID
		want    string
	}{
		{"the claim of a device", []string{"gpu-1"}, "", "u1"},
		{"a claim in release still holds", []string{"gpu-2"}, "", "u2"},
		{"several devices, each claim once", []string{"gpu-2", "gpu-3"}, "", "u2 u3"},
		{"the asking claim is excluded", []string{"gpu-3"}, "u3", "u2"},
		{"no holder", []string{"gpu-4"}, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := holders(r, row.except, row.devices...); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
	if err := r.Delete(record("u2", Releasing, "gpu-2", "gpu-3")); err != nil {
		t.Fatal(err)
	}
	if got := holders(r, "", "gpu-2", "gpu-3"); got != "u3" {
		t.Errorf("after a release: got %q, want %q", got, "u3")
	}
}

// The marks below devices/ are not synced: a power cut may lose any of them, or leave one whose record was never
// written.
func TestMarksAreRestored(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	put(t, r, record("u1", Prepared, "gpu-1", "gpu-2"))
	if err := os.RemoveAll(filepath.Join(dir, "devices")); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir)
	if err := r.markAll([]string{"gpu-1"}, "never-written"); err != nil {
		t.Fatal(err)
	}
	if got := holders(r, "", "gpu-1"); got != "u1" {
		t.Errorf("got %q, want u1", got)
	}
	if got := holders(r, "", "gpu-2"); got != "u1" {
		t.Errorf("got %q, want u1", got)
	}
	if left, _ := r.marks("gpu-1"); len(left) != 1 {
		t.Errorf("marks left: %v", left)
	}
}

// TestMarksAreKept: a later phase of a claim writes only marks that are missing or wrong.
func TestMarksAreKept(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	put(t, r, record("u1", Preparing, "gpu-1", "gpu-2"))
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	first, second := filepath.Join(dir, "devices/gpu-1/u1"), filepath.Join(dir, "devices/gpu-2/u1")
	want, err := os.ReadFile(first)
	if err := errors.Join(err, os.Chtimes(first, long, long), os.WriteFile(second, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	put(t, r, record("u1", Prepared, "gpu-1", "gpu-2"))
	if info, err := os.Stat(first); err != nil || !info.ModTime().Equal(long) {
		t.Errorf("error %v; a mark that was right is written again", err)
	}
	if got, err := os.ReadFile(second); err != nil || string(got) != string(want) {
		t.Errorf("got mark %q, error %v, want %q", got, err, want)
	}
}

func TestUnreadableRecords(t *testing.T) {
	for _, row := range []struct {
		name    string
		content string
		want    string
	}{
		{"empty", "", "unexpected end of JSON input"},
		{"truncated", `{"version":1,"claim":{"uid":"u1"`, "unexpected end of JSON input"},
		{"of another claim", `{"version":1,"claim":{"uid":"u2"},"phase":"Prepared"}`, "is about claim u2"},
		{"without a phase", `{"version":1,"claim":{"uid":"u1"}}`, `version 1, phase ""`},
		{"from a newer driver", `{"version":7,"claim":{"uid":"u1"},"phase":"Sleeping"}`,
			"format 7 is from a newer driver, this one reads up to 6; run that driver again"},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			r := open(t, dir)
			put(t, r, record("u1", Prepared, "gpu-1"), record("u2", Prepared, "gpu-2"))
			file := filepath.Join(dir, "claims", "u1.json")
			if err := os.WriteFile(file, []byte(row.content), 0o600); err != nil {
				t.Fatal(err)
			}
			r = open(t, dir) // a restart neither fails nor forgets

			_, err := r.Get("u1")
			if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(),
				row.want) {
				t.Errorf("got  %v\nwant %s … %s", err, file, row.want)
			}
			if got := holders(r, "", "gpu-1"); !strings.Contains(got, "error: may hold gpu-1: "+file) {
				t.Errorf("its device is not blocked: %s", got)
			}
			if got := holders(r, "", "gpu-2"); got != "u2" {
				t.Errorf("another device: got %q, want u2", got)
			}
			listed, err := r.List()
			if len(listed) != 1 || listed[0].Claim.UID != "u2" || !errors.Is(err, ErrUnreadable) {
				t.Errorf("listed %v, %v", listed, err)
			}
			if now, _ := os.ReadFile(file); string(now) != row.content {
				t.Errorf("the file was changed to %q", now)
			}
			// When even the marks are lost, it may hold any device; removing the file ends that.
			if err := os.RemoveAll(filepath.Join(dir, "devices")); err != nil {
				t.Fatal(err)
			}
			r = open(t, dir)
			if got := holders(r, "", "gpu-3"); !strings.Contains(got, file) {
				t.Errorf("without marks: got %q, want an error about %s", got, file)
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if got := holders(r, "", "gpu-3"); got != "" {
				t.Errorf("after the file was removed: got %q, want nobody", got)
			}
		})
	}
}

// A power cut may lose marks, which are not synced: one that is left is enough to know what an unreadable record may
// hold.
func TestUnreadableRecordOfSeveralGPUs(t *testing.T) {
	for _, row := range []struct {
		name    string
		lose    func(dir string) error
		blocked string
	}{
		{"no mark missing", func(string) error { return nil }, "gpu-1 gpu-2"},
		{"one mark missing", func(dir string) error { return os.Remove(filepath.Join(dir, "devices", "gpu-1", "u1")) },
			"gpu-1 gpu-2"},
		{"a truncated mark", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "devices", "gpu-1", "u1")),
				os.Truncate(filepath.Join(dir, "devices", "gpu-2", "u1"), 0))
		}, "gpu-1 gpu-2 gpu-3"},
	} {
		dir := t.TempDir()
		put(t, open(t, dir), record("u1", Prepared, "gpu-1", "gpu-2-mig-1g10gb-0"))
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "claims", "u1.json"), nil, 0o600),
			row.lose(dir)); err != nil {
			t.Fatal(err)
		}
		r := open(t, dir)
		var blocked []string
		for _, device := range []string{"gpu-1", "gpu-2", "gpu-3"} {
			if strings.Contains(holders(r, "", device), "error: may hold") {
				blocked = append(blocked, device)
			}
		}
		if got := strings.Join(blocked, " "); got != row.blocked {
			t.Errorf("%s: it blocks %s, want %s", row.name, got, row.blocked)
		}
	}
}

func TestInvalidUIDs(t *testing.T) {
	r := open(t, t.TempDir())
	for _, uid := range []types.UID{"", "../x", ".", "a/b", "a\x00b"} {
		if _, err := r.Get(uid); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("%q: got %v, want a refusal", uid, err)
		}
		if err := r.Put(record(uid, Prepared)); err == nil {
			t.Errorf("%q: was written", uid)
		}
	}
}

func TestOldTemporaryFilesAreDeleted(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	old, young := filepath.Join(dir, "tmp", "old"), filepath.Join(dir, "tmp", "young")
	ahead := filepath.Join(dir, "tmp", "ahead") // written when the clock was
	for _, f := range []string{old, young, ahead} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(ahead, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(ahead); err == nil {
		t.Error("a temporary file of a clock that was ahead is left")
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("an old temporary file is left")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("a file that another instance may be writing is gone")
	}
}

// A full disk refuses the new record and keeps the old one.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	r := open(t, dir)
	before := record("u1", Prepared, "gpu-1")
	put(t, r, before)
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	after := before
	after.Phase = Releasing
	after.BootID = strings.Repeat("x", 1<<13)
	if err := r.Put(after); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want %v", err, unix.ENOSPC)
	}
	if got, err := r.Get("u1"); err != nil || got.Phase != Prepared {
		t.Errorf("got %s, %v, want the record as before", got.Phase, err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	put(t, r, after)
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	t.Run("other instance", func(t *testing.T) { testLock(t, r, open(t, dir)) })
	t.Run("other call", func(t *testing.T) { testLock(t, r, r) })
}

func testLock(t *testing.T, r, other *Records) {
	unlock, err := r.Lock(context.Background(), []string{"gpu-2", "gpu-1", "gpu-2"})
	if err != nil {
		t.Fatal(err)
	}
	if free, err := other.Lock(context.Background(), []string{"gpu-3"}); err != nil {
		t.Errorf("another device: %v", err)
	} else {
		free()
	}
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error)
	go func() {
		_, err := other.Lock(ctx, []string{"gpu-1"})
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("a held lock: got %v, want %v", err, context.Canceled)
	}
	go func() {
		free, err := other.Lock(context.Background(), []string{"gpu-1"})
		if err == nil {
			free()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Errorf("a lock given back: %v", err)
	}
}
