// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProfileName is the name of a GPU's MIG profile as NVIDIA writes it, "1g.10gb+me". The profile is given by NVML's number and by what
// NVML says of it. The library must be initialised.
func ProfileName(library nvmllib.Interface, handle nvmllib.Device, number int, info nvmllib.GpuInstanceProfileInfo) (string, error) {
	n := Node{Config: Config{Library: library}, devices: device.New(library)}
	return n.profileName(handle, number, info)
}
