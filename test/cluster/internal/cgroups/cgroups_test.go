// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, row := range []struct {
		name, mounts, want string
		v1                 bool
	}{
		{
			"version 1 and hybrid",
			"30 1 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"31 1 0:27 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,name=systemd\n" +
				"32 1 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n" +
				"33 1 0:29 / / rw - ext4 /dev/vda rw\n",
			"/sys/fs/cgroup/cpu,cpuacct [rw cpu cpuacct] false\n" +
				"/sys/fs/cgroup/systemd [rw name=systemd] false\n" +
				"/sys/fs/cgroup/unified [] true\n",
			true,
		},
		{
			"version 2",
			"30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup [] true\n",
			false,
		},
		{"none", "33 1 0:29 / / rw - ext4 /dev/vda rw\n", "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			layout := parse(row.mounts)
			var got strings.Builder
			for _, h := range layout {
				fmt.Fprintln(&got, h.Root, h.Controllers, h.Unified)
			}
			if got.String() != row.want || layout.V1() != row.v1 {
				t.Errorf("got\n%s v1=%v\nwant\n%s v1=%v", got.String(), layout.V1(), row.want, row.v1)
			}
		})
	}
}

// TestMake uses plain folders. The tests that start clusters cover the kernel's part.
func TestMake(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"cpuset", "memory", "unified"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("cpuset/cpuset.cpus", "0-1")
	write("cpuset/cpuset.mems", "0")
	layout := Layout{
		{Root: root + "/cpuset", Controllers: []string{"rw", "cpuset"}},
		{Root: root + "/memory", Controllers: []string{"rw", "memory"}},
		{Root: root + "/unified", Unified: true},
	}
	for range 2 { // idempotent
		if err := layout.Make("/c/node-1"); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"cpuset/c/cpuset.cpus":        "0-1",
		"cpuset/c/node-1/cpuset.cpus": "0-1",
		"cpuset/c/node-1/cpuset.mems": "0",
	} {
		if got, err := os.ReadFile(filepath.Join(root, path)); string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", path, got, err, want)
		}
	}
	if _, err := os.Stat(root + "/memory/c/node-1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root + "/unified/c"); err == nil {
		t.Error("got a group in the unified tree of a hybrid host")
	}
}

// TestMakeOnVersion2 checks the delegated controllers. The kubelet ends if one of them is missing.
func TestMakeOnVersion2(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"cgroup.controllers": "cpu hugetlb rdma",
		"cgroup.subtree_control": "cpu"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Layout{{Root: root, Unified: true}}).Make("/c"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil || string(got) != "+hugetlb" {
		t.Errorf("got %q, %v; want +hugetlb", got, err)
	}
}

func TestRemoveOfNothing(t *testing.T) {
	if err := (Layout{{Root: t.TempDir()}}).Remove("/not/there"); err != nil {
		t.Error(err)
	}
}
