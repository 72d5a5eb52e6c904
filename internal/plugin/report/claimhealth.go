// SPDX-License-Identifier: Apache-2.0

package report

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// healthyCondition is the type of the condition that a device of a claim has once it was sick.
const healthyCondition = "Healthy"

// DeviceCondition is a condition of a device of a claim.
type DeviceCondition struct {
	Pool, Device string
	ShareID      types.UID
	Status       metav1.ConditionStatus
	Reason       string
	Message      string
	Since        time.Time
}

// Conditions writes the health of all devices of a claim, one of which was or is sick, to its status.devices. A field
// manager of its own keeps it apart from what Prepare writes.
func (r *Reporter) Conditions(claim sharing.Claim, all []DeviceCondition) {
	r.health.enqueue(r, claim, r.deviceStatuses(healthyCondition, all), time.Now())
}

// Idle writes which devices of a claim are idle, with a field manager of its own. text is that of an event; empty:
// none.
func (r *Reporter) Idle(claim sharing.Claim, all []DeviceCondition, text string) {
	r.idle.enqueue(r, claim, r.deviceStatuses(gpu.IdleCondition, all), time.Now())
	if text != "" {
		r.claim(Events.ClaimIdle, claim, "Monitor", "node %s: %s", r.ReporterConfig.Node, text)
	}
}

// IdleWritten reports whether all that Idle was told is written, or cannot be because the claim is gone.
func (r *Reporter) IdleWritten() bool { return !r.idle.pending() }

func (r *Reporter) deviceStatuses(conditionType string,
	all []DeviceCondition) (devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration) {
	for _, c := range all {
		devices = append(devices, r.deviceStatus(conditionType, c))
	}
	return devices
}
