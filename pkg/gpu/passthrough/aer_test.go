// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

func TestAER(t *testing.T) {
	const fatal, nonfatal = "Undefined 0\nDLP 2\nTLP 0\nTOTAL_ERR_FATAL 2\n", "CmpltTO 12\nTOTAL_ERR_NONFATAL 12\n"
	for _, row := range []struct {
		name, fatal, nonfatal string
		want                  gpu.AER
		ok                    bool
	}{
		{"both are counted", fatal, nonfatal, gpu.AER{Fatal: 2, Nonfatal: 12}, true},
		{"the kernel does not count", "", "", gpu.AER{}, false},
		{"it counts one kind only", fatal, "", gpu.AER{Fatal: 2}, false},
		{"no total", "DLP 2\n", nonfatal, gpu.AER{Nonfatal: 12}, false},
		{"no number", "TOTAL_ERR_FATAL many\n", nonfatal, gpu.AER{Nonfatal: 12}, false},
	} {
		k := newTree(t, given)
		for file, text := range map[string]string{"aer_dev_fatal": row.fatal, "aer_dev_nonfatal": row.nonfatal} {
			if text != "" {
				k.file("bus/pci/devices/"+at+"/"+file, text)
			}
		}
		pci, err := gpu.ParsePCIAddress(at)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := k.bus().AER(pci); got != row.want || ok != row.ok {
			t.Errorf("%s: got %+v, %t, want %+v, %t", row.name, got, ok, row.want, row.ok)
		}
	}
}
