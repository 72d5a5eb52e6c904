// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

const (
	// admissionQuotas is the key of gpu-admission's ConfigMap that has the quotas as JSON.
	admissionQuotas = "gpu_quota"
	// quotaName is the name of the quotas.
	quotaName = "gpus"
	// maxQuota is more GPUs than a namespace has.
	maxQuota = 1_000_000
)

// namespaceQuota is what gpu-admission limits in a namespace: the GPUs of each model, and the pools of nodes.
type namespaceQuota struct {
	Quota map[string]any `json:"quota"` // checked: int64
	Pool  []string       `json:"pool"`
}

// admissionQuotasIn returns the quotas of gpu-admission as JSON, if the object is its ConfigMap or the JSON by itself.
func admissionQuotasIn(object map[string]any) (text []byte, ok bool) {
	if object["kind"] == "ConfigMap" {
		data, _ := object["data"].(map[string]any)
		value, ok := data[admissionQuotas].(string)
		return []byte(value), ok
	}
	if len(object) == 0 || object["kind"] != nil || object["apiVersion"] != nil {
		return nil, false
	}
	for _, value := range object {
		one, _ := value.(map[string]any)
		if one["quota"] == nil && one["pool"] == nil {
			return nil, false
		}
	}
	text, err := json.Marshal(object)
	return text, err == nil
}

// admissionQuotas returns a DeviceClass for each model in the quotas of gpu-admission, for each namespace a GPUQuota of
// all models together, and a ResourceQuota of each model. The warnings name what works differently, and the label that
// enforces a GPUQuota: a namespace with one label would lose its others when it is applied.
func (m manifests) admissionQuotas(text []byte) (all []any, warnings []string, err error) {
	quotas, err := parseAdmissionQuotas(text)
	if err != nil {
		return nil, nil, err
	}
	classes := map[string]string{} // by model
	for _, namespace := range slices.Sorted(maps.Keys(quotas)) {
		for model := range quotas[namespace].Quota {
			classes[model] = modelName(model) + "." + m.Driver
		}
	}
	for _, model := range slices.Sorted(maps.Keys(classes)) {
		class, warning := m.modelClass(model, classes[model])
		all, warnings = append(all, class), append(warnings, warning)
	}
	for _, namespace := range slices.Sorted(maps.Keys(quotas)) {
		hard, sum := corev1.ResourceList{}, int64(0)
		for model, value := range quotas[namespace].Quota {
			n := value.(int64)
			hard[devicesOf(classes[model])] = *resource.NewQuantity(n, resource.DecimalSI)
			sum += n
		}
		meta := metav1.ObjectMeta{Name: quotaName, Namespace: namespace}
		all = append(all, &cluster.GPUQuota{
			TypeMeta:   metav1.TypeMeta{APIVersion: cluster.QuotaVersion.String(), Kind: "GPUQuota"},
			ObjectMeta: meta, Spec: cluster.GPUQuotaSpec{Hard: corev1.ResourceList{
				cluster.AmountCores: resource.MustParse(fmt.Sprint(100 * sum))}}})
		if len(hard) > 0 {
			all = append(all, &corev1.ResourceQuota{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
				ObjectMeta: meta, Spec: corev1.ResourceQuotaSpec{Hard: hard}})
		}
		warnings = append(warnings, quotaWarnings(namespace, quotas[namespace], sum)...)
	}
	return all, append(warnings, "GPUs of other models count too; gpu-admission gave a namespace none of them"), nil
}

// devicesOf returns the name in a ResourceQuota of the devices of a class.
func devicesOf(class string) corev1.ResourceName {
	return corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
}

// parseAdmissionQuotas reads and checks the quotas. The error names each mistake.
func parseAdmissionQuotas(text []byte) (map[string]namespaceQuota, error) {
	var quotas map[string]namespaceQuota
	unknown, err := kjson.UnmarshalStrict(text, &quotas)
	if err := errors.Join(append(unknown, err)...); err != nil {
		return nil, fmt.Errorf("%s: %w", admissionQuotas, err)
	}
	var errs field.ErrorList
	models := map[string]string{} // by the name in their class
	for _, namespace := range slices.Sorted(maps.Keys(quotas)) {
		path := field.NewPath(admissionQuotas).Key(namespace)
		for _, problem := range validation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(path, namespace, "is not the name of a namespace: "+problem))
		}
		for _, model := range slices.Sorted(maps.Keys(quotas[namespace].Quota)) {
			at, value, name := path.Child("quota").Key(model), quotas[namespace].Quota[model], modelName(model)
			switch n, whole := value.(int64); {
			case !whole:
				errs = append(errs, field.Invalid(at, value,
					fmt.Sprintf("must be a whole number from 0 to %d", maxQuota)))
			case n < 0 || n > maxQuota:
				errs = append(errs, field.Invalid(at, n, fmt.Sprintf("must be from 0 to %d", maxQuota)))
			}
			problems := validation.IsValidLabelValue(model)
			switch {
			case model == "" || len(problems) > 0:
				errs = append(errs, field.Invalid(at, model, "is not the value of a node's label"))
			case slices.Contains([]string{"monitor", "shared", "strongest"}, name):
				errs = append(errs, field.Invalid(at, model, "is the name of a class of the chart"))
			case models[name] != "" && models[name] != model:
				errs = append(errs, field.Invalid(at, model, "makes the same class as "+models[name]))
			default:
				models[name] = model
			}
		}
	}
	return quotas, errs.ToAggregate()
}

// notInNames matches what a label's value may have and a product name or the name of a class may not.
var notInNames = regexp.MustCompile(`[^0-9a-z]+`)

// modelName returns the value of a node's label as a part of the name of a class.
func modelName(model string) string { return notInNames.ReplaceAllString(strings.ToLower(model), "-") }

// modelClass returns the class for whole GPUs of a model. gpu-admission knows models by a label of nodes, which people
// write. The class selects GPUs whose product name has the same words: M40 is a Tesla M40, and T4 is not a T400.
func (m manifests) modelClass(model, name string) (*resourceapi.DeviceClass, string) {
	words := "(?i)(^|[^0-9a-z])" + notInNames.ReplaceAllString(strings.ToLower(model), "[^0-9a-z]+") + "([^0-9a-z]|$)"
	expression := fmt.Sprintf("%s && device.attributes['%s'].productName.matches(%q)", m.wholeGPUs(), m.Driver, words)
	class := &resourceapi.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}}
	selects := regexp.MustCompile(words)
	products := slices.DeleteFunc(slices.Clone(m.Products), func(p string) bool { return !selects.MatchString(p) })
	switch {
	case len(products) > 0:
		return class, fmt.Sprintf("class %s selects %s", name, strings.Join(products, ", "))
	case len(m.Products) > 0:
		return class, fmt.Sprintf("class %s selects product names with %s, and no published GPU that is not "+
			"sharedOnly has one: change its selector", name, model)
	}
	return class, fmt.Sprintf("class %s selects product names with %s: compare them with those that are published",
		name, model)
}

// quotaWarnings says what the quota of a namespace does not limit as gpu-admission did.
func quotaWarnings(namespace string, q namespaceQuota, sum int64) []string {
	warnings := []string{fmt.Sprintf("namespace %s: the multiprocessors of %d GPUs, whatever their model", namespace,
		sum)}
	if len(q.Quota) > 0 {
		warnings[0] += "; claims that name the class of a model also count for that model, and converted pods do not"
	}
	warnings = append(warnings, fmt.Sprintf("namespace %s: no claim is refused before `kubectl label namespace %s "+
		"%s=on`", namespace, namespace, cluster.QuotaLabel))
	switch len(q.Pool) {
	case 0:
	case 1:
		warnings = append(warnings, fmt.Sprintf("namespace %s: a quota does not choose nodes; give its pods "+
			"nodeSelector {tkestack.io/gpu-pool: %s}", namespace, q.Pool[0]))
	default:
		warnings = append(warnings, fmt.Sprintf("namespace %s: a quota does not choose nodes; give its pods a node "+
			"affinity for tkestack.io/gpu-pool in %s", namespace, strings.Join(q.Pool, ", ")))
	}
	return warnings
}
