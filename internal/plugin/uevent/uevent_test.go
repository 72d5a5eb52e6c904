// SPDX-License-Identifier: Apache-2.0

package uevent

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const bound = "bind@/devices/pci0000:00/0000:1b:00.0 ACTION=bind SUBSYSTEM=pci DRIVER=nvidia PCI_CLASS=30200 " +
	"PCI_ID=10DE:2330 PCI_SLOT_NAME=0000:1b:00.0 "

func TestConcernsGPU(t *testing.T) {
	for _, row := range []struct {
		name  string
		event string
		want  bool
	}{
		{"a GPU gets its driver", bound, true},
		{"a GPU is removed", "remove@/devices/x ACTION=remove SUBSYSTEM=pci PCI_ID=10DE:2330", true},
		{"a GPU has no driver yet", "add@/devices/x ACTION=add SUBSYSTEM=pci PCI_ID=10DE:2330", false},
		{"a GPU is given to a virtual machine", "bind@/devices/x ACTION=bind SUBSYSTEM=pci DRIVER=vfio-pci " +
			"PCI_ID=10DE:2330", false},
		{"another card is removed", "remove@/devices/x ACTION=remove SUBSYSTEM=pci PCI_ID=8086:1572", false},
		{"a short identity", "remove@/devices/x ACTION=remove SUBSYSTEM=pci PCI_ID=1", false},
		{"another bus", "remove@/devices/x ACTION=remove SUBSYSTEM=usb PCI_ID=10DE:2330", false},
	} {
		if got := concernsGPU(strings.ReplaceAll(row.event+" ", " ", "\x00")); got != row.want {
			t.Errorf("%s: got %t, want %t", row.name, got, row.want)
		}
	}
}

// TestWatch has the kernel send an event, in a network namespace of its own like that of a pod.
func TestWatch(t *testing.T) {
	runtime.LockOSThread() // not unlocked: the thread, which is in the namespace, ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("only root can send events: %v", err)
	}
	changed, err := Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	event := strings.ReplaceAll(bound, " ", "\x00")
	message := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(event)))
	message = binary.NativeEndian.AppendUint16(message, unix.NLMSG_MIN_TYPE)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST)
	message = append(append(message, make([]byte, 8)...), event...) // after a sequence number and a sender
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(time.Hour):
		t.Fatal("no event")
	}
}
