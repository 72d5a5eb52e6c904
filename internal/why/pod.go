// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// bypassed says that a pod without its devices is on a node, or "". The scheduler gives no pod a node before, so
// another program did, or the user.
func (c *explainer) bypassed(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodRunning || cluster.Finished(pod) {
		return ""
	}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		missing := errors.Is(err, resourceclaim.ErrClaimNotFound) // Kubernetes generates it later
		if err == nil && name != nil {
			claim, ok := c.ClaimNamed.Find(pod.Namespace, *name)
			missing = ok && claim.Status.Allocation == nil
		}
		if missing {
			return fmt.Sprintf("is on node %s, and its claim %s has no devices: %s", pod.Spec.NodeName,
				pod.Spec.ResourceClaims[i].Name, noScheduler(pod.Spec.NodeName))
		}
	}
	return ""
}

// noScheduler says what is wrong with spec.nodeName in a pod that needs devices, and what to write instead.
func noScheduler(node string) string {
	return fmt.Sprintf("spec.nodeName bypasses the scheduler, which allocates devices; write nodeSelector: {%s: %s} "+
		"instead, and create the pod again", corev1.LabelHostname, node)
}

// unused says which claims of the pod no container can use, and which requests containers name that a claim does not
// have. Such a pod runs, and its containers see no device.
func (c *explainer) unused(pod *corev1.Pod) []string {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	var all []string
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		requests := c.requestsOf(pod, of)
		named := false
		for _, container := range containers {
			for _, use := range container.Resources.Claims {
				if use.Name != of.Name {
					continue
				}
				named = true
				if use.Request != "" && len(requests) > 0 && !slices.Contains(requests, use.Request) {
					all = append(all, fmt.Sprintf("container %s names the request %s of claim %s, which has only %s%s",
						container.Name, use.Request, of.Name, strings.Join(requests, ", "),
						nearest.Hint(use.Request, requests)))
				}
			}
		}
		if named {
			continue
		}
		who := "no container names"
		if len(containers) == 1 {
			who = fmt.Sprintf("container %s does not name", containers[0].Name)
		}
		all = append(all, fmt.Sprintf("%s claim %s in resources.claims, and so gets none of its devices", who, of.Name))
	}
	return all
}

// requestsOf returns the names of the requests of a pod's claim, or of its template. nil: not known.
func (c *explainer) requestsOf(pod *corev1.Pod, of *corev1.PodResourceClaim) []string {
	var requests []resourceapi.DeviceRequest
	name, _, err := resourceclaim.Name(pod, of)
	if err == nil && name != nil {
		if claim, ok := c.ClaimNamed.Find(pod.Namespace, *name); ok {
			requests = claim.Spec.Devices.Requests
		}
	}
	if of.ResourceClaimTemplateName != nil && requests == nil {
		if template, ok := c.TemplateNamed.Find(pod.Namespace, *of.ResourceClaimTemplateName); ok {
			requests = template.Spec.Spec.Devices.Requests
		}
	}
	var all []string
	for _, r := range requests {
		all = append(all, r.Name)
	}
	return all
}

// containerStates says why containers of a pod on a node do not run.
func containerStates(pod *corev1.Pod) []string {
	var all []string
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch waits, ended := s.State.Waiting, s.State.Terminated; {
		case waits != nil && waits.Reason != "" && waits.Reason != "PodInitializing":
			all = append(all, reasonText("container "+s.Name+" waits", waits.Reason, waits.Message))
		case ended != nil && ended.ExitCode != 0:
			all = append(all, reasonText(fmt.Sprintf("container %s has ended with exit code %d", s.Name,
				ended.ExitCode),
				ended.Reason, ended.Message))
		}
	}
	if len(all) == 0 && pod.Status.Reason != "" {
		all = append(all, reasonText("the kubelet says", pod.Status.Reason, pod.Status.Message))
	}
	return all
}

// reasonText joins what the kubelet says.
func reasonText(what, reason, message string) string {
	message = strings.TrimSpace(message)
	text := what + ": " + cmp.Or(reason, message)
	if message != "" && reason != "" {
		text += ": " + message
	}
	return text
}

// placed explains a pod that has its node: what is wrong with its devices and, unless it runs, why the node refuses it
// and what the newest warnings say.
func (c *explainer) placed(r *Answer, pod *corev1.Pod, subject string) {
	states, ends := containerStates(pod), pod.DeletionTimestamp != nil
	waits := ends || pod.Status.Phase == corev1.PodPending || len(states) > 0
	r.Outcome, r.Cause = Placed, subject+" is on node "+pod.Spec.NodeName
	if ends {
		r.Outcome, r.Cause = Ended, subject+" is being deleted on node "+pod.Spec.NodeName
	}
	var claims []*resourceapi.ResourceClaim
	var says []string
	for name := range resourceclaim.PodClaims(pod) {
		claim, ok := c.ClaimNamed.Find(pod.Namespace, name)
		if !ok || claim.Status.Allocation == nil {
			continue
		}
		claims = append(claims, claim)
		text := ""
		for _, d := range claim.Status.Allocation.Devices.Results {
			if problem := Problem(claim, d.Driver, d.Pool, d.Device); problem != "" {
				text = fmt.Sprintf("device %s: %s", d.Device, problem)
			} else if waits && c.Unread[cluster.Slices] == nil && c.Pools[cluster.PoolOfResult(d)] == nil {
				text = fmt.Sprintf("driver %s publishes no devices of pool %s: its plugin does not run there", d.Driver,
					d.Pool)
			}
		}
		if event := c.warning(pod, claim.UID, "claim "+pod.Namespace+"/"+name+" "); waits && (ends || text == "") {
			text = event
		}
		if text != "" {
			says = append(says, "claim "+name+": "+text)
		}
	}
	if text := c.warning(pod, pod.UID, ""); waits && text != "" && len(says) == 0 {
		says = append(says, text)
	}
	if waits && !ends && len(says) > 0 {
		r.Outcome = Waits
	}
	if refusal := fit.Refusal(pod, claims, c.Device); waits && !ends && refusal != nil {
		says = nil // the same in other words
		r.refused(r.Cause+", which refuses it", refusal)
	}
	r.Cause = strings.Join(slices.Concat([]string{r.Cause}, says, c.unused(pod), states), "; ")
	if err := c.Unread[cluster.Events]; err != nil && waits {
		r.Notes = append(r.Notes, fmt.Sprintf("events cannot be read, and may say more: %v", err))
	}
}

// warning returns the newest warning about the object of that UID since the pod was created, or, with a prefix, about
// its node. "": none.
func (c *explainer) warning(pod *corev1.Pod, uid types.UID, prefix string) string {
	text, newest := "", pod.CreationTimestamp.Time
	for _, e := range c.Warnings {
		at, of := e.EventTime.Time, e.InvolvedObject
		if e.LastTimestamp.After(at) { // events of the older API
			at = e.LastTimestamp.Time
		}
		if (of.UID == uid || prefix != "" && of.Name == pod.Spec.NodeName && strings.HasPrefix(e.Message, prefix)) &&
			!at.Before(newest) {
			text, newest = reasonText("its newest warning", e.Reason, e.Message), at
		}
	}
	return text
}

// Problem returns the message of a condition of the claim's device, Ready or Healthy, that is false.
func Problem(c *resourceapi.ResourceClaim, driver, pool, device string) string {
	for _, d := range c.Status.Devices {
		if d.Driver != driver || d.Pool != pool || d.Device != device {
			continue
		}
		for _, condition := range d.Conditions {
			if condition.Status == metav1.ConditionFalse && condition.Type != gpu.IdleCondition {
				return cmp.Or(condition.Message, condition.Reason)
			}
		}
	}
	return ""
}

// Share returns the amounts that a request asks for of a device, such as "memory 5Gi", if they are less than all of it.
// The request is named as in allocation results. "": it asks for none, or for all.
func Share(spec *resourceapi.ResourceClaimSpec, request string, d *resourceapi.Device) string {
	var texts []string
	for _, s := range cluster.Subrequests(spec) {
		if s.Name != request {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.Asked())) {
			amount := s.Asked()[name]
			if has, ok := d.Capacity[name]; !ok || amount.Cmp(has.Value) < 0 {
				texts = append(texts, fmt.Sprintf("%s %s", name, amount.String()))
			}
		}
	}
	return strings.Join(texts, ", ")
}
