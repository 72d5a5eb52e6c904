// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// Discovery is what one reading of all GPUs of a machine has found.
type Discovery struct {
	// Devices are the GPUs in NVML's order. Those that cannot be read are included as lost if their PCI address is
	// known.
	Devices []Device
	// Unlisted are the GPUs on the PCI bus that NVML does not list, of which only the place and VFIO are known. Bound
	// says whether vfio-pci has them.
	Unlisted []Device
	// Broken has one error for each GPU that cannot be read.
	Broken []error
	// Answered is when each GPU last answered.
	Answered map[UUID]time.Time
	// Health is what each GPU that answers says about itself.
	Health map[UUID]Health
	// AER are the errors of each GPU on the PCI bus, unless the kernel does not count them.
	AER map[PCIAddress]AER
	// Unwatched has the GPUs whose events are not watched, with the reason.
	Unwatched map[UUID]string
	// Persistent reports whether all GPUs keep their settings while NVML is closed.
	Persistent bool
}
