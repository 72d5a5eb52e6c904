// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

// costProcess says in the environment that this process is the one whose system calls are counted.
const costProcess = "TEST_COST_OF_A_CLAIM"

// TestCostOfAClaim: how often Prepare and Unprepare of a claim for a whole GPU wait for the disk and the API server,
// that they look at no process, and that they leave no file open. It runs in a process of its own, because a filter of
// system calls stays.
func TestCostOfAClaim(t *testing.T) {
	if os.Getenv(costProcess) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCostOfAClaim$", "-test.v")
		cmd.Env = append(os.Environ(), costProcess+"=1")
		output, err := cmd.CombinedOutput()
		if strings.Contains(string(output), "--- SKIP") {
			t.Skip(string(output))
		}
		if err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		return
	}
	const warmUp, n = 3, 20
	k := start(t)
	k.installed.Store(true)
	plugin := drapb.NewDRAPluginClient(k.dial("dra.sock"))
	var fs unix.Statfs_t
	if err := unix.Statfs(k.dir, &fs); err != nil {
		t.Fatal(err)
	}
	for i := range warmUp {
		k.round(plugin, fmt.Sprint("first", i))
	}
	looks := "" // why the plugin has to look at processes
	switch {
	case fs.Type == unix.OVERLAYFS_SUPER_MAGIC:
		looks = "files of overlayfs do not tell whether they are mounted"
	case inotify.Count(t) < 2: // of the files that it watches, and of the metadata
		looks = "the programs of this machine have used up fs.inotify.max_user_instances"
	default:
		if err := os.RemoveAll(k.proc); err != nil { // from now on, no process can be looked at
			t.Fatal(err)
		}
	}
	syncs := countSyncs(t)
	before, calls := openFiles(t), len(k.client.Actions())
	for i := range n {
		k.round(plugin, fmt.Sprint("c", i))
	}
	got := map[string]int{}
	for path, times := range syncs() {
		below, _ := filepath.Rel(k.dir, path)
		dir, _, nested := strings.Cut(below, "/")
		// Others are not of claims: of the record of health, which is written soon after the start, and its directory.
		if (nested || dir == "claims") && !strings.HasPrefix(filepath.Base(path), ".health.json") {
			got[dir] += times
		}
	}
	// The record, the directory with it when it is there, and the directory when it is gone.
	if want := map[string]int{"tmp": n, "claims": 2 * n}; !maps.Equal(got, want) {
		t.Errorf("fsyncs of %d claims: got %v, want %v", n, got, want)
	}
	verbs := map[string]int{}
	for _, a := range k.client.Actions()[calls:] {
		if r := a.GetResource().Resource; r == "resourceclaims" || r == "pods" || r == "events" {
			verbs[a.GetVerb()+" "+r]++
		}
	}
	delete(verbs, "patch resourceclaims") // the status of a claim that was prepared for seconds, on a busy machine
	if want := map[string]int{"get resourceclaims": n}; !maps.Equal(verbs, want) {
		t.Errorf("API calls of %d claims: got %v, want %v", n, verbs, want)
	}
	k.eventually("files to be closed", func() error {
		if after := openFiles(t); after > before {
			return fmt.Errorf("%d files are open, %d were before", after, before)
		}
		return nil
	})
	if looks != "" {
		t.Skip("not tested that the plugin looks at no process:", looks)
	}
}

// round prepares and releases a new claim for the GPU, as soon as it is there.
func (k *fakeKubelet) round(plugin drapb.DRAPluginClient, name string) {
	k.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID: types.UID(name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "node",
			Device: "gpu-01-00-0"}}}}
	if err := k.client.Tracker().Add(claim); err != nil {
		k.t.Fatal(err)
	}
	claims := []*drapb.Claim{{Namespace: "ns", Name: name, Uid: name}}
	prepare := func() error {
		answer, err := plugin.NodePrepareResources(context.Background(),
			&drapb.NodePrepareResourcesRequest{Claims: claims})
		if err == nil && answer.Claims[name].GetError() != "" {
			err = errors.New(answer.Claims[name].Error)
		}
		return err
	}
	if strings.HasPrefix(name, "first") {
		k.eventually("prepare "+name, prepare)
	} else if err := prepare(); err != nil {
		k.t.Fatal(err)
	}
	answer, err := plugin.NodeUnprepareResources(context.Background(),
		&drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil || answer.Claims[name].GetError() != "" {
		k.t.Fatalf("unprepare %s: %v, %v", name, answer, err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Requests of a listener of seccomp, with the sizes of their structs: seccomp_unotify(2).
const (
	notifReceive, notifSize = 0xc0502100, 80
	notifSend, answerSize   = 0xc0182101, 24
	notifContinue           = 1
)

// countSyncs counts the fsyncs of this process from now on, by the path of the file.
func countSyncs(t *testing.T) (so func() map[string]int) {
	t.Helper()
	listener, err := listenForSyncs()
	if err != nil {
		t.Skipf("the kernel lets nobody count system calls: %v", err)
	}
	var mu sync.Mutex
	syncs := map[string]int{}
	go func() { // until the process ends
		for {
			notif, answer := make([]byte, notifSize), make([]byte, answerSize)
			if ioctl(listener, notifReceive, notif) != nil {
				continue
			}
			path, _ := os.Readlink(fmt.Sprint("/proc/self/fd/", binary.NativeEndian.Uint64(notif[32:])))
			copy(answer, notif[:8])
			binary.NativeEndian.PutUint32(answer[20:], notifContinue)
			mu.Lock()
			if ioctl(listener, notifSend, answer) == nil { // else a signal has interrupted the call, which comes again
				syncs[path]++
			}
			mu.Unlock()
		}
	}()
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(syncs)
	}
}

// listenForSyncs makes each fsync and fdatasync of this process wait for an answer at the returned descriptor.
func listenForSyncs() (listener uintptr, err error) {
	const number = 0 // offset of the system call in seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	listener, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
		uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		return 0, failed
	}
	return listener, nil
}

func ioctl(fd, request uintptr, data []byte) error {
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&data[0]))); err != 0 {
		return err
	}
	return nil
}
