// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// values are amounts and texts that people write, and such as break programs.
var values = []string{"0", "1", "2", "5", "30", "50", "99", "100", "101", "150", "200", "3200", "3300", "-1", "1.5",
	"5Gi", "5GB", "30%", "0.5", "1e30", "9223372036854775807", "9223372036854775808", "1Ei", "", " ", ",", "A100,V100",
	"true", "mig", "mps", "hami-core", "mutex", "time-slicing", "sm-sharing", "NaN", "Inf", "0x1p-2", "1e-300", "main",
	"main,other", "\"", "'", "\\", "\x00", "\xff", "GPU-0", "Zürich", strings.Repeat("x", 300),
	strings.Repeat("1,", 40), "71200m", "7680Mi", "a-claim", "A claim"}

// FuzzConvert makes pods from random numbers: nothing panics, and what is converted is valid.
func FuzzConvert(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, "50", "5Gi")
	}
	f.Add(uint64(1), "use-gputype", "Tesla \"V100\"")
	f.Fuzz(func(t *testing.T, seed uint64, one, two string) {
		random := rand.New(rand.NewPCG(seed, 1))
		pod := randomPod(random, append([]string{one, two}, values...))
		models := []model{t4, a100, h100}
		for i := range models {
			models[i].Isolation = []string{"mps", "none"}[random.IntN(2)]
		}
		for _, family := range Names() {
			c := converter{Driver: clustertest.Driver, Families: []string{family}, Models: models,
				Partitions: partitions, Names: map[string]string{"acme.com/gpu": string(wholeGPU)}}
			text, err := json.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.unconverted(pod)
			conversion, err := c.convertPod(pod)
			if after, _ := json.Marshal(pod); string(after) != string(text) {
				t.Errorf("%s changed the pod", family)
			}
			if err == nil && conversion != nil && conversion.Spec != nil {
				check(t, conversion.Spec)
			}
			if t.Failed() {
				t.Fatalf("%s: %s", family, text)
			}
		}
	})
}

// randomPod returns a pod with some of the resources and annotations of all families.
func randomPod(random *rand.Rand, values []string) *corev1.Pod {
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	var resources, annotations []string
	for _, f := range families {
		for _, name := range f.Resources {
			resources = append(resources, string(name))
		}
		resources = append(resources, "acme.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb")
		annotations = append(annotations, f.Annotations...)
		for _, prefix := range f.AnnotationPrefixes {
			annotations = append(annotations, prefix+"main", prefix+"other")
		}
	}
	annotations = append(annotations, hamiAnnotations...)
	annotations = append(annotations, vcudaLimit, kaiDevices, kaiContainer, kaiMode, kaiPrefix+"main"+kaiRequest,
		kaiPrefix+"main"+kaiLimit, kaiPrefix+"other"+kaiRequest, fusionTFLOPSLimit, fusionMemoryLimit, fusionCount,
		fusionModel, fusionVendor, fusionContainers, fusionLocal, volcanoMode, qgpuClass)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}, Labels: map[string]string{}}}
	for range random.IntN(4) {
		pod.Annotations[pick(annotations)] = pick(values)
	}
	if random.IntN(4) == 0 {
		pod.Spec.NodeSelector = map[string]string{pick(append(resources, "gpu")): pick(values)}
		pod.Spec.Volumes = []corev1.Volume{{Name: "main", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	if random.IntN(4) == 0 {
		pod.Labels[string(aliyunCount)] = pick(values)
	}
	container := func(name string) corev1.Container {
		c := corev1.Container{Name: name, Env: []corev1.EnvVar{{Name: pick(values), Value: pick(values)},
			{Name: variables[random.IntN(len(variables))].name, Value: pick(values)}}}
		if random.IntN(4) == 0 {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "main",
				MountPath: pick([]string{"/dev/shm", "/dev/shm/", ""})}}
		}
		for _, list := range []*corev1.ResourceList{&c.Resources.Limits, &c.Resources.Requests} {
			*list = corev1.ResourceList{}
			for range random.IntN(4) {
				if q, err := resource.ParseQuantity(pick(values)); err == nil {
					(*list)[corev1.ResourceName(pick(resources))] = q
				}
			}
		}
		if random.IntN(5) == 0 {
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
		return c
	}
	names := []string{"main", "other", strings.Repeat("n", 63)}
	for i := range 1 + random.IntN(len(names)) {
		pod.Spec.Containers = append(pod.Spec.Containers, container(names[i]))
	}
	for range random.IntN(2) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container("init"))
	}
	return pod
}
