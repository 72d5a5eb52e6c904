// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestGPUs(t *testing.T) {
	const gpu = "0000:3b:00.0 10de:26b5 030200 nvidia 42\n"
	const shown = `0000:3b:00.0 group 42: 0 10de:26b5 030200 "nvidia" `
	noVFIO := "the driver vfio-pci is not registered: load the kernel module vfio-pci"
	shared := func(at, driver string) string {
		return at + " is in the same IOMMU group 42 and has the driver " + driver +
			": unbind it, or isolate the slots (ACS) in the firmware"
	}
	for _, row := range []struct {
		name, functions, want string
		registered            string
	}{
		{"no PCI bus", "", "", ""},
		{"a group of its own", gpu, shown, Driver},
		{"a display of another vendor, and another device of NVIDIA",
			"0000:00:02.0 8086:4680 030000 i915 1\n0000:3c:00.0 10de:a2dc 020000 mlx5_core 2\n", "", Driver},
		{"ascending, not as the directory has them",
			"0001:01:00.0 10de:26b5 030200 nvidia 3\n" +
				"0000:ff:00.0 10de:26b5 030200 - 2\n10000:01:00.0 10de:26b5 030200 - 1\n",
			`0000:ff:00.0 group 2: 0 10de:26b5 030200 "" ` + "\n" +
				`0001:01:00.0 group 3: 0 10de:26b5 030200 "nvidia" ` + "\n" +
				`10000:01:00.0 group 1: 0 10de:26b5 030200 "" `, Driver},
		{"vfio-pci is not registered", gpu, shown + noVFIO, ""},
		{"no IOMMU", "0000:3b:00.0 10de:26b5 030200 nvidia -\n", `0000:3b:00.0 group -1: 0 10de:26b5 030200 "nvidia" ` +
			"it has no IOMMU group: enable the IOMMU in the firmware and on the kernel's command line", Driver},
		{"all functions of the card", gpu + "0000:3b:00.1 10de:10f8 040300 snd_hda_intel 42\n" +
			"0000:3b:00.2 10de:1ad8 0c0330 xhci_hcd 42\n0000:3b:00.3 10de:1ad9 0c8000 - 42\n",
			strings.TrimSuffix(shown, " ") + ` 1 10de:10f8 040300 "snd_hda_intel" 2 10de:1ad8 0c0330 "xhci_hcd"` +
				` 3 10de:1ad9 0c8000 "" `, Driver},
		{"functions of the card in groups of their own", gpu + "0000:3b:00.1 10de:10f8 040300 snd_hda_intel 43\n",
			strings.TrimSuffix(shown, " ") + ` 1 10de:10f8 040300 "snd_hda_intel" `, Driver},
		{"bridges, with the driver of ports or none", gpu + "0000:3a:00.0 8086:347a 060400 pcieport 42\n" +
			"0000:3a:01.0 8086:347a 060400 - 42\n0000:00:00.0 8086:09a2 060000 - 42\n", shown, Driver},
		{"a bridge whose driver keeps the group", gpu + "0000:3a:00.0 1b36:0001 060400 shpchp 42\n",
			shown + shared("0000:3a:00.0", "shpchp"), Driver},
		{"a bridge as a function of the card, which VFIO does not take", gpu +
			"0000:3b:00.1 10de:0001 060400 pcieport 42\n", shown, Driver},
		{"a bridge to ISA", gpu + "0000:00:1f.0 8086:a382 060100 lpc_ich 42\n",
			shown + shared("0000:00:1f.0", "lpc_ich"), Driver},
		{"a network card in use", gpu + "0000:3c:00.0 8086:10d3 020000 e1000e 42\n",
			shown + shared("0000:3c:00.0", "e1000e"), Driver},
		{"a network card in another group", gpu + "0000:3c:00.0 8086:10d3 020000 e1000e 43\n", shown, Driver},
		{"others without a driver, or with one that leaves DMA alone", gpu + "0000:3c:00.0 8086:10d3 020000 - 42\n" +
			"0000:3c:00.1 8086:10d3 020000 vfio-pci 42\n0000:3c:00.2 8086:10d3 020000 pci-stub 42\n" +
			"0000:3c:00.3 15b3:101e 020000 mlx5_vfio_pci 42\n", shown, Driver},
		{"two GPUs in a group", gpu + "0000:af:00.0 10de:26b5 030200 vfio-pci 42\n",
			shown + "the GPU 0000:af:00.0 is in the same IOMMU group 42, which one virtual machine has as a whole\n" +
				`0000:af:00.0 group 42: 0 10de:26b5 030200 "vfio-pci" ` +
				"the GPU 0000:3b:00.0 is in the same IOMMU group 42, which one virtual machine has as a whole", Driver},
		{"an NVSwitch", gpu + "0000:05:00.0 10de:22a3 068000 nvidia-nvswitch 7\n",
			shown + "the machine has an NVSwitch (0000:05:00.0): its NVLink fabric would have to be partitioned, " +
				"so only all GPUs together could be given to a virtual machine", Driver},
		{"another bridge of another vendor", gpu + "0000:05:00.0 8086:22a3 068000 x 7\n", shown, Driver},
		{"virtual functions", "0000:3b:00.0 10de:26b5 030200 nvidia 42 virtfn0\n" +
			"0000:3b:00.4 10de:26b5 030200 - 43 physfn\n", shown + "it has virtual functions (SR-IOV)", Driver},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, row.functions, strings.Fields(row.registered)...)
			got, err := k.bus().GPUs()
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.TrimSuffix(text(got), "\n"), row.want; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// Which of the kernel's entries of a driver are functions.
func TestBoundToNVIDIA(t *testing.T) {
	k := newTree(t, "", "nvidia", Driver) // with the files bind and unbind
	require := func(what, want string) {
		t.Helper()
		var names []string
		for _, entry := range k.bus().BoundToNVIDIA() {
			names = append(names, filepath.Base(entry))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	require("no GPU", "")
	for _, entry := range []string{"nvidia/10000:01:00.0", "nvidia/0000:b8:00.0", Driver + "/0000:3b:00.0"} {
		k.file("bus/pci/drivers/"+entry, "")
	}
	require("two, and one of vfio-pci", "0000:b8:00.0 10000:01:00.0")
	k.remove("bus/pci/drivers/nvidia")
	require("the driver is unloaded", "")
}

// A function may vanish while the bus is read, and a bus that cannot be read is no empty one.
func TestUnreadable(t *testing.T) {
	k := newTree(t, "0000:3b:00.0 10de:26b5 030200 nvidia 42\n0000:af:00.0 10de:26b5 030200 nvidia 43\n")
	k.remove("bus/pci/devices/0000:3b:00.0/class")
	got, err := k.bus().GPUs()
	if err != nil || len(got) != 1 || got[0].Group != 43 {
		t.Errorf("got %+v, %v, want the other GPU", got, err)
	}
	k.remove("bus/pci/devices")
	k.file("bus/pci/devices", "")
	if got, err := k.bus().GPUs(); err == nil {
		t.Errorf("got %+v, want an error", got)
	}
}
