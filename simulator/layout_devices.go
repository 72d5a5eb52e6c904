// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// localMajors are the major numbers that the kernel's list of devices reserves for local and experimental use.
var localMajors = []int{120, 121, 122, 123, 124, 125, 126, 127, 60, 61, 62, 63}

// withMajor returns the view with a major number that no kernel driver owns. So opening such a device node has no
// effect and returns ENXIO if the container may use it. The number stays the same while it is free.
func (n *Node) withMajor(v *node.View) (*node.View, error) {
	major, err := freeMajor(v.Major)
	if err != nil || major == v.Major {
		return v, err
	}
	if err := n.SetMajor(major); err != nil {
		return nil, err
	}
	return n.View()
}

// layOutDevices creates the device nodes of the view with its major number.
func (n *Node) layOutDevices(v *node.View) error {
	dev := filepath.Join(n.DriverRoot(), "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	var names []string
	for _, d := range v.DeviceNodes() {
		if err := ensureDevice(filepath.Join(dev, d.Name), v.Major, d.Minor); err != nil {
			return err
		}
		names = append(names, d.Name)
	}
	return errors.Join(keepOnly(dev, "nvidia*", names), n.layOutVFIO(filepath.Join(dev, "vfio"), v))
}

// Minor numbers of the simulated device nodes of VFIO: that of the container, and that of group 0.
const (
	vfioContainerMinor = 300
	vfioGroupMinor     = 400
)

// layOutVFIO creates the device nodes of a machine with an IOMMU: that of VFIO, and one for each group of a GPU that
// vfio-pci has, and of a vGPU.
func (n *Node) layOutVFIO(dir string, v *node.View) error {
	nodes := map[string]int{}
	for _, c := range v.OnBus() {
		group := v.IOMMUGroup(c)
		if group == 0 {
			continue
		}
		nodes["vfio"] = vfioContainerMinor
		if c.Binding().Driver == node.VFIODriver {
			nodes[strconv.Itoa(group)] = vfioGroupMinor + group
		}
		for _, d := range c.State.VGPUs {
			nodes[strconv.Itoa(d.Group)] = vfioGroupMinor + d.Group
		}
	}
	if len(nodes) == 0 {
		return os.RemoveAll(dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, minor := range nodes {
		if err := ensureDevice(filepath.Join(dir, name), v.Major, minor); err != nil {
			return err
		}
	}
	return keepOnly(dir, "*", slices.Collect(maps.Keys(nodes)))
}

// freeMajor returns a major number that no driver of the running kernel owns and that is not one of the others, if
// possible the wanted one.
func freeMajor(wanted int, others ...int) (int, error) {
	f, err := os.Open("/proc/devices")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	taken, err := characterMajors(f)
	if err != nil {
		return 0, fmt.Errorf("read /proc/devices: %w", err)
	}
	for _, major := range others {
		taken[major] = "the simulation"
	}
	return chooseMajor(wanted, taken)
}

func chooseMajor(wanted int, taken map[int]string) (int, error) {
	for _, major := range append([]int{wanted}, localMajors...) {
		if _, owned := taken[major]; !owned && major != 0 {
			return major, nil
		}
	}
	return 0, fmt.Errorf("choose a major number for device nodes: every one for local use (60-63, 120-127) has a "+
		"driver: %v", taken)
}

// characterMajors parses the major numbers of character devices and their drivers from the content of /proc/devices.
func characterMajors(r io.Reader) (map[int]string, error) {
	out := map[int]string{}
	inCharacter := false
	for s := bufio.NewScanner(r); ; {
		if !s.Scan() {
			return out, s.Err()
		}
		line := strings.TrimSpace(s.Text())
		if strings.HasSuffix(line, "devices:") {
			inCharacter = strings.HasPrefix(line, "Character")
			continue
		}
		number, owner, ok := strings.Cut(line, " ")
		if major, err := strconv.Atoi(number); ok && err == nil && inCharacter {
			out[major] = owner
		}
	}
}

// ensureDevice makes sure that the path is that character device, readable and writable by everybody.
func ensureDevice(path string, major, minor int) error {
	const mode = unix.S_IFCHR | 0o666
	want := unix.Mkdev(uint32(major), uint32(minor))
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == nil && st.Mode == mode && uint64(st.Rdev) == want { //nolint:unconvert // differs between architectures
		return usable(path)
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := unix.Mknod(path, mode, int(want)); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("make device node %s: %w: simulated GPUs have real device nodes, which takes root with "+
				"CAP_MKNOD (in a "+
				"container: privileged) and a file system that allows them", path, err)
		}
		return fmt.Errorf("make device node %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // whatever the umask is
		return err
	}
	return usable(path)
}

// usable checks whether device nodes work here at all. EPERM is fine: this container may not use the device.
func usable(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		return errors.Join(f.Close(), fmt.Errorf("open %s: a driver answers; want none", path))
	}
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: the file system must not be mounted with nodev", err)
	}
	return nil
}
