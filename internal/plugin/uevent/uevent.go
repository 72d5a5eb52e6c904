// SPDX-License-Identifier: Apache-2.0

// Package uevent tells when the kernel has added a GPU to the PCI bus of the running machine, or removed one.
package uevent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelGroup is the multicast group of the kernel's own events; udev's are in another one.
const kernelGroup = 1

// Watch returns a channel that has a value when NVIDIA's driver has been bound to a device, a device of NVIDIA has been
// removed, or events were lost, since it was last received from. It ends with ctx.
//
// The kernel sends events of the PCI bus to every network namespace that the initial user namespace owns, and those of
// pods are, except with hostUsers: false.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a netlink socket: %w", err), socket.Close())
	}
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	changed := make(chan struct{}, 1)
	go receive(socket, changed)
	return changed, nil
}

func receive(socket *os.File, changed chan<- struct{}) {
	message := make([]byte, 8<<10) // the kernel's are at most 2 KiB long
	for {
		n, err := socket.Read(message)
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost
		case err != nil: // ctx has ended
			return
		case !concernsGPU(string(message[:n])):
			continue
		}
		select {
		case changed <- struct{}{}:
		default: // one is pending
		}
	}
}

// concernsGPU reports whether the event changes the GPUs that NVML can know.
func concernsGPU(message string) bool {
	has := func(field string) bool { return strings.Contains(message, "\x00"+field) }
	return has("SUBSYSTEM=pci\x00") && has("PCI_ID=10DE:") &&
		(has("ACTION=remove\x00") || has("ACTION=bind\x00") && has("DRIVER=nvidia\x00"))
}
