// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// Programs are the files that LayOut copies into the driver root.
type Programs struct {
	NvidiaSMI  string // a static program; "" leaves the root without nvidia-smi
	MPSControl string // likewise, nvidia-cuda-mps-control
}

// LayOut makes the driver root of the node what the NVIDIA driver's would be: versioned libraries, nvidia-smi, device nodes,
// the part of /sys that says where the GPUs are, and that of /proc about device nodes for partitions. It may be repeated: it makes what is missing, mends what is wrong, takes
// away what belongs to a machine that is gone, and leaves the rest untouched. It needs the right to make device nodes.
func (n *Node) LayOut(p Programs) error {
	return n.layingOut(func() error { return n.layOut(p) })
}

// Add puts one more GPU like another into the running machine and returns it; the zero address means the next place that is
// free. Its device node and its part of /sys are there before NVML counts it. It needs the right to make device nodes.
func (n *Node) Add(like string, at node.Address) (node.Card, error) {
	var added node.Card
	err := n.layingOut(func() error {
		if err := n.layOut(Programs{}); err != nil {
			return err
		}
		var err error
		if added, err = n.AddCard(like, at, n.layOutGPUs); err != nil {
			return errors.Join(err, n.layOut(Programs{})) // without what was made for it
		}
		return nil
	})
	return added, err
}

// Remove takes a GPU out of the machine for good, with its device node and its part of /sys, as if the machine had been started
// without it. It needs the right to make device nodes.
func (n *Node) Remove(which string) error {
	return n.layingOut(func() error {
		if err := n.RemoveCard(which); err != nil {
			return err
		}
		return n.layOut(Programs{})
	})
}

// LayOutSysfs makes of the driver root only what /sys would say of the GPUs: all that is read of it to know what GPUs there are. It needs
// no rights, but containers cannot be given such GPUs.
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

// layingOut runs f while nobody else changes the driver root.
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

// layOutGPUs makes what there is for each GPU of the view, and takes away what there is for others.
func (n *Node) layOutGPUs(v *node.View) error {
	if err := layOutSysfs(filepath.Join(n.DriverRoot(), "sys"), v); err != nil {
		return err
	}
	if err := layOutProc(n.Proc(), v); err != nil {
		return err
	}
	return n.layOutDevices(v)
}

// layOutProc makes what the driver would show in /proc, as far as anybody asks: the numbers of device nodes for partitions, and the
// version of the kernel module.
func layOutProc(proc string, v *node.View) error {
	return errors.Join(
		ensureFile(filepath.Join(proc, "driver/nvidia-caps/mig-minors"), []byte(v.MigMinors()), 0o444),
		ensureFile(filepath.Join(proc, "driver/nvidia/version"), []byte(v.ModuleVersion()), 0o444),
		ensureFile(filepath.Join(proc, "devices"), []byte(v.KernelDevices()), 0o444))
}

// libraries are the libraries of the driver that programs for computing load, with the number in their soname. The
// management library is not among them: it is the state of the node.
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

// ensureSonames makes the links from a library's soname, and from its plain name as linkers want it, to its file. It returns
// their names: none for a library whose file is named as its soname, which only the driver itself opens.
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

// layOutSysfs makes what /sys would say of the GPUs, as far as anybody asks: the way from the root complex to each GPU, and at
// its end the model and the NUMA node.
func layOutSysfs(sys string, v *node.View) error {
	keep := map[string]bool{}
	var addresses []string
	for _, c := range v.GPUs {
		at := c.PCI.Address.String()
		way := filepath.Join("devices", c.PCI.Root)
		keep[filepath.Join(sys, way)] = true
		for _, step := range append(slices.Clone(c.PCI.Bridges), c.PCI.Address) {
			way = filepath.Join(way, step.String())
			keep[filepath.Join(sys, way)] = true
		}
		for name, content := range map[string]string{
			"vendor":           fmt.Sprintf("%#04x", node.Vendor),
			"device":           fmt.Sprintf("%#04x", c.PCI.DeviceID),
			"subsystem_vendor": fmt.Sprintf("%#04x", c.PCI.Subsystem&0xffff),
			"subsystem_device": fmt.Sprintf("%#04x", c.PCI.Subsystem>>16),
			"class":            "0x030200", // 3D controller
			"numa_node":        fmt.Sprint(c.PCI.NUMANode),
		} {
			if err := ensureFile(filepath.Join(sys, way, name), []byte(content+"\n"), 0o444); err != nil {
				return err
			}
		}
		if err := ensureLink(filepath.Join(sys, "bus/pci/devices", at), filepath.Join("../../..", way)); err != nil {
			return err
		}
		addresses = append(addresses, at)
	}
	return errors.Join(
		keepOnly(filepath.Join(sys, "bus/pci/devices"), "*", addresses),
		keepDirectories(filepath.Join(sys, "devices"), keep))
}

// keepDirectories removes the directories below dir that are not to be kept.
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

// ensureFile makes sure that the file has the content and the mode. It never writes into a file that is there already:
// containers may have it mounted.
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
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
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

// keepOnly removes from a directory what matches the pattern and is not to be kept.
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
