// SPDX-License-Identifier: Apache-2.0

package inotify_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

func TestCount(t *testing.T) {
	inotify.Need(t)
	var got [3]int
	got[0] = inotify.Count(t)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	got[1] = inotify.Count(t)
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	got[2] = inotify.Count(t)
	if want := [3]int{0, 1, 0}; got != want {
		t.Errorf("before, with and after an instance: got %v, want %v", got, want)
	}
}
