// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Whole is one spec with all that containers with these devices need, what the driver's own spec has among it: for people to look at,
// and for a runtime without Kubernetes. The qualified name of a device is Kind, "=" and its name.
func Whole(driver string, common gpu.Access, devices []Device) (*specs.Spec, error) {
	return render(vendorPrefix+driver+"/"+claimClass, common, devices)
}
