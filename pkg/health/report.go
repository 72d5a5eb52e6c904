// SPDX-License-Identifier: Apache-2.0

package health

// Status is the health of a device for the kubelet.
type Status string

// The states of a device.
const (
	Healthy   Status = "Healthy"
	Unhealthy Status = "Unhealthy"
	// Unknown means that the device is not watched.
	Unknown Status = "Unknown"
)

// DeviceReport is the health of a published device.
type DeviceReport struct {
	Device  string
	Status  Status
	Message string // at most 1,024 bytes
}
