// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// placeholder stands for a name. No text of the API server has it.
func placeholder(number int) string { return fmt.Sprintf("\uE000%d\uE000", number) }

// anonymous returns the workload without what does not matter for an answer, and with placeholders for the names of the
// pod and of its claims, one of which ends the subject. The key is equal for workloads with equal answers. names puts
// the names back in JSON.
func (w *workload) anonymous(subject string) (anonymous *workload, as, key string, names *strings.Replacer) {
	a := *w
	var pairs []string
	rename := func(name string) string {
		pairs = append(pairs, placeholder(len(pairs)), name)
		return pairs[len(pairs)-2]
	}
	var spec corev1.PodSpec
	if w.pod != nil {
		spec = corev1.PodSpec{NodeSelector: w.pod.Spec.NodeSelector, Affinity: w.pod.Spec.Affinity,
			Tolerations: w.pod.Spec.Tolerations, Overhead: w.pod.Spec.Overhead, Resources: w.pod.Spec.Resources,
			InitContainers: onlyResources(w.pod.Spec.InitContainers), Containers: onlyResources(w.pod.Spec.Containers)}
		a.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.pod.Namespace, Name: rename(w.pod.Name)},
			Spec: spec}
	}
	a.claims, a.origins = nil, nil
	var specs []resourceapi.ResourceClaimSpec
	for i, claim := range w.claims {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace,
			Name: rename(claim.Name)}, Spec: claim.Spec}
		o := w.origins[i]
		o.label = strings.Replace(o.label, "claim "+claim.Name, "claim "+c.Name, 1)
		switch o.object {
		case "ResourceClaim " + claim.Namespace + "/" + claim.Name:
			o.object = "ResourceClaim " + claim.Namespace + "/" + c.Name
		case "Pod " + w.namespace() + "/" + pairs[1]:
			o.object = "Pod " + w.namespace() + "/" + pairs[0]
		}
		a.claims, a.origins = append(a.claims, c), append(a.origins, o)
		specs = append(specs, cluster.WithoutTokens(claim.Spec))
	}
	var allocated []any
	for _, claim := range w.allocated {
		allocated = append(allocated, claim.Name, claim.Status.Allocation.NodeSelector)
	}
	text, err := json.Marshal([]any{w.pod != nil, w.namespace(), spec, specs, allocated})
	if err != nil {
		text = []byte(strings.Join(pairs, " ")) // such a workload is equal to no other
	}
	as = strings.TrimSuffix(subject, pairs[1]) + pairs[0]
	return &a, as, fmt.Sprintf("%s %s %+v", as, text, a.origins), strings.NewReplacer(inJSON(pairs)...)
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

// answer fills in the answer about an anonymous workload, with the names of this one.
func (r *Answer) answer(of *Answer, names *strings.Replacer) {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // a report is made to be written as JSON
	}
	a := Answer{placements: of.placements, unless: of.unless, search: of.search}
	if err := json.Unmarshal([]byte(names.Replace(string(text))), &a); err != nil {
		panic(err) // names are escaped
	}
	a.Kind, a.Namespace, a.Name, a.UID, a.ResourceVersion = r.Kind, r.Namespace, r.Name, r.UID, r.ResourceVersion
	a.Notes = slices.Concat(r.Notes, a.Notes)
	*r = a
}
