// SPDX-License-Identifier: Apache-2.0

//go:build guest

package passthrough

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of VFIO, as in linux/vfio.h.
const (
	setIOMMU = 0x3b66 + iota
	groupStatus
	setContainer
	_
	deviceFD
	_
	regionInfo

	bindIOMMUFD = 0x3b76

	type1v2     = 3
	isViable    = 1 << 0
	canBeMapped = 1 << 2
)

func ioctl(f *os.File, request, argument uintptr) (int, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, argument)
	if errno != 0 {
		return 0, fmt.Errorf("request %#x of %s: %w", request, f.Name(), errno)
	}
	return int(result), nil
}

// viableGroup asks the kernel whether a program can have the group.
func viableGroup(t *testing.T, group int) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join("/dev/vfio", strconv.Itoa(group)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	status := [2]uint32{8}
	if _, err := ioctl(f, groupStatus, uintptr(unsafe.Pointer(&status))); err != nil {
		t.Fatal(err)
	}
	return status[1]&isViable != 0
}

// use does what the program of a virtual machine does first, and stays.
func use(groupNode, vfioNode, address string) error {
	container, err := os.OpenFile(vfioNode, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	group, err := os.OpenFile(groupNode, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fd := int32(container.Fd())
	if _, err := ioctl(group, setContainer, uintptr(unsafe.Pointer(&fd))); err != nil {
		return err
	}
	if _, err := ioctl(container, setIOMMU, type1v2); err != nil {
		return err
	}
	name, err := unix.BytePtrFromString(address)
	if err != nil {
		return err
	}
	device, err := ioctl(group, deviceFD, uintptr(unsafe.Pointer(name)))
	if err != nil {
		return err
	}
	return mapRegion(os.NewFile(uintptr(device), address))
}

// useIOMMUFD is use with iommufd.
func useIOMMUFD(deviceNode, iommuNode string) error {
	iommu, err := os.OpenFile(iommuNode, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	device, err := os.OpenFile(deviceNode, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	bind := [4]uint32{16, 0, uint32(iommu.Fd())} // size of this, flags, iommufd, the number of the device there
	if _, err := ioctl(device, bindIOMMUFD, uintptr(unsafe.Pointer(&bind))); err != nil {
		return err
	}
	return mapRegion(device)
}

// mapRegion maps the first region of the device, reads from it, and does not end.
func mapRegion(device *os.File) error {
	var info [32]byte // of the first region: size of this, flags, index, capabilities, its size, its offset
	binary.NativeEndian.PutUint32(info[:], uint32(len(info)))
	if _, err := ioctl(device, regionInfo, uintptr(unsafe.Pointer(&info))); err != nil {
		return err
	}
	flags, size := binary.NativeEndian.Uint32(info[4:]), binary.NativeEndian.Uint64(info[16:])
	if flags&canBeMapped == 0 || size == 0 {
		return errors.New("the first region cannot be mapped")
	}
	memory, err := unix.Mmap(int(device.Fd()), int64(binary.NativeEndian.Uint64(info[24:])), int(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", size, err)
	}
	fmt.Printf("mapped %d bytes, status %#x\n", size, binary.NativeEndian.Uint32(memory[8:]))
	time.Sleep(time.Hour)
	return nil
}
