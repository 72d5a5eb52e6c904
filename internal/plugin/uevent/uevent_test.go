// SPDX-License-Identifier: Apache-2.0

package uevent

import (
	"strings"
	"testing"
)

// TestConcernsGPU: the test of simctl has the kernel send events to Watch.
func TestConcernsGPU(t *testing.T) {
	for _, row := range []struct {
		name  string
		event string
		want  bool
	}{
		{"a GPU gets its driver", "bind@/devices/pci0000:00/0000:1b:00.0 ACTION=bind SUBSYSTEM=pci DRIVER=nvidia " +
			"PCI_CLASS=30200 PCI_ID=10DE:2330", true},
		{"a GPU is removed", "remove@/devices/x ACTION=remove SUBSYSTEM=pci PCI_ID=10DE:2330", true},
		{"a GPU has no driver yet", "add@/devices/x ACTION=add SUBSYSTEM=pci PCI_ID=10DE:2330", false},
		{"a GPU is given to a virtual machine", "bind@/devices/x ACTION=bind SUBSYSTEM=pci DRIVER=vfio-pci " +
			"PCI_ID=10DE:2330", false},
		{"another card is removed", "remove@/devices/x ACTION=remove SUBSYSTEM=pci PCI_ID=8086:1572", false},
		{"a short identity", "remove@/devices/x ACTION=remove SUBSYSTEM=pci PCI_ID=1", false},
		{"another bus", "remove@/devices/x ACTION=remove SUBSYSTEM=usb PCI_ID=10DE:2330", false},
	} {
		if got := concernsGPU(strings.ReplaceAll(row.event+" ", " ", "\x00")); got != row.want {
			t.Errorf("%s: got %t, want %t", row.name, got, row.want)
		}
	}
}
