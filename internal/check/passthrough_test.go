// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

func TestVirtualMachines(t *testing.T) {
	p, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	n := newTestNode(t, p)
	sys := t.TempDir() // the simulated one has no IOMMU groups
	must(t, os.CopyFS(sys, os.DirFS(n.config.Machine.Sysfs)))
	n.config.Machine.Sysfs = sys
	if r := check.Run(n.config); len(r.VirtualMachines) > 0 {
		t.Errorf("without IOMMU groups: got %v", r.VirtualMachines)
	}
	functions, err := filepath.Glob(filepath.Join(sys, "bus/pci/devices/*"))
	must(t, err)
	for i, f := range functions {
		must(t, os.Symlink(fmt.Sprint("../../../kernel/iommu_groups/", 41+i), filepath.Join(f, "iommu_group")))
	}
	for _, row := range []struct {
		name, driver, want string
		off                bool
		published          int
	}{
		{"no vfio-pci", "nvidia", "the driver vfio-pci is not registered: load the kernel module vfio-pci", false, 0},
		{"vfio-pci", "vfio-pci", "can have it: IOMMU group 41, driver none", false, 2},
		{"the administrator offers none", "vfio-pci", "nothing is in the way, but virtualMachines.enabled of the chart",
			true, 0},
	} {
		must(t, os.MkdirAll(filepath.Join(sys, "bus/pci/drivers", row.driver), 0o755))
		n.config.Machine.ContainersOnly = row.off
		var out bytes.Buffer
		report := check.Run(n.config)
		must(t, report.Print(&out))
		published := 0
		for _, s := range report.Slices {
			for _, d := range s.Spec.Devices {
				if strings.HasSuffix(d.Name, "-vfio") {
					published++
				}
			}
		}
		if published != row.published {
			t.Errorf("%s: %d devices for virtual machines, want %d", row.name, published, row.published)
		}
		_, section, _ := strings.Cut(out.String(), "\nVirtual machines\n")
		if line, _, _ := strings.Cut(section, "\n"); !strings.Contains(line, row.want) {
			t.Errorf("%s: got %q, want %q in it", row.name, line, row.want)
		}
		if !strings.Contains(section, "none: the kernel shows no types") {
			t.Errorf("%s: got %q, want that it has no vGPUs", row.name, section)
		}
	}
}

func TestVGPUs(t *testing.T) {
	p, err := simulator.BuiltIn("a16-x4")
	must(t, err)
	var out bytes.Buffer
	must(t, check.Run(newTestNode(t, p).config).Print(&out))
	_, section, _ := strings.Cut(out.String(), "\nVirtual machines\n")
	for _, want := range []string{"vGPU: 4x A16-4Q of 4096 MiB\n", "needs a license of NVIDIA's vGPU software\n"} {
		if !strings.Contains(section, want) {
			t.Errorf("got %s, want %s in it", section, want)
		}
	}
}

func TestLicenseOfAVGPU(t *testing.T) {
	p, err := simulator.BuiltIn("vgpu-guest")
	must(t, err)
	n := newTestNode(t, p)
	for _, row := range []struct {
		state             hwprofile.Switch
		problems, license string
	}{
		{hwprofile.Enabled, "", "licensed, NVIDIA RTX Virtual Workstation, until 2027-06-30T12:00:00Z"},
		{hwprofile.Disabled, "vgpu-unlicensed", "unlicensed, NVIDIA RTX Virtual Workstation"},
	} {
		must(t, n.SetLicense("0", row.state))
		r := check.Run(n.config)
		if got := problems(r); got != row.problems {
			t.Errorf("got the problems %q, want %q", got, row.problems)
		}
		if got := r.GPUs[0]; got.VGPULicense != row.license || got.MPSLimits {
			t.Errorf("got the license %q and MPS limits %t, want %q, none", got.VGPULicense, got.MPSLimits,
				row.license)
		}
	}
}
