// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
)

// A GPU that has become sick since it was allocated is given to no new claim. A claim that has it keeps it.
func TestUnfitGPU(t *testing.T) {
	w := newFixture(t)
	asked, sick := []string(nil), errors.New("it is sick")
	prepare := func(name string, change func(*resourceapi.DeviceRequestAllocationResult)) error {
		p := w.preparer()
		p.Unfit = func(device string, tolerated []resourceapi.DeviceToleration) error {
			asked = append(asked, fmt.Sprint(device, len(tolerated)))
			if len(tolerated) > 0 {
				return nil
			}
			return sick
		}
		c := claim(name, "gpu-1")
		change(&c.Status.Allocation.Devices.Results[0])
		_, err := p.Prepare(w.context(), c)
		return err
	}
	asIs := func(*resourceapi.DeviceRequestAllocationResult) {}
	if err := prepare("a", asIs); !errors.Is(err, sick) {
		t.Errorf("a new claim: got %v, want %v", err, sick)
	}
	if _, err := w.preparer().Records.Get(claim("a", "").UID); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("the record of a refused claim: got %v, want none", err)
	}
	tolerates := func(r *resourceapi.DeviceRequestAllocationResult) {
		r.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	}
	if err := prepare("b", tolerates); err != nil {
		t.Errorf("a claim that tolerates the taint: %v", err)
	}
	asked = nil
	if err := prepare("b", asIs); err != nil || asked != nil {
		t.Errorf("a claim that has the GPU: got %v after a look at %v, want neither", err, asked)
	}
	if err := prepare("c", func(r *resourceapi.DeviceRequestAllocationResult) {
		r.AdminAccess = ptr.To(true)
	}); errors.Is(err, sick) || asked != nil {
		t.Errorf("admin access: got %v after a look at %v", err, asked)
	}
}
