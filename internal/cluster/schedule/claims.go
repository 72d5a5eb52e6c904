// SPDX-License-Identifier: Apache-2.0

package schedule

import (
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
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// WorkloadOf returns the pod with its claims. An error says why the scheduler does not look at devices yet, or is a
// LackError.
func (c *Cluster) WorkloadOf(pod *corev1.Pod) (*Workload, error) {
	w := &Workload{Pod: pod}
	if n := len(pod.Spec.ResourceClaims); n > maxSubrequests {
		return nil, fmt.Errorf("it has %d claims, and is explained with at most %d", n, maxSubrequests)
	}
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		name, mustCheckOwner, err := resourceclaim.Name(pod, podClaim)
		if errors.Is(err, resourceclaim.ErrClaimNotFound) {
			if err := c.fromTemplate(w, pod, podClaim); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // the pod needs no claim for it
		}
		claim, ok := c.ClaimNamed.Find(pod.Namespace, *name)
		switch {
		case !ok:
			if err := c.Unknown(cluster.Claims, pod.Namespace); err != nil {
				return nil, &LackError{cluster.Claims, err}
			}
			if !mustCheckOwner {
				return nil, c.missingClaim(pod.Namespace, *name)
			}
			// It was created after the claims were read, or it was deleted and is created again.
			if err := c.fromTemplate(w, pod, podClaim); err != nil {
				return nil, err
			}
			continue
		case claim.DeletionTimestamp != nil:
			return nil, errors.New(Deleted(claim))
		case len(claim.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize &&
			!resourceclaim.IsReservedForPod(pod, claim, true):
			return nil, fmt.Errorf("claim %s is used by %d pods already, which is the limit", *name,
				len(claim.Status.ReservedFor))
		}
		if mustCheckOwner {
			if err := resourceclaim.IsForPod(pod, claim, true); err != nil {
				return nil, err
			}
		}
		if claim.Status.Allocation != nil {
			w.Allocated = append(w.Allocated, claim)
			continue
		}
		o := c.OriginOf(claim)
		if podClaim.ResourceClaimTemplateName != nil { // the claim cannot be changed, and comes from there
			o.Object = "ResourceClaimTemplate " + pod.Namespace + "/" + *podClaim.ResourceClaimTemplateName
		}
		w.Claims, w.Origins = append(w.Claims, claim), append(w.Origins, o)
	}
	if claim := c.extendedClaim(pod); claim != nil {
		w.Allocated = append(w.Allocated, claim)
		return w, nil
	}
	c.addExtended(w)
	return w, nil
}

// extendedClaim returns the claim that the scheduler has made for the pod's extended resources, if it has devices: the
// scheduler has ended, or the pod was not bound, before the pod was on a node. Then the pod keeps them.
func (c *Cluster) extendedClaim(pod *corev1.Pod) *resourceapi.ResourceClaim {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil {
		return nil
	}
	claim, ok := c.ClaimNamed.Find(pod.Namespace, status.ResourceClaimName)
	if !ok || claim.Status.Allocation == nil || resourceclaim.IsForPod(pod, claim, false) != nil {
		return nil
	}
	return claim
}

// fromTemplate adds the claim that Kubernetes will generate.
func (c *Cluster) fromTemplate(w *Workload, pod *corev1.Pod, podClaim *corev1.PodResourceClaim) error {
	name := *podClaim.ResourceClaimTemplateName
	template, ok := c.TemplateNamed.Find(pod.Namespace, name)
	if !ok {
		if err := c.Unknown(cluster.Templates, pod.Namespace); err != nil {
			return &LackError{cluster.Templates, err}
		}
		return c.missingTemplate(pod.Namespace, name, podClaim.Name)
	}
	w.Claims = append(w.Claims, ClaimOf(template, podClaim.Name))
	w.Origins = append(w.Origins, Origin{Label: "claim " + podClaim.Name,
		Object: "ResourceClaimTemplate " + pod.Namespace + "/" + name})
	return nil
}

// ClaimOf returns a claim from the template.
func ClaimOf(t *resourceapi.ResourceClaimTemplate, name string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name,
		UID: t.UID + "/" + types.UID(name)}, Spec: *t.Spec.Spec.DeepCopy()}
	cluster.SetDefaults(&claim.Spec)
	return claim
}

// IsExtended reports whether the name is that of an extended resource, also of one that names a device class.
func IsExtended(name corev1.ResourceName) bool {
	text := string(name)
	return strings.HasPrefix(text, resourceapi.ResourceDeviceClassPrefix) || strings.Contains(text, "/") &&
		!strings.Contains(text, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(text, corev1.DefaultResourceRequestsPrefix)
}

// addExtended adds the claim that the scheduler makes for extended resources of device classes.
func (c *Cluster) addExtended(w *Workload) {
	requests, extended := c.ExtendedOf(w.Pod)
	if len(requests) == 0 {
		return
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.Pod.Namespace,
		Name: "extended-resources", UID: w.Pod.UID + "/extended-resources"}}
	claim.Spec.Devices.Requests = requests
	w.Claims = append(w.Claims, claim)
	w.Origins = append(w.Origins, Origin{Label: "the pod's extended resources",
		Object: "Pod " + w.Pod.Namespace + "/" + w.Pod.Name, exists: w.Pod.UID != "", Extended: extended})
}

// ExtendedOf returns the requests for the pod's extended resources of device classes, and these by the names of the
// requests.
func (c *Cluster) ExtendedOf(pod *corev1.Pod) ([]resourceapi.DeviceRequest, map[string]corev1.ResourceName) {
	var all []resourceapi.DeviceRequest
	extended := map[string]corev1.ResourceName{}
	for _, name := range slices.Sorted(maps.Keys(RequestsOf(pod))) {
		class := c.ClassOf(name)
		if class == nil {
			continue
		}
		for _, request := range fit.ExtendedRequests(pod, name, class.Name) {
			all = append(all, request)
			extended[request.Name] = name
		}
	}
	slices.SortFunc(all, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return all, extended
}

// OriginOf says where a claim comes from.
func (c *Cluster) OriginOf(claim *resourceapi.ResourceClaim) Origin {
	name := claim.Namespace + "/" + claim.Name
	return Origin{Label: "claim " + claim.Name, Object: "ResourceClaim " + name, exists: !c.Planned[name]}
}

// LackError means that there is no answer without a resource that could not be read.
type LackError struct {
	resource string
	err      error
}

func (e *LackError) Error() string {
	return fmt.Sprintf("no answer without the right to list %s: %v", cluster.FullName(e.resource), e.err)
}

// missingClaim says that the claim of a pod does not exist, and what was likely meant.
func (c *Cluster) missingClaim(namespace, name string) error {
	text := fmt.Sprintf("claim %s does not exist in namespace %s", name, namespace)
	if _, isTemplate := c.TemplateNamed.Find(namespace, name); isTemplate {
		return fmt.Errorf("%s; there is a template of that name: write resourceClaimTemplateName instead of "+
			"resourceClaimName", text)
	}
	if hint := hintOf(name, inNamespace(namespace, c.Claims)); hint != "" {
		return fmt.Errorf("%s%s", text, hint)
	}
	return fmt.Errorf("%s%s", text, c.elsewhere(name, "claims", namespacesOf(name, c.Claims)))
}

// missingTemplate says that the template of a pod's claim does not exist, and what was likely meant.
func (c *Cluster) missingTemplate(namespace, name, claim string) error {
	text := fmt.Sprintf("template %s of its claim %s does not exist in namespace %s", name, claim, namespace)
	if _, isClaim := c.ClaimNamed.Find(namespace, name); isClaim {
		return fmt.Errorf("%s; there is a claim of that name: write resourceClaimName instead of "+
			"resourceClaimTemplateName", text)
	}
	own := inNamespace(namespace, c.Templates)
	if hint := hintOf(name, own); hint != "" {
		return fmt.Errorf("%s%s", text, hint)
	}
	if len(own) > 0 {
		return fmt.Errorf("%s; there %s %s. It may have been refused when it was applied", text,
			Plural(len(own), "is", "are"), someNames(own))
	}
	return fmt.Errorf("%s%s. It may have been refused when it was applied", text,
		c.elsewhere(name, "templates", namespacesOf(name, c.Templates)))
}

// elsewhere says that objects of other namespaces do not count, and in which there is one of that name. Readers with
// fewer rights do not learn that.
func (c *Cluster) elsewhere(name, kind string, namespaces []string) string {
	text := fmt.Sprintf("; a pod uses only %s of its own namespace", kind)
	if len(namespaces) == 0 || c.HideOthers {
		return text
	}
	return fmt.Sprintf("%s, and %s is in %s", text, name, strings.Join(namespaces[:min(len(namespaces),
		selectors.ShownTexts)], ", "))
}

// hintOf returns a question about the object that was likely meant, or "".
func hintOf[T metav1.Object](name string, all []T) string {
	var names []string
	for _, o := range all {
		names = append(names, o.GetName())
	}
	return nearest.Hint(name, names)
}

// someNames lists the names of objects.
func someNames[T metav1.Object](all []T) string {
	var names []string
	for _, o := range all {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	if more := len(names) - selectors.ShownTexts; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:selectors.ShownTexts], ", "), more)
	}
	return strings.Join(names, ", ")
}

// namespacesOf returns the namespaces with an object of that name, sorted.
func namespacesOf[T metav1.Object](name string, all []T) []string {
	var namespaces []string
	for _, o := range all {
		if o.GetName() == name {
			namespaces = append(namespaces, o.GetNamespace())
		}
	}
	slices.Sort(namespaces)
	return namespaces
}

// inNamespace returns the objects of the namespace.
func inNamespace[T metav1.Object](namespace string, all []T) []T {
	var own []T
	for _, o := range all {
		if namespace == "" || o.GetNamespace() == namespace {
			own = append(own, o)
		}
	}
	return own
}

// UsersOf returns the names of the pods and other objects that use the claim.
func UsersOf(claim *resourceapi.ResourceClaim) (all []string) {
	for _, user := range claim.Status.ReservedFor {
		name := user.Name
		if user.Resource != "pods" {
			name = user.Resource + "/" + name
		}
		all = append(all, name)
	}
	return all
}

// Deleted says that the claim is being deleted, and what it waits for.
func Deleted(claim *resourceapi.ResourceClaim) string {
	text := "claim " + claim.Name + " is being deleted"
	if users := UsersOf(claim); len(users) > 0 {
		text += fmt.Sprintf(", and stays until those end that use it (%s)",
			strings.Join(users[:min(len(users), selectors.ShownTexts)], ", "))
	}
	return text + "; create it again when it has gone"
}

// Plural returns the word for that many.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
