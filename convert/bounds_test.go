// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// The webhook sees pods before the API server has validated them. What a pod has many of does not multiply, and an
// error does not repeat long values.
func TestTheWorkDoesNotMultiply(t *testing.T) {
	gpus := corev1.ResourceList{tflopsResource: resource.MustParse("5")}
	containers := func(n int) []corev1.Container {
		all := make([]corev1.Container, n)
		for i := range all {
			all[i].Name, all[i].Resources.Limits = fmt.Sprint("c", i), gpus
		}
		return all
	}
	named := map[string]string{}
	for i := range 1500 {
		named[fmt.Sprint(fusionPrefix, "x", i)], named[fmt.Sprintf("%sc-%d%s", kaiPrefix, i, kaiRequest)] = "", "1Gi"
	}
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		containers  int
		want        string // in the error; empty: it is not converted
	}{
		{"many names of containers", map[string]string{fusionTFLOPS: "5",
			fusionContainers: strings.Repeat("x,", 120_000)},
			200, "names 120001 containers; a pod may have 250"},
		{"many annotations", named, 100, "the pod has no container"},
		{"many containers", nil, 100_000, "the pod has 100000 containers; pods with at most 250 are converted"},
		{"annotations that the API server refuses", map[string]string{fusionTFLOPS: strings.Repeat("5", 300_000)}, 1,
			""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}
			pod.Spec.Containers = containers(tc.containers)
			c := converter{Driver: clustertest.Driver, Families: Names(), Models: []model{t4}}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			conversion, err := c.convertPod(pod)
			runtime.ReadMemStats(&after)
			text := fmt.Sprint(err)
			if conversion != nil || (err == nil) != (tc.want == "") || !strings.Contains(text, tc.want) && err != nil {
				t.Errorf("got %.300s, want %q", text, tc.want)
			}
			if len(text) > 20_000 {
				t.Errorf("got an error of %d bytes", len(text))
			}
			if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 200 {
				t.Errorf("allocated %d MiB, want at most 200", got)
			}
		})
	}
}
