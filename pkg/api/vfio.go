// SPDX-License-Identifier: Apache-2.0

package api

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// IOMMU says which device nodes the container of a virtual machine gets.
type IOMMU struct {
	PreferIOMMUFD bool // those of iommufd, if the kernel has them
	NoAPIDevice   bool // without /dev/vfio/vfio and /dev/iommu
}

// Values of backendPolicy.
const (
	LegacyOnly    = "LegacyOnly"
	PreferIOMMUFD = "PreferIommuFD"
)

// vfioJSON is the JSON form of a DeviceConfig for virtual machines.
type vfioJSON struct {
	APIVersion  string            `json:"apiVersion" doc:"always resource.nvidia.com/v1beta1"`
	Kind        string            `json:"kind" doc:"the name of the kind"`
	Environment map[string]string `json:"environment,omitempty" doc:"variables for every container that uses the claim; those that the driver sets itself are refused"`
	IOMMU       iommuJSON         `json:"iommu" doc:"the device nodes of the container"`
}

type iommuJSON struct {
	BackendPolicy   string `json:"backendPolicy" doc:"LegacyOnly (default): the nodes of the IOMMU group; PreferIommuFD: those of iommufd, if the kernel has them; on a machine that has only the others, it gets those"`
	EnableAPIDevice *bool  `json:"enableAPIDevice,omitempty" doc:"false: without /dev/vfio/vfio and /dev/iommu, for programs that get those elsewhere; default: true"`
}

// decodeVFIO decodes a configuration of this kind. The error is about a field of the wrong type.
func decodeVFIO(raw []byte, root *field.Path) (DeviceConfig, field.ErrorList, error) {
	var in vfioJSON
	strict, err := kjson.UnmarshalStrict(raw, &in)
	errs := unknownFields(strict, root, reflect.TypeFor[vfioJSON]())
	policies := []string{LegacyOnly, PreferIOMMUFD}
	if p := in.IOMMU.BackendPolicy; p != "" && !slices.Contains(policies, p) {
		errs = append(errs, field.NotSupported(root.Child("iommu", "backendPolicy"), p, policies))
	}
	return DeviceConfig{Kind: in.Kind, Environment: in.Environment, IOMMU: IOMMU{
		PreferIOMMUFD: in.IOMMU.BackendPolicy == PreferIOMMUFD,
		NoAPIDevice:   in.IOMMU.EnableAPIDevice != nil && !*in.IOMMU.EnableAPIDevice}}, errs, err
}
