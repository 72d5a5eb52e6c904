// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// fieldManager is the field manager of what this controller writes into claims.
const fieldManager = "gpu-remote-controller"

// readyCondition says in a claim whether its device can be used.
const readyCondition = "Ready"

// condition is a condition of a device in a claim.
type condition struct {
	kind    string
	status  metav1.ConditionStatus
	reason  string
	message string
}

// state is what the status of a claim says about all of its remote devices.
type state struct {
	conditions []condition // none: the status stays as it is
	data       *remote.Session
	event      *event.Kind // with the message of the first condition
}

// stateOf decides what the claim is told.
func (c *Controller) stateOf(claim *resourceapi.ResourceClaim) state {
	if why := c.refusal(claim); why != "" {
		return state{event: &Events.SessionRefused, conditions: []condition{
			{remote.SessionReady, metav1.ConditionFalse, Events.SessionRefused.Reason, why},
			{readyCondition, metav1.ConditionFalse, Events.SessionRefused.Reason, why}}}
	}
	device := c.results(claim)[0].Device
	s := c.servers[device]
	if s.lost(c.called) { // not now: writing the status of many claims takes longer than patience
		why := fmt.Sprintf("the server of %s is gone", device)
		if s.pod != nil {
			why = fmt.Sprintf("server pod %s/%s does not answer", s.pod.Namespace, s.pod.Name)
		}
		return state{event: &Events.ServerLost, conditions: []condition{
			{remote.ServerLost, metav1.ConditionTrue, Events.ServerLost.Reason, why},
			{remote.SessionReady, metav1.ConditionFalse, Events.ServerLost.Reason, why},
			{readyCondition, metav1.ConditionFalse, Events.ServerLost.Reason, why}}}
	}
	if s.pod == nil || !slices.Contains(s.admitted, claim.UID) {
		return state{}
	}
	return state{conditions: []condition{{remote.SessionReady, metav1.ConditionTrue, "Admitted", ""},
		{readyCondition, metav1.ConditionTrue, "Admitted", ""}},
		data: &remote.Session{Engine: c.text(s, "remoteEngine"), Address: c.caller.address(s.pod), Server: s.pod.UID}}
}

// report writes what the claim is told, unless that has been written.
func (c *Controller) report(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	s := c.stateOf(claim)
	if len(s.conditions) == 0 {
		return nil
	}
	text := fmt.Sprintf("%v %v", s.conditions, s.data)
	for _, r := range c.results(claim) {
		text += fmt.Sprintf(" %s/%v", r.Device, ptr.Deref(r.ShareID, ""))
	}
	if c.told[claim.UID] == text {
		return nil
	}
	if err := c.write(ctx, claim, s); err != nil {
		return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.told[claim.UID] = text
	return nil
}

// write writes the status of the claim, and the event. It ignores a claim that is gone.
func (c *Controller) write(ctx context.Context, claim *resourceapi.ResourceClaim, s state) error {
	api := c.client.ResourceV1().ResourceClaims(claim.Namespace)
	live, err := api.Get(ctx, claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != claim.UID {
		return nil
	}
	if err != nil {
		return err
	}
	var devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration
	for _, r := range c.results(claim) {
		d := resourceapply.AllocatedDeviceStatus().WithDriver(r.Driver).WithPool(r.Pool).WithDevice(r.Device)
		if r.ShareID != nil {
			d.WithShareID(string(*r.ShareID))
		}
		var told []metav1.Condition
		if status := cluster.DeviceStatus(live, &r); status != nil {
			told = status.Conditions
		}
		for _, w := range s.conditions {
			since := metav1.NewTime(c.now())
			if before := meta.FindStatusCondition(told, w.kind); before != nil && before.Status == w.status {
				since = before.LastTransitionTime
			}
			d.WithConditions(metaapply.Condition().WithType(w.kind).WithStatus(w.status).WithReason(w.reason).
				WithMessage(w.message).WithLastTransitionTime(since))
		}
		if s.data != nil {
			data, err := s.data.Encode()
			if err != nil {
				return err
			}
			d.WithData(*data)
		}
		devices = append(devices, d)
	}
	_, err = api.ApplyStatus(ctx, resourceapply.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).
		WithStatus(resourceapply.ResourceClaimStatus().WithDevices(devices...)),
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || s.event == nil {
		return err
	}
	return c.tell(ctx, *s.event, event.ClaimReference(claim.Namespace, claim.Name, claim.UID), s.conditions[0].message)
}
