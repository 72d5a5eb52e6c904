// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNodes(t *testing.T) {
	const device = "bus/pci/devices/" + at + "/vfio-dev/vfio7/dev"
	for _, row := range []struct {
		name      string
		functions string
		iommufd   bool
		files     string // device nodes, and files if they end in "!"
		want      string
	}{
		{"a group", given, false, "vfio/42 vfio/vfio", "/dev/vfio/42 c 1:3 rw, /dev/vfio/vfio c 1:3 rw"},
		{"a group without its node", given, false, "vfio/vfio", "find the device nodes of 0000:3b:00.0: " +
			"DEV/vfio/42: no such file or directory"},
		{"no node of VFIO", given, false, "vfio/42", "find the device nodes of 0000:3b:00.0: " +
			"DEV/vfio/vfio: no such file or directory"},
		{"a file instead of a node", given, false, "vfio/42 vfio/vfio!", "find the device nodes of 0000:3b:00.0: " +
			"DEV/vfio/vfio is no character device"},
		{"no group", strings.Replace(given, "42", "-", 1), false, "vfio/vfio",
			"find the device nodes of 0000:3b:00.0: it has no IOMMU group"},
		{"gone", "", false, "vfio/vfio", "find the device nodes of 0000:3b:00.0: not on the PCI bus"},
		{"iommufd", given, true, "vfio/devices/vfio7 iommu ../" + device + "!",
			"/dev/vfio/devices/vfio7 c 1:3 rw, /dev/iommu c 1:3 rw"},
		{"iommufd without its node", given, true, "vfio/devices/vfio7 ../" + device + "!",
			"find the device nodes of 0000:3b:00.0: DEV/iommu: no such file or directory"},
		{"iommufd, and a kernel without VFIO devices", given, true, "iommu", "find the device nodes of 0000:3b:00.0: " +
			"SYS/vfio-dev has 0 devices, want one: is it bound to vfio-pci, and does the kernel have VFIO devices " +
			"(CONFIG_VFIO_DEVICE_CDEV)?"},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, row.functions)
			for name := range strings.FieldsSeq(row.files) {
				if file, ok := strings.CutSuffix(name, "!"); ok {
					k.file("dev/"+file, "")
					continue
				}
				path := filepath.Join(k.dir, "dev", name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("/dev/null", path); err != nil {
					t.Fatal(err)
				}
			}
			b := k.bus()
			nodes, err := b.Nodes(address(t, at), row.iommufd)
			var shown []string
			for _, n := range nodes {
				if n.HostPath != filepath.Join(k.dir, n.Path) {
					t.Errorf("%s is %s on the host", n.Path, n.HostPath)
				}
				shown = append(shown, fmt.Sprintf("%s %s %d:%d %s", n.Path, n.Type, n.Major, n.Minor, n.Permissions))
			}
			got := strings.Join(shown, ", ")
			if err != nil {
				got = strings.NewReplacer(b.Dev, "DEV", b.function(address(t, at), ""), "SYS").Replace(err.Error())
			}
			if got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
			if got, want := b.HasIOMMUFD(), strings.Contains(row.files, "iommu"); got != want {
				t.Errorf("iommufd: got %t, want %t", got, want)
			}
		})
	}
}
