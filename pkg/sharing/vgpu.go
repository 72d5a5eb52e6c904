// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// AssignedVGPU is a vGPU that a virtual machine gets.
type AssignedVGPU struct {
	Type string `json:"type"`
	// UUID is that of the mediated device; empty: a virtual function, or Plan.WithVGPUs has not chosen it yet.
	UUID string `json:"uuid,omitempty"`
	// Made means that the driver makes it for the claim, and removes it afterwards.
	Made bool `json:"made,omitempty"`
}

// excludes reports whether both cannot exist at once: the driver makes vGPUs of one type at a time on a GPU.
func (v AssignedVGPU) excludes(other AssignedVGPU) bool {
	return v.Type != other.Type && (v.Made || other.Made)
}

// vgpu returns the assigned vGPU; nil: it is none.
func (a Assignment) vgpu() *AssignedVGPU {
	if a.VFIO == nil {
		return nil
	}
	return a.VFIO.VGPU
}

// MakesVGPU reports whether the driver makes the vGPU for the claim, and removes it afterwards.
func (a Assignment) MakesVGPU() bool { return a.vgpu() != nil && a.vgpu().Made }

// WithVGPUs returns the plan with the UUIDs of the vGPUs that it makes. They depend on the claim and the device only,
// and no two claims have the same.
func (p Plan) WithVGPUs(claim types.UID) Plan {
	p.Assignments = slices.Clone(p.Assignments)
	for i, a := range p.Assignments {
		if a.MakesVGPU() {
			vfio, v := *a.VFIO, *a.vgpu()
			v.UUID = uuidOf(string(claim) + "/" + a.Device)
			vfio.VGPU = &v
			p.Assignments[i].VFIO = &vfio
		}
	}
	return p
}

// uuidOf returns a UUID that depends on the text: RFC 9562, version 8.
func uuidOf(text string) string {
	b := sha256.Sum256([]byte(text))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
