// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

// DefragTaint keeps replacements away from GPUs while pods move.
var DefragTaint = resourceapi.DeviceTaint{Key: "gpu.nvidia.com/defrag",
	Effect: resourceapi.DeviceTaintEffectNoSchedule}

// keepsPods are annotations with which users forbid that a pod is moved, with the value that does.
var keepsPods = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	"karpenter.sh/do-not-disrupt": "true"}

// mover is a pod that holds GPUs.
type mover struct {
	name    string // NAMESPACE/POD, or NAMESPACE/CLAIM
	pod     *corev1.Pod
	owner   types.UID // its controller
	claims  []*resourceapi.ResourceClaim
	devices []MovedDevice // that it has
	on      []*physicalGPU
	memory  int64              // bytes of them
	w       *schedule.Workload // its replacement
	key     string             // equal for pods with equal replacements
	stays   string             // why it cannot move; empty: it can
}

// addMovers fills in the pods that hold GPUs, and finds out which of them can move.
func (d *defragmenter) addMovers() {
	pods := map[types.UID]*corev1.Pod{}
	for _, pod := range d.Pods {
		pods[pod.UID] = pod
	}
	for _, g := range d.gpus {
		for _, h := range g.holders {
			claim := h.Claim.Object
			for _, uid := range consumers(claim) {
				m := d.movers[uid]
				if m == nil {
					m = d.newMover(claim, pods[uid])
					d.movers[uid] = m
				}
				if m.stays == "" && !slices.Contains(m.claims, claim) {
					m.stays = "a claim is reserved for it that it does not name"
				}
			}
		}
	}
}

// consumers returns the UIDs of what uses the claim; its own if nothing does.
func consumers(claim *resourceapi.ResourceClaim) []types.UID {
	var all []types.UID
	for _, of := range claim.Status.ReservedFor {
		all = append(all, of.UID)
	}
	if len(all) == 0 {
		all = append(all, claim.UID)
	}
	return all
}

// newMover returns the pod with all its claims. The pod is nil if it is not known.
func (d *defragmenter) newMover(claim *resourceapi.ResourceClaim, pod *corev1.Pod) *mover {
	m := &mover{name: claim.Namespace + "/" + claim.Name, pod: pod}
	switch {
	case len(claim.Status.ReservedFor) == 0:
		m.stays = "no pod uses the claim"
		return m
	case pod == nil && d.Unknown(cluster.Pods, claim.Namespace) != nil:
		m.stays = "you may not read pods of the namespace"
		return m
	case pod == nil:
		m.stays = "what uses the claim is no pod that exists"
		return m
	}
	m.name = pod.Namespace + "/" + pod.Name
	for name := range resourceclaim.PodClaims(pod) {
		if claim, ok := d.ClaimNamed.Find(pod.Namespace, name); ok {
			m.claims = append(m.claims, claim)
		}
	}
	for _, claim := range m.claims {
		for _, r := range cluster.Results(claim) {
			g := d.gpu(r.Driver, r.Pool, r.Device)
			if g == nil {
				continue
			}
			device := MovedDevice{Device: r.Device, Node: g.Node}
			for _, h := range g.holders {
				if h.Claim.Object == claim && h.Device == r.Device && h.Request == r.Request {
					device.Memory, device.Cores = h.Memory, h.Cores
				}
			}
			m.devices, m.on = append(m.devices, device), append(m.on, g)
			m.memory += device.Memory
		}
	}
	if m.stays = d.staysByItself(m); m.stays == "" {
		m.stays = d.replace(m)
	}
	return m
}

// staysByItself returns why the pod must not be evicted, or is not created again; empty: neither.
func (d *defragmenter) staysByItself(m *mover) string {
	pod, owner := m.pod, metav1.GetControllerOfNoCopy(m.pod)
	switch {
	case pod.DeletionTimestamp != nil || cluster.Finished(pod):
		return "it has ended, or is about to"
	case pod.Spec.NodeName == "":
		return "it has no node yet"
	case cluster.IsStatic(pod):
		return "it is a static pod"
	case owner == nil:
		return "no controller creates it again"
	case owner.Kind == "DaemonSet":
		return "its DaemonSet creates it again on the same node"
	case !d.Jobs && (owner.Kind == "Job" || pod.Spec.RestartPolicy == corev1.RestartPolicyNever ||
		pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure):
		return "it is of a job, for which an eviction is a failure (--with-jobs moves it)"
	case pod.Spec.SchedulingGroup != nil:
		return "it is of a pod group"
	}
	m.owner = owner.UID
	for key, value := range keepsPods {
		if pod.Annotations[key] == value {
			return "an annotation forbids that it is moved"
		}
	}
	// A named claim keeps its devices while a pod uses it, and the new pod of a Deployment does so before the old one
	// has ended. So the new pod gets the devices of the old one.
	if slices.ContainsFunc(pod.Spec.ResourceClaims, func(of corev1.PodResourceClaim) bool {
		return of.ResourceClaimTemplateName == nil
	}) {
		return "a claim of it is not from a template, so the new pod gets the same devices"
	}
	for _, claim := range m.claims {
		if !metav1.IsControlledBy(claim, pod) || len(claim.Status.ReservedFor) > 1 {
			return "another pod uses a claim of it"
		}
	}
	return ""
}

// replace fills in what the controller creates instead of the pod, or returns why that cannot be placed elsewhere.
func (d *defragmenter) replace(m *mover) string {
	pod := m.pod.DeepCopy()
	pod.UID, pod.Spec.NodeName, pod.Status = "", "", corev1.PodStatus{}
	w, err := d.WorkloadOf(pod)
	if err == nil {
		err = w.Validate()
	}
	if err == nil {
		err = w.TooLarge()
	}
	if err != nil || len(w.Claims) == 0 {
		return "the template of a claim of it does not exist, or cannot be used"
	}
	m.w = w
	if what := schedule.Unconsidered(&pod.Spec); len(what) > 0 {
		return what[0] + " not considered, so the new pod might not fit elsewhere"
	}
	for _, claim := range w.Claims {
		for _, p := range cluster.Subrequests(&claim.Spec) {
			switch {
			case p.All():
				return "it asks for all devices of a node"
			case len(cluster.Untolerated([]resourceapi.DeviceTaint{DefragTaint}, *p.Tolerations)) == 0:
				return "a claim of it tolerates every taint, so the new pod may get the same devices"
			}
		}
	}
	_, _, m.key, _ = w.Anonymous(fmt.Sprint("pod ", pod.Name))
	return ""
}

// notes returns what may send replacements elsewhere.
func (t *trial) notes() []string {
	var all []string
	for _, m := range t.movers {
		all = append(all, t.Cluster.Notes(m.w)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
