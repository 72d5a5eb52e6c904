// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"net/http"

	"gomodules.xyz/jsonpatch/v2"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
)

// tolerator lets the claims of a pod tolerate the taint of devices that are kept for this pod. The spec of a claim does
// not change later, so every claim of a pod gets the toleration. A claim that users create has no pod.
type tolerator struct{ view *cluster.View }

// Handle adds the toleration to the requests for devices of the driver.
func (t tolerator) Handle(_ context.Context, req webhook.Request) webhook.Response {
	var claim struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              resourceapi.ResourceClaimSpec `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(req.Object.Raw, &claim); err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("claim %s: %w", req.Name, err))
	}
	owner := metav1.GetControllerOfNoCopy(&claim)
	if owner == nil || owner.Kind != "Pod" {
		return webhook.Allowed("")
	}
	token := moves.PreemptionToken(owner.UID)
	toleration := resourceapi.DeviceToleration{Key: token.Key, Operator: resourceapi.DeviceTolerationOpEqual,
		Value: token.Value, Effect: token.Effect}
	var patches []jsonpatch.Operation
	add := func(class string, present []resourceapi.DeviceToleration, at string) {
		switch {
		case !t.view.Ours(class) || len(present) >= resourceapi.DeviceTolerationsMaxLength:
		case present == nil:
			patches = append(patches, jsonpatch.NewOperation("add", at+"/tolerations",
				[]resourceapi.DeviceToleration{toleration}))
		default:
			patches = append(patches, jsonpatch.NewOperation("add", at+"/tolerations/-", toleration))
		}
	}
	for _, s := range cluster.Subrequests(&claim.Spec) {
		at := "exactly"
		if s.Alternative >= 0 {
			at = fmt.Sprintf("firstAvailable/%d", s.Alternative)
		}
		add(*s.Class, *s.Tolerations, fmt.Sprintf("/spec/devices/requests/%d/%s", s.Request, at))
	}
	if len(patches) == 0 {
		return webhook.Allowed("")
	}
	return webhook.Patched("", patches...)
}
