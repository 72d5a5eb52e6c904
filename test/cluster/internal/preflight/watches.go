// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"golang.org/x/sys/unix"
)

// What the programs of a machine use of the kernel's inotify instances, of
// which a user has 128 unless the host says otherwise (counted in
// /proc/PID/fd; one in six as reserve).
const (
	watchesOfControlPlane = 13
	watchesPerNode        = 9
)

// CheckWatches returns ErrUnfit if the kubelets of so many nodes would not get
// the inotify instances that they need; they say "too many open files" then
// and end. It takes that many and gives them back.
func CheckWatches(nodes int) error {
	wanted := watchesOfControlPlane + nodes*watchesPerNode
	var taken []int
	defer func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}()
	for range wanted {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return unfit("%d nodes need about %d inotify instances and this user can have %d more: stop another cluster, start fewer nodes, or raise the sysctl fs.inotify.max_user_instances",
				nodes, wanted, len(taken))
		}
		taken = append(taken, fd)
	}
	return nil
}
