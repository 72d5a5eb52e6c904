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
	for _, row := range []struct{ name, driver, want string }{
		{"no vfio-pci", "nvidia", "the driver vfio-pci is not registered: load the kernel module vfio-pci"},
		{"vfio-pci", "vfio-pci", "can have it: IOMMU group 41, driver none"},
	} {
		must(t, os.MkdirAll(filepath.Join(sys, "bus/pci/drivers", row.driver), 0o755))
		var out bytes.Buffer
		must(t, check.Run(n.config).Print(&out))
		_, section, _ := strings.Cut(out.String(), "\nVirtual machines\n")
		if line, _, _ := strings.Cut(section, "\n"); !strings.Contains(line, row.want) {
			t.Errorf("%s: got %q, want %q in it", row.name, line, row.want)
		}
	}
}
