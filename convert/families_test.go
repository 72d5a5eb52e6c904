// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the results into testdata, to be read before they are committed")

// The models of the tests, with the figures of the simulator's profiles.
var (
	t4   = model{Memory: 15360 * mib, PeakCompute: 65, Isolation: "mps"}
	a100 = model{Memory: 40960 * mib, PeakCompute: 312, Isolation: "mps"}
	h100 = model{Memory: 81559 * mib, PeakCompute: 989, Isolation: "mps"}
)

// partitions are some of those of an A100, an H100 and of another model with an H100's figures.
var partitions = []partition{
	{"A100", "1g.5gb+me", 4864 * mib, 40}, {"A100", "1g.5gb", 4864 * mib, 40}, {"A100", "7g.40gb", 40448 * mib, 283},
	{"A100", "2g.10gb", 9984 * mib, 80}, {"A100", "3g.20gb", 20096 * mib, 121}, {"H100", "1g.10gb", 9856 * mib, 119},
	{"H100", "1g.20gb", 19968 * mib, 119}, {"H100", "7g.80gb", 80896 * mib, 989}, {"L100", "1g.10gb", 9900 * mib, 119},
}

// clusters are what the word after the name of a case chooses.
var clusters = map[string]converter{
	"":      {Models: []model{t4, a100, h100}},
	"one":   {Models: []model{a100}},
	"empty": {},
	"nine":  {Models: nineModels(), Partitions: partitions},
	"unlimits": {Models: []model{unlimited(t4), unlimited(a100), unlimited(h100)}, // shares without enforcement
		Partitions: partitions},
	"some mps":    {Models: []model{t4, unlimited(a100)}},
	"announced":   {Models: []model{{Memory: a100.Memory, PeakCompute: a100.PeakCompute}}},
	"cgroup":      {Models: []model{{a100.Memory, a100.PeakCompute, "cgroup"}}},
	"some cgroup": {Models: []model{t4, {a100.Memory, a100.PeakCompute, "cgroup"}}},
	"named": {Models: []model{a100}, Names: map[string]string{"nvidia.com/vgpu": "nvidia.com/gpu",
		"nvidia.com/vgpumem": "nvidia.com/gpumem", "xx/vcuda-core": "tencent.com/vcuda-core"}},
	"without classes": {Models: []model{a100}, Extended: []string{}},
	"mib":             {Models: []model{a100}, MemoryUnit: mib},
	"mig":             {Models: []model{a100}, Partitions: partitions},
	"static":          {Partitions: partitions}, // no whole GPUs
}

func unlimited(m model) model {
	m.Isolation = "none"
	return m
}

func nineModels() []model {
	var all []model
	for n := int64(1); n <= 9; n++ {
		all = append(all, model{Memory: n * 8 * gib, PeakCompute: n * 100, Isolation: "mps"})
	}
	return all
}

// TestConvert runs the cases in testdata. A case is a pod, with the part of its YAML that families read, and what comes
// out: the devices of the claim, warnings, and how containers find their devices; or the error.
func TestConvert(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < len(families) {
		t.Fatalf("found %v: %v", files, err)
	}
	for _, file := range files {
		family := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(family, func(t *testing.T) { testFile(t, file, family) })
	}
}

func testFile(t *testing.T, file, family string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result strings.Builder
	cases := strings.Split("\n"+string(text), "\n=== ")
	result.WriteString(strings.TrimPrefix(cases[0], "\n"))
	for _, c := range cases[1:] {
		title, rest, _ := strings.Cut(c, "\n")
		in, want, _ := strings.Cut(rest, "\n---\n")
		name, cluster, _ := strings.Cut(title, " | ")
		converter, ok := clusters[cluster]
		if !ok {
			t.Fatalf("%s: no cluster %q", name, cluster)
		}
		converter.Driver, converter.Families = "gpu.nvidia.com", []string{family}
		if family == "all" {
			converter.Families = Names()
		}
		got := outcome(t, converter, in)
		t.Run(name, func(t *testing.T) {
			if want := strings.Trim(want, "\n"); got != want && !*update {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
		result.WriteString("\n=== " + title + "\n" + strings.Trim(in, "\n") + "\n---\n" + got + "\n")
	}
	if *update {
		if err := os.WriteFile(file, []byte(result.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// outcome returns the result of a conversion as text.
func outcome(t *testing.T, c converter, in string) string {
	t.Helper()
	var object unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(in), &object.Object); err != nil {
		t.Fatalf("%s: %v", in, err)
	}
	return podOutcome(t, c, in)
}

func podOutcome(t *testing.T, c converter, in string) string {
	t.Helper()
	pod := podOf(t, in)
	before := pod.DeepCopy()
	conversion, err := c.convertPod(pod)
	if asText(t, pod) != asText(t, before) {
		t.Errorf("the pod was changed:\n%s", in)
	}
	switch {
	case errors.Is(err, errNoModels):
		return "no models: " + err.Error()
	case err != nil:
		return "error: " + strings.ReplaceAll(err.Error(), ", spec.", ",\n  spec.")
	case conversion == nil:
		return "not converted"
	}
	var text string
	if conversion.Spec != nil {
		text = asText(t, conversion.Spec.Devices)
		check(t, conversion.Spec)
	}
	for _, a := range conversion.containers {
		containers := pod.Spec.Containers
		if a.init {
			containers = pod.Spec.InitContainers
		}
		text += "container " + containers[a.index].Name + ": request " + a.request
		if a.claim != "" {
			text += "claim " + a.claim
		}
		text = strings.ReplaceAll(text, "request claim", "claim") + "\n"
	}
	return strings.TrimSuffix(text+warningText(conversion.Warnings), "\n")
}

func warningText(warnings []string) string {
	var text string
	for _, w := range warnings {
		text += "warning: " + w + "\n"
	}
	return strings.TrimSuffix(text, "\n")
}

func podOf(t testing.TB, in string) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(in), &pod); err != nil {
		t.Fatalf("%s: %v", in, err)
	}
	return &pod
}

func asText(t *testing.T, object any) string {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestNames(t *testing.T) {
	want := []string{"gpu-manager", "gpushare", "hami", "kai", "qgpu", "tflops", "volcano"}
	if got := Names(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
