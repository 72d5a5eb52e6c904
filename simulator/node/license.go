// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/gpudra/gpu-dra-driver/pkg/hwprofile"

// License is the current answer of GetGridLicensableFeatures.
func (c GPU) License() hwprofile.Answer[hwprofile.License] {
	l, e := c.Calls.GetGridLicensableFeatures.Get()
	if e != "" || c.State.License == nil {
		return c.Calls.GetGridLicensableFeatures
	}
	l.Licensed = *c.State.License
	return c.Calls.GetGridLicensableFeatures.With(l)
}

// SetLicense gives the vGPU its license, or takes it.
func (n *Node) SetLicense(which string, licensed hwprofile.Switch) error {
	return n.change(which, func(c GPU, s *GPUState) error {
		l, e := c.Calls.GetGridLicensableFeatures.Get()
		if e != "" || l.Product == "" {
			return refuse(hwprofile.NotSupported, "%s is no vGPU, and needs no license", c.Name)
		}
		if s.License = &licensed; licensed == l.Licensed {
			s.License = nil
		}
		return nil
	})
}

// ConfigSpace is the PCI configuration space of a vGPU, whose capability "VF" names the driver of the host; nil: the
// GPU is none.
func (c GPU) ConfigSpace() []byte {
	if c.PCI.HostDriver == "" {
		return nil
	}
	const size, capability, version, branch = 256, 0x68, 10, 10
	config := make([]byte, size)
	config[0x06], config[0x34] = 0x10, capability // there is a list, and where it begins
	record := append([]byte{0, 2 + version + branch}, make([]byte, version+branch)...)
	copy(record[2:2+version], c.PCI.HostDriver)
	body := append([]byte("VF"), record...)
	copy(config[capability:], append([]byte{0x09, 0, byte(3 + len(body))}, body...))
	return config
}
