// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"os"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// HostDriver returns the version of NVIDIA's driver on the host of this virtual machine, which the function of a vGPU
// has in its configuration space. It is empty for other functions, and without the right to read all of that space.
func (b Bus) HostDriver(at gpu.PCIAddress) string {
	config, err := os.ReadFile(b.function(at, "config"))
	if err != nil {
		return ""
	}
	return hostDriver(config)
}

// hostDriver looks for the capability "VF" of NVIDIA's hypervisor driver (PCI specification: vendor-specific).
func hostDriver(config []byte) string {
	const size, status, hasList, first, vendorSpecific, headEnd = 256, 0x06, 0x10, 0x34, 0x09, 0x40
	if len(config) < size || config[status]&hasList == 0 {
		return ""
	}
	at := int(config[first])
	for range (size - headEnd) / 4 { // a list with a loop ends, too
		if at < headEnd || at+3 > size {
			return ""
		}
		end := at + int(config[at+2])
		if config[at] == vendorSpecific && end <= size {
			if records, ok := strings.CutPrefix(string(config[at+3:max(at+3, end)]), "VF"); ok {
				return driverRecord(records)
			}
		}
		at = int(config[at+1])
	}
	return ""
}

// driverRecord returns the version in the record of type 0. A record is its type, its length with both, and its data;
// that of type 0 begins with 10 bytes, the version as a C string.
func driverRecord(records string) string {
	const head, version = 2, 10
	for len(records) >= head {
		length := int(records[1])
		if length < head || length > len(records) {
			return ""
		}
		if records[0] == 0 && length >= head+version {
			text, _, _ := strings.Cut(records[head:head+version], "\x00")
			return text
		}
		records = records[length:]
	}
	return ""
}
