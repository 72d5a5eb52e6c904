// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
)

// AER are the errors that the kernel has counted of a GPU's PCI function. A reset of the GPU does not clear them.
type AER struct{ Correctable, Nonfatal, Fatal int }

// AERKinds are the kinds of errors that CountAER accepts.
var AERKinds = []string{"fatal", "nonfatal", "correctable"}

// CountAER counts PCIe errors of the GPU, whatever driver it has. which is its device name or PCI address.
func (n *Node) CountAER(which, kind string, count int) error {
	if !slices.Contains(AERKinds, kind) {
		return fmt.Errorf("PCIe error %q: want one of %v", kind, AERKinds)
	}
	return n.Change(func(s *State) error {
		var names []string
		for _, c := range n.last.OnBus() { // Change has just read it and holds the lock
			names = append(names, c.Name)
			if which != c.Name && which != c.PCI.Address.String() {
				continue
			}
			errs := &s.GPUs[c.entry].AER
			switch kind {
			case "fatal":
				errs.Fatal += count
			case "nonfatal":
				errs.Nonfatal += count
			default:
				errs.Correctable += count
			}
			return nil
		}
		return fmt.Errorf("no GPU %q on the PCI bus, which has %v", which, names)
	})
}

// Files are the files of sysfs about the errors, as the kernel writes them: a line for each kind of error, then their
// sum.
func (a AER) Files() map[string]string {
	file := func(kind, total string, n int) string {
		return fmt.Sprintf("%s 0\n%s %d\n%s %d", "Undefined", kind, n, total, n)
	}
	return map[string]string{
		"aer_dev_correctable": file("RxErr", "TOTAL_ERR_COR", a.Correctable),
		"aer_dev_nonfatal":    file("CmpltTO", "TOTAL_ERR_NONFATAL", a.Nonfatal),
		"aer_dev_fatal":       file("DLP", "TOTAL_ERR_FATAL", a.Fatal),
	}
}
