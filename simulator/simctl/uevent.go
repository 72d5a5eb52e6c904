// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// announce lets the kernel tell programs in the caller's network namespace of a change on the PCI bus, with the event
// that it would send itself. Without the right to do so, they notice the change when they look.
func announce(action string) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	const path = "/devices/simulated" // of no device, so that udev does nothing
	event := strings.Join([]string{fmt.Sprintf("%s@%s", action, path), "ACTION=" + action, "DEVPATH=" + path,
		"SUBSYSTEM=pci", "DRIVER=nvidia", "PCI_ID=10DE:0000", ""}, "\x00")
	message := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(event)))
	message = binary.NativeEndian.AppendUint16(message, unix.NLMSG_MIN_TYPE)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST)
	message = append(message, make([]byte, 8)...) // sequence number and sender
	_ = unix.Sendto(fd, append(message, event...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}
