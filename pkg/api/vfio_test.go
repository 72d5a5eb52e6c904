// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// vfio returns a configuration of a GPU for virtual machines with these fields.
func vfio(fields string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig",` + fields + `}`
}

func TestIOMMU(t *testing.T) {
	for _, row := range []struct {
		name, fields string
		want         IOMMU
	}{
		{"nothing is asked for", `"iommu":{}`, IOMMU{}},
		{"the nodes of the group", `"iommu":{"backendPolicy":"LegacyOnly","enableAPIDevice":true}`, IOMMU{}},
		{"iommufd", `"iommu":{"backendPolicy":"PreferIommuFD"}`, IOMMU{PreferIOMMUFD: true}},
		{"without the nodes that belong to no GPU", `"iommu":{"enableAPIDevice":false}`, IOMMU{NoAPIDevice: true}},
	} {
		got, err := Decode([]byte(vfio(row.fields)), field.NewPath("p"))
		if err != nil || got.IOMMU != row.want || got.Kind != KindVfioDeviceConfig {
			t.Errorf("%s: got %+v, %v, want %+v", row.name, got, err, row.want)
		}
	}
}
