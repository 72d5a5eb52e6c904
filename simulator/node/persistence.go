// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/gpudra/gpu-dra-driver/pkg/hwprofile"

// Persistence returns the persistence mode of the GPU.
func (c GPU) Persistence() hwprofile.Answer[hwprofile.Switch] {
	if c.State.Persistence == nil {
		return c.Calls.GetPersistenceMode
	}
	return c.Calls.GetPersistenceMode.With(*c.State.Persistence)
}

// SetPersistence sets the persistence mode of the GPU, until a driver starts it anew.
func (n *Node) SetPersistence(which string, mode hwprofile.Switch) error {
	return n.change(which, func(c GPU, s *GPUState) error {
		s.Persistence = &mode
		if was, _ := c.Calls.GetPersistenceMode.Get(); was == mode {
			s.Persistence = nil
		}
		return nil
	})
}
