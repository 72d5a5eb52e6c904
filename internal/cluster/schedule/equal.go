// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// placeholder stands for a name. No text of the API server has it.
func placeholder(number int) string { return fmt.Sprintf("\uE000%d\uE000", number) }

// Anonymous returns the workload without what does not matter for an answer, and with placeholders for the names of the
// pod and of its claims. One of these ends the subject; as is the subject with its placeholder. The key is equal for
// workloads with equal answers. names puts the names back in JSON.
func (w *Workload) Anonymous(subject string) (anonymous *Workload, as, key string, names *strings.Replacer) {
	a := *w
	var pairs []string
	rename := func(name string) string {
		pairs = append(pairs, placeholder(len(pairs)), name)
		return pairs[len(pairs)-2]
	}
	var spec corev1.PodSpec
	if w.Pod != nil {
		spec = corev1.PodSpec{NodeSelector: w.Pod.Spec.NodeSelector, Affinity: w.Pod.Spec.Affinity,
			Tolerations: w.Pod.Spec.Tolerations, Overhead: w.Pod.Spec.Overhead, Resources: w.Pod.Spec.Resources,
			InitContainers: onlyResources(w.Pod.Spec.InitContainers), Containers: onlyResources(w.Pod.Spec.Containers)}
		a.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Pod.Namespace, Name: rename(w.Pod.Name)},
			Spec: spec}
	}
	a.Claims, a.Origins = nil, nil
	var specs []resourceapi.ResourceClaimSpec
	for i, claim := range w.Claims {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace,
			Name: rename(claim.Name)}, Spec: claim.Spec}
		o := w.Origins[i]
		o.Label = strings.Replace(o.Label, "claim "+claim.Name, "claim "+c.Name, 1)
		switch o.Object {
		case "ResourceClaim " + claim.Namespace + "/" + claim.Name:
			o.Object = "ResourceClaim " + claim.Namespace + "/" + c.Name
		case "Pod " + w.Namespace() + "/" + pairs[1]:
			o.Object = "Pod " + w.Namespace() + "/" + pairs[0]
		}
		a.Claims, a.Origins = append(a.Claims, c), append(a.Origins, o)
		specs = append(specs, cluster.WithoutTokens(claim.Spec))
	}
	var allocated []any
	for _, claim := range w.Allocated {
		allocated = append(allocated, claim.Name, claim.Status.Allocation.NodeSelector)
	}
	text, err := json.Marshal([]any{w.Pod != nil, w.Namespace(), spec, specs, allocated})
	if err != nil {
		text = []byte(strings.Join(pairs, " ")) // such a workload is equal to no other
	}
	as = strings.TrimSuffix(subject, pairs[1]) + pairs[0]
	return &a, as, fmt.Sprintf("%s %s %+v", as, text, a.Origins), strings.NewReplacer(inJSON(pairs)...)
}

// inJSON returns the texts as they are within strings of JSON. A name in a manifest may not be rendered yet, and have
// quotes.
func inJSON(all []string) []string {
	var quoted []string
	for _, text := range all {
		raw, err := json.Marshal(text)
		if err != nil {
			panic(err) // a string can be written as JSON
		}
		quoted = append(quoted, string(raw[1:len(raw)-1]))
	}
	return quoted
}

func onlyResources(all []corev1.Container) []corev1.Container {
	only := make([]corev1.Container, len(all))
	for i, c := range all {
		only[i] = corev1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		only[i].Resources.Claims = nil
	}
	return only
}
