// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Programs are the files that LayOut copies into the driver root.
type Programs struct {
	NvidiaSMI  string // a static program; "" for no nvidia-smi
	MPSControl string // the same for nvidia-cuda-mps-control
}

// LayOut creates the driver root of the node as NVIDIA's driver would: versioned libraries, nvidia-smi, device nodes,
// and the parts of /sys and /proc about GPUs and about device nodes of partitions. It is idempotent: it creates what is
// missing, repairs what is wrong, and deletes what belongs to a replaced machine. It needs permission to create device
// nodes.
func (n *Node) LayOut(p Programs) error {
	return n.layingOut(func() error { return n.layOut(p) })
}

// Add adds a GPU like another to the running machine and returns it; the zero address means the next free bus after it.
// Its device node and its part of /sys exist before NVML counts it. It needs permission to create device nodes.
func (n *Node) Add(like string, at hwprofile.Address) (node.GPU, error) {
	var added node.GPU
	err := n.layingOut(func() error {
		if err := n.layOut(Programs{}); err != nil {
			return err
		}
		var err error
		if added, err = n.AddGPU(like, at, n.layOutGPUs); err != nil {
			return errors.Join(err, n.layOut(Programs{})) // removes what was created for it
		}
		return nil
	})
	return added, err
}

// Remove removes a GPU permanently, with its device node and its part of /sys, as if the machine had booted without it.
// It needs permission to create device nodes.
func (n *Node) Remove(which string) error {
	return n.layingOut(func() error {
		if err := n.RemoveGPU(which); err != nil {
			return err
		}
		return n.layOut(Programs{})
	})
}

// ReloadDriver reloads the driver as an update does. It changes the version unless that is "", and swaps the minor
// numbers of two GPUs if swap names them. It needs permission to create device nodes.
func (n *Node) ReloadDriver(version string, swap []string) error {
	return n.layingOut(func() error {
		if err := n.Node.ReloadDriver(version, swap); err != nil {
			return err
		}
		return n.layOut(Programs{})
	})
}

// LayOutSysfs creates only the /sys of the driver root, which is enough to enumerate GPUs. It needs no permissions, but
// containers cannot use such GPUs.
func (n *Node) LayOutSysfs() error {
	return n.layingOut(func() error {
		v, err := n.View()
		if err == nil {
			err = layOutSysfs(filepath.Join(n.DriverRoot(), "sys"), v)
		}
		if err != nil {
			return fmt.Errorf("lay out sysfs of driver root %s: %w", n.DriverRoot(), err)
		}
		return nil
	})
}

// layingOut runs f under the lock of the driver root.
func (n *Node) layingOut(f func() error) error { return node.Locked(n.Dir(), "layout.lock", f) }

func (n *Node) layOut(p Programs) error {
	v, err := n.View()
	if err == nil {
		err = n.layOutLibraries(v.Profile.Driver())
	}
	if err == nil {
		err = n.layOutPrograms(p)
	}
	if err == nil {
		v, err = n.withMajor(v)
	}
	if err == nil {
		err = n.layOutGPUs(v)
	}
	if err != nil {
		return fmt.Errorf("lay out driver root %s: %w", n.DriverRoot(), err)
	}
	return nil
}

// layOutGPUs creates the files of each GPU of the view, and deletes those of other GPUs.
func (n *Node) layOutGPUs(v *node.View) error {
	if err := layOutSysfs(filepath.Join(n.DriverRoot(), "sys"), v); err != nil {
		return err
	}
	if err := layOutProc(n.Proc(), v); err != nil {
		return err
	}
	return n.layOutDevices(v)
}

// layOutProc creates the parts of /proc that programs read: the numbers of device nodes, and the version of the kernel
// module.
func layOutProc(proc string, v *node.View) error {
	imex, err := freeMajor(0, v.Major)
	return errors.Join(err,
		ensureFile(filepath.Join(proc, "driver/nvidia/capabilities/fabric-imex-mgmt"), []byte(node.IMEXManagement()),
			0o444),
		ensureFile(filepath.Join(proc, "driver/nvidia-caps/mig-minors"), []byte(v.MigMinors()), 0o444),
		ensureFile(filepath.Join(proc, "driver/nvidia/version"), []byte(v.ModuleVersion()), 0o444),
		ensureFile(filepath.Join(proc, "devices"), []byte(v.KernelDevices(imex)), 0o444))
}

// libraries are the driver's libraries for compute, with the number in their soname. The management library is not
// listed: it is the state of the node.
var libraries = map[string]string{
	"libcuda.so":                  "1",
	"libcudadebugger.so":          "1",
	"libnvcuvid.so":               "1",
	"libnvidia-allocator.so":      "1",
	"libnvidia-cfg.so":            "1",
	"libnvidia-encode.so":         "1",
	"libnvidia-gpucomp.so":        "", // its soname has the version of the driver
	"libnvidia-nvvm.so":           "4",
	"libnvidia-opencl.so":         "1",
	"libnvidia-opticalflow.so":    "1",
	"libnvidia-ptxjitcompiler.so": "1",
}

const placeholder = "A simulated GPU has no such library. This one stands in its place and has no functions."

func (n *Node) layOutLibraries(driver string) error {
	dir := node.LibraryDir(n.Dir())
	keep := []string{filepath.Base(node.LibraryPath(n.Dir(), driver))}
	for name, soname := range libraries {
		file := name + "." + driver
		linked := file
		if soname != "" {
			linked = name + "." + soname
		}
		if err := ensureFile(filepath.Join(dir, file), node.EmptyLibrary(linked, placeholder), 0o644); err != nil {
			return err
		}
		keep = append(keep, file)
		links, err := ensureSonames(dir, name, linked, file)
		if err != nil {
			return err
		}
		keep = append(keep, links...)
	}
	links, err := ensureSonames(dir, "libnvidia-ml.so", "libnvidia-ml.so.1", keep[0])
	if err != nil {
		return err
	}
	return keepOnly(dir, "lib*.so*", append(keep, links...))
}

// ensureSonames creates the links from a library's soname and from its plain name to its file, and returns their names.
// A library whose file is named as its soname has none; only the driver itself opens it.
func ensureSonames(dir, name, soname, file string) ([]string, error) {
	if soname == file {
		return nil, nil
	}
	return []string{soname, name}, errors.Join(
		ensureLink(filepath.Join(dir, soname), file),
		ensureLink(filepath.Join(dir, name), soname))
}

func (n *Node) layOutPrograms(p Programs) error {
	for name, source := range map[string]string{"nvidia-smi": p.NvidiaSMI, "nvidia-cuda-mps-control": p.MPSControl} {
		if source == "" {
			continue
		}
		program, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := ensureFile(filepath.Join(n.DriverRoot(), "usr/bin", name), program, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// noResources is the list of the memory that a PCI device has: 13 lines, as of any device, here all empty.
var noResources = strings.TrimSpace(strings.Repeat("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", 13))

// layOutSysfs creates the parts of /sys that programs read: the path from the root complex to each GPU, its model, its
// NUMA node, on a machine with an IOMMU its group and drivers, and its vGPUs.
func layOutSysfs(sys string, v *node.View) error {
	keep, groups, bound := map[string]bool{}, map[int][]string{}, map[string][]string{}
	var addresses, uuids []string
	for _, c := range v.OnBus() {
		above := filepath.Join("devices", c.PCI.Root)
		keep[filepath.Join(sys, above)] = true
		for _, bridge := range c.PCI.Bridges {
			above = filepath.Join(above, bridge.String())
			keep[filepath.Join(sys, above)] = true
		}
		group := v.IOMMUGroup(c)
		for _, f := range v.Functions(c) {
			at := f.Address.String()
			way := filepath.Join(above, at)
			keep[filepath.Join(sys, way)] = true
			if err := layOutFunction(sys, way, c, f); err != nil {
				return err
			}
			if err := layOutDriver(sys, way, group, f.Binding); err != nil {
				return err
			}
			addresses, groups[group] = append(addresses, at), append(groups[group], at)
			bound[f.Binding.Driver] = append(bound[f.Binding.Driver], at)
		}
		if err := layOutVGPUs(sys, filepath.Join(above, c.PCI.Address.String()), c, keep, &uuids); err != nil {
			return err
		}
	}
	return errors.Join(
		layOutBound(filepath.Join(sys, "bus/pci/drivers"), bound),
		keepGroups(filepath.Join(sys, "kernel/iommu_groups"), groups),
		keepOnly(filepath.Join(sys, "bus/pci/devices"), "*", addresses),
		keepOnly(filepath.Join(sys, "bus/mdev/devices"), "*", uuids),
		keepDirectories(filepath.Join(sys, "devices"), keep))
}

// layOutFunction creates what /sys has of a function of the GPU's card, at way.
func layOutFunction(sys, way string, c node.GPU, f node.Function) error {
	files := map[string]string{
		"vendor":           fmt.Sprintf("%#04x", hwprofile.Vendor),
		"device":           fmt.Sprintf("%#04x", f.DeviceID),
		"subsystem_vendor": fmt.Sprintf("%#04x", c.PCI.Subsystem&0xffff),
		"subsystem_device": fmt.Sprintf("%#04x", c.PCI.Subsystem>>16),
		"class":            fmt.Sprintf("0x%06x", f.Class),
		"numa_node":        fmt.Sprint(c.PCI.NUMANode),
		"resource":         noResources,
	}
	if f.Address == c.PCI.Address {
		maps.Copy(files, c.State.AER.Files())
		if config := c.ConfigSpace(); config != nil {
			files["config"] = string(config)
		}
	}
	for name, content := range files {
		if err := ensureFile(filepath.Join(sys, way, name), []byte(content+"\n"), 0o444); err != nil {
			return err
		}
	}
	return ensureLink(filepath.Join(sys, "bus/pci/devices", f.Address.String()), filepath.Join("../../..", way))
}

// drivers are those of the simulated kernel.
var drivers = []string{node.NVIDIADriver, node.SoundDriver, node.VFIODriver}

// layOutDriver creates what /sys has of the driver and the IOMMU group of the PCI function at way. Without a group,
// nothing shows them.
func layOutDriver(sys, way string, group int, b node.Binding) error {
	if group == 0 {
		return nil
	}
	up := strings.Repeat("../", strings.Count(way, "/")+1)
	dir, override := filepath.Join(sys, way), cmp.Or(b.Override, "(null)")
	errs := []error{
		ensureFile(filepath.Join(dir, "driver_override"), []byte(override+"\n"), 0o644),
		ensureFile(filepath.Join(dir, "reset"), nil, 0o200),
		ensureLink(filepath.Join(dir, "iommu_group"), fmt.Sprint(up, "kernel/iommu_groups/", group)),
		ensureLink(filepath.Join(sys, "kernel/iommu_groups", fmt.Sprint(group), "devices", filepath.Base(way)),
			filepath.Join("../../../..", way)),
	}
	for _, driver := range drivers {
		for _, file := range []string{"bind", "unbind"} {
			errs = append(errs, ensureFile(filepath.Join(sys, "bus/pci/drivers", driver, file), nil, 0o200))
		}
	}
	if b.Driver == "" {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, "driver")))
	} else {
		errs = append(errs, ensureLink(filepath.Join(dir, "driver"), up+"bus/pci/drivers/"+b.Driver))
	}
	return errors.Join(errs...)
}

// layOutBound creates what the drivers' directories have of their functions.
func layOutBound(dir string, bound map[string][]string) error {
	var errs []error
	for _, driver := range drivers {
		for _, at := range bound[driver] {
			errs = append(errs, ensureLink(filepath.Join(dir, driver, at), filepath.Join("../../devices", at)))
		}
		errs = append(errs, keepOnly(filepath.Join(dir, driver), "*:*", bound[driver]))
	}
	return errors.Join(errs...)
}

// keepGroups removes the IOMMU groups and their members that are not in keep. Group 0 is none.
func keepGroups(dir string, keep map[int][]string) error {
	var names []string
	var errs []error
	for group, members := range keep {
		names = append(names, fmt.Sprint(group))
		errs = append(errs, keepOnly(filepath.Join(dir, fmt.Sprint(group), "devices"), "*", members))
	}
	return errors.Join(append(errs, keepOnly(dir, "*", names))...)
}

// WriteSysfs plays the kernel for a write into a file of sysfs, whose path is absolute: see node.Node.WriteSysfs. What
// follows from it is there when it returns. It needs permission to create device nodes.
func (n *Node) WriteSysfs(file, text string) error {
	inside, err := filepath.Rel(filepath.Join(n.DriverRoot(), "sys"), file)
	if err != nil {
		return err
	}
	if err := n.Node.WriteSysfs(inside, text); err != nil {
		return err
	}
	return n.layingOut(func() error { return n.layOut(Programs{}) })
}

// CountAER counts PCIe errors of a GPU: see node.Node.CountAER. Its part of /sys shows them when it returns.
func (n *Node) CountAER(which, kind string, count int) error {
	if err := n.Node.CountAER(which, kind, count); err != nil {
		return err
	}
	return n.LayOutSysfs()
}

// keepDirectories removes the directories below dir that are not in keep.
func keepDirectories(dir string, keep map[string]bool) error {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || path == dir || keep[path] {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		return fs.SkipDir
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ensureFile makes sure that the file has the content and the mode. It replaces an existing file instead of writing
// into it, because containers may have it mounted.
func ensureFile(path string, content []byte, mode fs.FileMode) error {
	if st, err := os.Lstat(path); err == nil && st.Mode() == mode {
		if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, content) {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // already renamed on success
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if st, err := os.Lstat(path); err == nil && st.IsDir() {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return os.Rename(f.Name(), path)
}

// ensureLink makes sure that the path is a symbolic link to the target.
func ensureLink(path, target string) error {
	if is, err := os.Readlink(path); err == nil && is == target {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// keepOnly removes the files in a directory that match the pattern and are not in keep.
func keepOnly(dir, pattern string, keep []string) error {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return err
	}
	for _, path := range found {
		if name := filepath.Base(path); !slices.Contains(keep, name) && !strings.HasPrefix(name, ".") {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
