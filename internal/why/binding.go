// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// bindingTimeout is how long the scheduler waits for binding conditions after the allocation, unless its configuration
// says otherwise.
const bindingTimeout = 10 * time.Minute

// Binding is an allocated device that keeps a pod from its node: binding conditions are missing, or it has failed.
type Binding struct {
	Claim  string `json:"claim"`
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
	// Node is empty if the device is for several nodes.
	Node string `json:"node,omitempty"`
	// Since is when the device was allocated; nil: not known.
	Since *time.Time `json:"since,omitempty"`
	// Missing are the binding conditions that are not true. One that is not set has only its type.
	Missing []metav1.Condition `json:"missing,omitempty"`
	// Failed is a binding failure condition that is true.
	Failed *metav1.Condition `json:"failed,omitempty"`
}

// Bindings returns the devices of an allocated claim that keep pods from their node, without the name of the node. The
// order is that of the scheduler: it waits for the first before it sees that another has failed.
func Bindings(claim *resourceapi.ResourceClaim) []Binding {
	var all []Binding
	for _, r := range claim.Status.Allocation.Devices.Results {
		if len(r.BindingConditions) == 0 {
			continue
		}
		b := Binding{Claim: claim.Name, Driver: r.Driver, Pool: r.Pool, Device: r.Device}
		if at := claim.Status.Allocation.AllocationTimestamp; at != nil {
			b.Since = &at.Time
		}
		var conditions []metav1.Condition
		for _, d := range claim.Status.Devices {
			if d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device {
				conditions = d.Conditions
				break
			}
		}
		for _, name := range r.BindingFailureConditions {
			if meta.IsStatusConditionTrue(conditions, name) {
				b.Failed = meta.FindStatusCondition(conditions, name)
				break
			}
		}
		for _, name := range r.BindingConditions {
			if !meta.IsStatusConditionTrue(conditions, name) {
				b.Missing = append(b.Missing, ptr.Deref(meta.FindStatusCondition(conditions, name),
					metav1.Condition{Type: name}))
			}
		}
		if b.Failed != nil || len(b.Missing) > 0 {
			all = append(all, b)
		}
	}
	return all
}

// bindings returns the devices of the claim that keep pods from their node, with the node.
func (c *explainer) bindings(claim *resourceapi.ResourceClaim) []Binding {
	all := Bindings(claim)
	for i := range all {
		all[i].Node = c.onlyNode(claim.Status.Allocation.NodeSelector)
	}
	return all
}

// onlyNode returns the node that the selector matches, or "" if there are several.
func (c *explainer) onlyNode(selector *corev1.NodeSelector) string {
	if selector == nil {
		return ""
	}
	found := ""
	for _, node := range c.AllNodes {
		if ok, err := schedule.MatchesNode(selector, node); err != nil || !ok {
			continue
		}
		if found != "" {
			return ""
		}
		found = node.Name
	}
	return found
}

// podBindings returns the devices for which the scheduler waits before it binds the pod. reserved says that it has
// chosen the node: then nothing else keeps the pod from it.
func (c *explainer) podBindings(w *schedule.Workload) (all []Binding, reserved bool) {
	if len(w.Claims) > 0 {
		return nil, false // the scheduler allocates all claims first
	}
	for _, claim := range w.Allocated {
		for _, b := range c.bindings(claim) {
			b.Node = cmp.Or(b.Node, w.Pod.Status.NominatedNodeName)
			all = append(all, b)
		}
		reserved = reserved || resourceclaim.IsReservedForPod(w.Pod, claim, true)
	}
	return all, reserved && len(all) > 0
}

// waitsFor fills in the answer about a pod or claim that waits for the devices. The holder has the first of them.
func (r *Answer) waitsFor(devices []Binding, subject, holder string) {
	r.Outcome, r.Places, r.Binding = Waits, nil, devices
	r.Cause = fmt.Sprintf("%s waits: %s has %s", subject, holder, devices[0].text())
	if n := len(devices) - 1; n > 0 {
		r.Cause += fmt.Sprintf("; %d more %s not ready", n, schedule.Plural(n, "device is", "devices are"))
	}
}

func (b Binding) text() string {
	text := fmt.Sprintf("device %s of pool %s of driver %s", b.Device, b.Pool, b.Driver)
	if b.Node != "" {
		text += " for node " + b.Node
	}
	if b.Since != nil {
		text += " since " + b.Since.UTC().Format(time.RFC3339)
	}
	if b.Failed != nil {
		return text + "; its binding failure condition " + conditionText(*b.Failed)
	}
	var missing []string
	for _, m := range b.Missing {
		missing = append(missing, conditionText(m))
	}
	return text + "; its binding condition " + strings.Join(missing, ", and ")
}

// conditionText says what the condition is, and why, as far as its writer says so.
func conditionText(c metav1.Condition) string {
	if c.Status == "" {
		return c.Type + " is not set"
	}
	return reasonText(fmt.Sprintf("%s is %s since %s", c.Type, c.Status,
		c.LastTransitionTime.UTC().Format(time.RFC3339)), c.Reason, c.Message)
}

// bindingAdvice says what the scheduler does next.
func bindingAdvice(b Binding) string {
	if b.Failed != nil {
		return "the scheduler takes the devices of the claim back, unless other pods use it, and tries again"
	}
	text := "the scheduler gives up 10m after the allocation"
	if b.Since != nil {
		text += ", at " + b.Since.UTC().Add(bindingTimeout).Format(time.RFC3339)
	}
	return text + ", unless its bindingTimeout is another, and tries again"
}
