// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"os"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// AER returns the uncorrectable errors of the function, whatever driver it has. ok is false if the kernel does not
// count them: the function cannot report errors, or the firmware keeps them to itself.
func (b Bus) AER(at gpu.PCIAddress) (errs gpu.AER, ok bool) {
	fatal, hasFatal := b.total(at, "aer_dev_fatal", "TOTAL_ERR_FATAL")
	nonfatal, hasNonfatal := b.total(at, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")
	return gpu.AER{Fatal: fatal, Nonfatal: nonfatal}, hasFatal && hasNonfatal
}

// total reads a line "NAME 12" of a file of the function.
func (b Bus) total(at gpu.PCIAddress, file, name string) (n uint64, ok bool) {
	text, err := os.ReadFile(b.function(at, file))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
