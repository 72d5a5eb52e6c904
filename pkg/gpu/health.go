// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// EventKind is a kind of event that NVML reports.
type EventKind string

const (
	// EventXID is an error of the GPU or of a program on it. Event.XID has its number.
	EventXID EventKind = "XID"
	// EventECCDouble is an uncorrected memory error.
	EventECCDouble EventKind = "ECCDoubleBit"
	// EventLost is the loss of a GPU, perhaps of an unknown one.
	EventLost EventKind = "Lost"
	// EventOther is another event: the GPU should be asked for its health.
	EventOther EventKind = "Other"
)

// LeavesBus is how long a GPU that is removed may be on the PCI bus after its driver has let go of it.
const LeavesBus = time.Second

// Event is what NVML reports about a GPU.
type Event struct {
	GPU  UUID
	Kind EventKind
	XID  uint64 // of EventXID
	// Instance is the partition that the event is about; nil: the whole GPU.
	Instance *Instance
	At       time.Time
}

// Instance identifies an existing partition of a GPU, as NVML does.
type Instance struct{ GPU, Compute int }

// Health is what a GPU answers about itself when it is asked. The zero value is that of a GPU that reports no problem.
type Health struct {
	// At is when the GPU was asked.
	At time.Time
	// RecoveryAction is what the driver says must be done; RecoveryUnknown if it does not say.
	RecoveryAction RecoveryAction
	// RowsPending and RowsFailed: the GPU must be reset to replace damaged rows of memory, or has none left for it.
	RowsPending, RowsFailed bool
	// RowsUnknown: the GPU does not say, as while it has MIG instances.
	RowsUnknown bool
	// PagesPending: the GPU must be reset to retire damaged pages of memory.
	PagesPending bool
	// LinksUp are the active NVLinks; nil: unknown, as in MIG mode, which switches NVLink off.
	LinksUp []int
	// LinkPeers are the GPUs at the other ends of active NVLinks, by link. A link to a switch has none.
	LinkPeers map[int]PCIAddress
	// Fabric says what is wrong with the GPU's registration with the NVLink fabric; empty: nothing.
	Fabric string
	// FabricUnknown: the GPU registers with the fabric. It is too soon to say whether it will succeed.
	FabricUnknown bool
	// Slowdown says why the hardware slows the GPU down to protect it; empty: it does not, or the driver does not say.
	Slowdown string
	// Link is the GPU's PCIe link, and LinkMax the best that NVML says the GPU and its slot can have. Zero: unknown.
	Link, LinkMax PCIeLink
	// Resting: the GPU is in a performance state in which it may reduce its PCIe link.
	Resting bool
	// ECC says whether the GPU corrects errors of its memory.
	ECC ECCMode
	// Slot is where the GPU is, and Others are the answers of the other GPUs of the model in the machine.
	Slot   PCIAddress
	Others []Health
	// License is the state of the license of a vGPU.
	License LicenseState
	// ComputeMode is the present mode. If a claim holds the GPU, Claimed, it may be the claim's.
	ComputeMode ComputeMode
	Claimed     bool
	// NodeMissing is the device node that has vanished; empty: none.
	NodeMissing string
	// NotRestored: what an ended claim has changed on the GPU could not be undone.
	NotRestored bool
}

// PCIeLink is the state of a PCIe link. Its zero value, and a zero in it, is unknown.
type PCIeLink struct {
	Width      int `json:"width,omitempty"`      // lanes
	Generation int `json:"generation,omitempty"` // 5 is 32 GT/s
}

// ECCMode is whether a GPU corrects errors of its memory. The zero value is that of a GPU that does not say.
type ECCMode string

// The modes.
const (
	ECCEnabled  ECCMode = "Enabled"
	ECCDisabled ECCMode = "Disabled"
)

// AER are the uncorrectable errors that the kernel has counted of a PCIe function since it found it (Advanced Error
// Reporting).
type AER struct {
	Fatal    uint64 `json:"fatal,omitempty"`    // the link was not reliable any more
	Nonfatal uint64 `json:"nonfatal,omitempty"` // the link was
}

// RecoveryAction is what NVIDIA's driver says must be done with a GPU (nvml.h: nvmlDeviceGpuRecoveryAction_t).
type RecoveryAction string

// The recovery actions. RecoveryUnknown means that the driver does not say: those before R570 do not.
const (
	RecoveryUnknown       RecoveryAction = ""
	RecoveryNone          RecoveryAction = "None"
	RecoveryReset         RecoveryAction = "Reset"
	RecoveryReboot        RecoveryAction = "Reboot"
	RecoveryDrainP2P      RecoveryAction = "DrainP2P"
	RecoveryDrainAndReset RecoveryAction = "DrainAndReset"
	RecoveryIMEXDomain    RecoveryAction = "RecoverIMEXDomain"
	RecoveryBusReset      RecoveryAction = "BusReset"
	RecoverySystemReboot  RecoveryAction = "SystemReboot"
)

// Needed reports whether the driver asks for a recovery.
func (a RecoveryAction) Needed() bool { return a != RecoveryNone && a != RecoveryUnknown }

// Taint keeps claims that do not tolerate it away from a device.
type Taint struct {
	Key    string // "gpu.nvidia.com/xid"
	Value  string
	Effect string // a DeviceTaintEffect of Kubernetes: None, NoSchedule or NoExecute
	Since  time.Time
}
