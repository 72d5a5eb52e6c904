// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// Guest is what a virtual machine knows of its vGPU, a part of a GPU of its host.
type Guest struct {
	HostDriver string  `json:",omitempty"` // NVIDIA's driver on the host, "580.95.05"; empty: unknown
	License    License `json:",omitzero"`
}

// String is for people: "host driver 580.95.05, license: licensed".
func (g *Guest) String() string {
	return "host driver " + g.HostDriver + ", license: " + g.License.String()
}

// License is the license of a vGPU. The zero value: nothing is known.
type License struct {
	State   LicenseState `json:",omitempty"`
	Product string       `json:",omitempty"` // "NVIDIA RTX Virtual Workstation"
	Expiry  time.Time    `json:",omitzero"`  // zero: unknown, or never
}

// LicenseState is published in the attribute "vgpuLicense".
type LicenseState string

// The states of a license.
const (
	LicenseUnknown LicenseState = ""
	Licensed       LicenseState = "licensed"
	Unlicensed     LicenseState = "unlicensed"
)

// String is for people: "licensed, NVIDIA RTX Virtual Workstation, until 2026-12-01T00:00:00Z".
func (l License) String() string {
	text := string(l.State)
	if l.Product != "" {
		text += ", " + l.Product
	}
	if !l.Expiry.IsZero() {
		text += ", until " + l.Expiry.UTC().Format(time.RFC3339)
	}
	return text
}
