// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// elasticClaimRequest is the name of the request in a converted ElasticGPUClaim.
const elasticClaimRequest = "gpu"

// provisionerSuffix is what the domains of Elastic GPU's provisioners end with. According to its examples, they count
// memory in GiB.
const provisionerSuffix = ".provisioner.elasticgpu.io"

// elasticProvisioners are those of Elastic GPU's documentation.
var elasticProvisioners = []string{"elasticgpu.io/qgpu", "gpushare.provisioner.elasticgpu.io"}

// elasticGPUClaim returns the ResourceClaim of the same name, and what works differently. Pods that have the
// ElasticGPUClaim by annotation use it.
func (m manifests) elasticGPUClaim(in *unstructured.Unstructured) (*resourceapi.ResourceClaim, []string, error) {
	spec := field.NewPath("spec")
	r := elasticReader{&reader{container: container{Path: spec.Child("resources", "requests"), Driver: m.Driver,
		Resources: corev1.ResourceList{}}}}
	dialects := r.amounts(in)
	var request *gpuRequest
	if len(r.errs) == 0 && len(dialects) != 1 {
		r.errs = append(r.errs, field.Required(r.Path, "needs the core or memory of one GPU, by one pair of names"))
	}
	if len(r.errs) == 0 {
		request = r.share(dialects[0])
	}
	class := m.elasticClass(in, r.reader, spec)
	request, errs := r.result(request)
	if len(errs) > 0 {
		return nil, nil, errs.ToAggregate()
	}
	if request == nil {
		return nil, nil, field.Required(r.Path, "must be more than 0")
	}
	var claim claimBuilder
	if err := claim.add(m.converter, elasticClaimRequest, *request); err != nil {
		return nil, nil, err
	}
	claim.spec.Devices.Requests[0].Exactly.DeviceClassName = class // no alternatives: all amounts are absolute
	return &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: in.GetName(), Namespace: in.GetNamespace(), Labels: in.GetLabels()},
		Spec:       claim.spec}, request.Warnings, nil
}

// amounts reads the amounts of an ElasticGPUClaim into the reader's resources.
func (r elasticReader) amounts(in *unstructured.Unstructured) []elasticDialect {
	amounts, _, err := unstructured.NestedMap(in.Object, "spec", "resources", "requests")
	if err != nil {
		r.errs = append(r.errs, field.Invalid(r.Path, nil, "must be names and amounts"))
	}
	var found []elasticDialect
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		d, ok := elasticDialectOf(corev1.ResourceName(name))
		if !ok {
			r.errs = append(r.errs, field.NotSupported(r.Path, name, []string{string(qgpuCore), string(qgpuMemory),
				"elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"}))
			continue
		}
		if !slices.Contains(found, d) {
			found = append(found, d)
		}
		text := fmt.Sprint(amounts[name])
		memory := corev1.ResourceName(name) == d.memory
		amount := text
		if memory && d.unit == gib { // Tencent's example has "4GB", which is no quantity of Kubernetes
			amount = strings.TrimSuffix(text, "GB")
		}
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			r.errs = append(r.errs, field.Invalid(r.Path.Key(name), text, "must be a whole number"))
			continue
		}
		if memory && strings.Contains(name, provisionerSuffix) {
			r.warn("%s is taken as GiB", name)
		}
		r.Resources[corev1.ResourceName(name)] = q
	}
	return found
}

// elasticDialectOf returns the pair of names that the name belongs to.
func elasticDialectOf(name corev1.ResourceName) (elasticDialect, bool) {
	for _, d := range elasticDialects {
		if name == d.core || name == d.memory || name == qgpuGreedy && d.core == qgpuCore {
			return d, true
		}
	}
	domain, kind, _ := strings.Cut(string(name), "/")
	if !strings.HasSuffix(domain, provisionerSuffix) || kind != "gpu-core" && kind != "gpu-memory" {
		return elasticDialect{}, false
	}
	return elasticDialect{core: corev1.ResourceName(domain + "/gpu-core"),
		memory: corev1.ResourceName(domain + "/gpu-memory"), unit: gib, step: 1}, true
}

// elasticClass returns the name of the claim's class; the class of whole GPUs if it has none.
func (m manifests) elasticClass(in *unstructured.Unstructured, r *reader, spec *field.Path) string {
	class := m.Driver
	for _, name := range []string{"elasticGPUClassName", "egpuClassName", "storageClassName"} {
		value, found, err := unstructured.NestedString(in.Object, "spec", name)
		switch {
		case err != nil:
			r.errs = append(r.errs, field.Invalid(spec.Child(name), nil, "must be a name"))
		case found && value != "":
			for _, problem := range validation.IsDNS1123Subdomain(value) {
				r.errs = append(r.errs, field.Invalid(spec.Child(name), value, problem))
			}
			return value
		}
	}
	return class
}

// elasticGPUClass returns the DeviceClass of the same name, and what works differently.
func (m manifests) elasticGPUClass(in *unstructured.Unstructured) (*resourceapi.DeviceClass, []string, error) {
	provisioner, _, err := unstructured.NestedString(in.Object, "provisioner")
	if err != nil || !slices.Contains(elasticProvisioners, provisioner) {
		return nil, nil, field.NotSupported(field.NewPath("provisioner"), provisioner, elasticProvisioners)
	}
	var warnings []string
	for _, name := range []string{"reclaimPolicy", "eGPUBindingMode", "egpuBindingMode", "parameters"} {
		if value, ok := in.Object[name]; ok {
			warnings = append(warnings, fmt.Sprintf("%s %v has no effect: a GPU is allocated when a pod is scheduled, "+
				"and free when no pod uses the claim", name, value))
		}
	}
	return &resourceapi.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: in.GetName(), Labels: in.GetLabels()},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: m.wholeGPUs()}}}}}, warnings, nil
}

// wholeGPUs returns the selector of the chart's class of whole GPUs.
func (m manifests) wholeGPUs() string {
	return strings.ReplaceAll("device.driver == 'DRIVER' && device.attributes['DRIVER'].type == 'gpu' && "+
		"!device.attributes['DRIVER'].?sharedOnly.orValue(false)", "DRIVER", m.Driver)
}
