// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

const (
	// FamilyLabel has the name of the family. Converted pods have it, and the templates of their claims.
	FamilyLabel = "gpu.nvidia.com/converted-from"
	// originalAnnotation has the resources that were removed from the containers of a pod, by container, as JSON.
	originalAnnotation = "gpu.nvidia.com/original-resources"
	// notesAnnotation says what works differently in a converted pod.
	notesAnnotation = "gpu.nvidia.com/conversion-notes"
	// claimAnnotation has the spec of the pod's claim, as JSON.
	claimAnnotation = "gpu.nvidia.com/converted-claim"
	// claimName is the name of the claim in the pod.
	claimName = "converted-gpu"
	// templatePrefix is what the names of a controller's templates begin with.
	templatePrefix = "converted-"
	// manifestPrefix is what the names of templates in converted manifests begin with. A controller deletes its own
	// templates when no converted pod uses them, and must not take those of users for them.
	manifestPrefix = "converted-manifest-"
)

// templateName returns the name of the template for a spec. It depends on the spec alone, so that pods that ask for the
// same share a template. attempt is 0, or higher if somebody else has a template of that name.
func templateName(spec *resourceapi.ResourceClaimSpec, attempt int) (string, error) {
	name, err := nameFor(templatePrefix, spec)
	if attempt > 0 {
		name += "-" + strconv.Itoa(attempt)
	}
	return name, err
}

// nameFor returns the prefix and what identifies the spec.
func nameFor(prefix string, spec *resourceapi.ResourceClaimSpec) (string, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256(text)
	return prefix + hex.EncodeToString(digest[:10]), nil
}

// templateSuffix is what the name of a template may have behind that of its spec.
var templateSuffix = regexp.MustCompile(`^(-[1-9])?$`)

// isTemplate reports whether a controller has created the template for converted pods, and nobody has changed it.
func isTemplate(t *resourceapi.ResourceClaimTemplate) bool {
	return t.Labels[FamilyLabel] != "" && isNameOf(t.Name, &t.Spec.Spec)
}

func isNameOf(template string, spec *resourceapi.ResourceClaimSpec) bool {
	name, err := templateName(spec, 0)
	suffix, ok := strings.CutPrefix(template, name)
	return err == nil && ok && templateSuffix.MatchString(suffix)
}

// apply writes the conversion into a pod or the template of pods, without anything else: the object may have fields
// that this program does not know. template is the name of the template of the claim.
func (c *conversion) apply(pod map[string]any, template string) error {
	spec, _ := pod["spec"].(map[string]any)
	claims, _ := spec["resourceClaims"].([]any)
	names := map[string]string{} // in the pod, by existing claim; "": from the template
	for _, a := range c.containers {
		if _, ok := names[a.claim]; ok {
			continue
		}
		entry := map[string]any{"resourceClaimTemplateName": template}
		if a.claim != "" {
			entry = map[string]any{"resourceClaimName": a.claim}
		}
		names[a.claim] = freeName(claims)
		entry["name"] = names[a.claim]
		claims = append(claims, entry)
	}
	for _, a := range c.containers {
		list := "containers"
		if a.init {
			list = "initContainers"
		}
		containers, _ := spec[list].([]any)
		if a.index >= len(containers) {
			return fmt.Errorf("%s[%d] is missing", list, a.index)
		}
		container, ok := containers[a.index].(map[string]any)
		if !ok {
			return fmt.Errorf("%s[%d] is not an object", list, a.index)
		}
		use := map[string]any{"name": names[a.claim]}
		if a.request != "" {
			use["request"] = a.request
		}
		a.changeResources(container, use)
	}
	spec["resourceClaims"] = claims
	return nil
}

func freeName(claims []any) string {
	for n := 1; ; n++ {
		name := claimName
		if n > 1 {
			name += "-" + strconv.Itoa(n)
		}
		if !slices.ContainsFunc(claims, func(c any) bool {
			entry, _ := c.(map[string]any)
			return entry["name"] == name
		}) {
			return name
		}
	}
}

func (a converted) changeResources(container map[string]any, use map[string]any) {
	resources, ok := container["resources"].(map[string]any)
	if !ok {
		resources = map[string]any{}
		container["resources"] = resources
	}
	remove(resources, a.removed)
	claims, _ := resources["claims"].([]any)
	resources["claims"] = append(claims, use)
}

// remove removes resources from the requests and limits of a container.
func remove(resources map[string]any, names []corev1.ResourceName) {
	for _, kind := range []string{"limits", "requests"} {
		amounts, ok := resources[kind].(map[string]any)
		if !ok {
			continue
		}
		for _, name := range names {
			delete(amounts, string(name))
		}
		if len(amounts) == 0 {
			delete(resources, kind)
		}
	}
}

// mark writes into a pod that it is converted, and what from.
func (c *conversion) mark(pod map[string]any, original *corev1.Pod) error {
	before := map[string]map[corev1.ResourceName]string{}
	for _, a := range c.containers {
		containers := original.Spec.Containers
		if a.init {
			containers = original.Spec.InitContainers
		}
		amounts := map[corev1.ResourceName]string{}
		for _, name := range a.removed {
			q, ok := containers[a.index].Resources.Limits[name]
			if !ok {
				q = containers[a.index].Resources.Requests[name]
			}
			amounts[name] = q.String()
		}
		before[containers[a.index].Name] = amounts
	}
	values := map[string]any{originalAnnotation: before}
	if c.Spec != nil {
		values[claimAnnotation] = c.Spec
	}
	annotations := map[string]string{}
	for name, value := range values {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		annotations[name] = string(text)
	}
	if len(c.Warnings) > 0 {
		annotations[notesAnnotation] = strings.Join(c.Warnings, "; ")
	}
	for name, text := range annotations {
		if err := unstructured.SetNestedField(pod, text, "metadata", "annotations", name); err != nil {
			return err
		}
	}
	return unstructured.SetNestedField(pod, c.family, "metadata", "labels", FamilyLabel)
}

// restore removes the resources that a converted pod no longer has from an update of it, so that its manifest can be
// applied again. The error names those that the pod was not created with: its claim does not change.
func (c converter) restore(pod map[string]any, old *corev1.Pod) (changed bool, _ error) {
	var created map[string]map[corev1.ResourceName]resource.Quantity // as mark has written it
	known := json.Unmarshal([]byte(old.Annotations[originalAnnotation]), &created) == nil
	var errs field.ErrorList
	for list, before := range map[string][]corev1.Container{"containers": old.Spec.Containers,
		"initContainers": old.Spec.InitContainers} {
		containers, _, _ := unstructured.NestedFieldNoCopy(pod, "spec", list)
		all, _ := containers.([]any)
		for i, one := range all {
			container, _ := one.(map[string]any)
			resources, ok := container["resources"].(map[string]any)
			if !ok || i >= len(before) {
				continue
			}
			added := slices.DeleteFunc(c.removable(), func(name corev1.ResourceName) bool {
				_, limit := before[i].Resources.Limits[name]
				return limit || !has(resources, name)
			})
			if known {
				path := field.NewPath("spec", list).Index(i).Child("resources")
				errs = append(errs, differing(path, resources, added, created[before[i].Name])...)
			}
			if len(added) > 0 {
				remove(resources, added)
				changed = true
			}
		}
	}
	return changed, errs.ToAggregate()
}

// differing returns an error for each of these resources that is not as the container was created with.
func differing(path *field.Path, resources map[string]any, names []corev1.ResourceName,
	created map[corev1.ResourceName]resource.Quantity) (errs field.ErrorList) {
	for _, name := range names {
		was := created[name]
		for _, kind := range []string{"limits", "requests"} {
			amounts, _ := resources[kind].(map[string]any)
			amount, ok := amounts[string(name)]
			got, err := resource.ParseQuantity(fmt.Sprint(amount))
			if ok && (err != nil || got.Cmp(was) != 0) {
				errs = append(errs, field.Invalid(path.Child(kind).Key(string(name)), amount, fmt.Sprintf("the pod "+
					"was created with %s, and its claim cannot change: delete the pod and create it again", &was)))
				break // the API server sets requests to the limits
			}
		}
	}
	return errs
}

// removable returns the resources that a conversion may remove.
func (c converter) removable() (all []corev1.ResourceName) {
	for _, f := range families {
		all = append(all, f.Resources...)
	}
	for own := range c.Names {
		all = append(all, corev1.ResourceName(own))
	}
	return all
}

func has(resources map[string]any, name corev1.ResourceName) bool {
	for _, kind := range []string{"limits", "requests"} {
		amounts, _ := resources[kind].(map[string]any)
		if _, ok := amounts[string(name)]; ok {
			return true
		}
	}
	return false
}

// template returns the template that a converted pod waits for, or nil if there is none: the pod is not converted, uses
// existing claims, or has its claim. The annotation may come from anybody who can create pods, so the template is for
// nothing but GPUs of the driver.
func (c converter) template(pod *corev1.Pod) (*resourceapi.ResourceClaimTemplate, error) {
	text, ok := pod.Annotations[claimAnnotation]
	i := slices.IndexFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return isConverted(c) && strings.HasPrefix(ptr.Deref(c.ResourceClaimTemplateName, ""), templatePrefix)
	})
	if !ok || i < 0 || pod.Labels[FamilyLabel] == "" {
		return nil, nil
	}
	claim := pod.Spec.ResourceClaims[i]
	if slices.ContainsFunc(pod.Status.ResourceClaimStatuses,
		func(s corev1.PodResourceClaimStatus) bool { return s.Name == claim.Name }) {
		return nil, nil
	}
	var spec resourceapi.ResourceClaimSpec
	unknown, err := kjson.UnmarshalStrict([]byte(text), &spec)
	if err := errors.Join(append(unknown, err)...); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", claimAnnotation, err)
	}
	if name := *claim.ResourceClaimTemplateName; !isNameOf(name, &spec) {
		return nil, fmt.Errorf("annotation %s: it is not the claim of template %s", claimAnnotation, name)
	}
	if err := c.check(spec); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", claimAnnotation, err)
	}
	t := &resourceapi.ResourceClaimTemplate{}
	t.Namespace, t.Name = pod.Namespace, *claim.ResourceClaimTemplateName
	t.Labels = map[string]string{FamilyLabel: pod.Labels[FamilyLabel]}
	t.Spec.Spec = spec
	return t, nil
}

// check refuses claims that Convert does not make and that go further than an extended resource does, such as claims
// for tainted GPUs.
func (c converter) check(spec resourceapi.ResourceClaimSpec) error {
	for _, s := range cluster.Subrequests(&spec) {
		switch {
		case s.Admin:
			return errors.New("adminAccess is not for converted pods")
		case *s.Class != c.Driver && *s.Class != partitionClass(c.Driver):
			return fmt.Errorf("class %s is not for converted pods", *s.Class)
		case *s.Mode != resourceapi.DeviceAllocationModeExactCount:
			return fmt.Errorf("allocationMode %s is not for converted pods", *s.Mode)
		case len(*s.Tolerations) > 0:
			return errors.New("tolerations are not for converted pods")
		}
	}
	for _, config := range spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != c.Driver {
			return errors.New("a configuration for another driver is not for converted pods")
		}
	}
	return nil
}
