// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// class returns a device class with these selectors.
func class(name string, selectors ...string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, s := range selectors {
		c.Spec.Selectors = append(c.Spec.Selectors,
			resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return c
}

func TestModels(t *testing.T) {
	s := newCluster(t)
	const ofDriver = "device.driver == 'gpu.nvidia.com'"
	s.Slices = append(s.Slices, foreign())
	s.Classes = []*resourceapi.DeviceClass{
		class("gpu.nvidia.com", ofDriver+" && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
		class("large", ofDriver, "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"),
		class("mig.nvidia.com", ofDriver+" && device.attributes['gpu.nvidia.com'].type == 'mig'"),
		class("example", "device.attributes['gpu.example.com'].model == 'LATEST-GPU'"), // fails on other devices
		class("invalid", "device."), class("any"),
	}
	out, _, err := s.run(t, "models", "-o", "wide")
	if err != nil {
		t.Fatal(err)
	}
	want := `MODEL MEMORY COMPUTE GPUS FREE PARTITIONS CLASSES SELECTOR CLASSES OF PARTITIONS
LATEST-GPU 80Gi <none> 1 1 <none> example device.driver == 'gpu.example.com' && ` +
		`device.attributes['gpu.example.com'].model == 'LATEST-GPU' <none>
NVIDIA H100 80GB HBM3 79.6Gi 9.0 8 6 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb ` +
		`gpu.nvidia.com, large device.driver == 'gpu.nvidia.com' && ` +
		`device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3' ` +
		`1g.10gb: mig.nvidia.com, 1g.10gb+me: mig.nvidia.com, 1g.20gb: mig.nvidia.com, 2g.20gb: mig.nvidia.com, ` +
		`3g.40gb: mig.nvidia.com, 4g.40gb: mig.nvidia.com, 7g.80gb: large or mig.nvidia.com
Tesla T4 15Gi 7.5 2 1 <none> gpu.nvidia.com device.driver == 'gpu.nvidia.com' && ` +
		`device.attributes['gpu.nvidia.com'].productName == 'Tesla T4' <none>
`
	if got := squeezed(out) + "\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Classes may accept only some of the GPUs of a model: those with one of the sharing modes.
func TestModelsOfSharingModes(t *testing.T) {
	s := newCluster(t)
	s.device(t, "a", "gpu-af-00-0").Attributes["sharing"] =
		resourceapi.DeviceAttribute{StringValue: ptr.To("replicated")}
	const sharing = "device.attributes['gpu.nvidia.com'].sharing "
	s.Classes = []*resourceapi.DeviceClass{class("shared", sharing+"== 'replicated'"),
		class("whole", sharing+"!= 'replicated'")}
	out, _, err := s.run(t, "models", "--no-headers", "--model", "T4")
	if want := "Tesla T4 15Gi 7.5 2 1 <none> shared, whole"; err != nil ||
		!strings.HasPrefix(squeezed(out), want) {
		t.Errorf("got %q, %v, want %q", squeezed(out), err, want)
	}
}

// The selector of a model accepts its GPUs and no others.
func TestModelSelectors(t *testing.T) {
	s := newCluster(t)
	s.Slices = append(s.Slices, foreign())
	name := s.device(t, "a", "gpu-af-00-0").Attributes["productName"]
	*name.StringValue = `Quadro "D'Or" \`
	gpus := gpusOf(&s.Snapshot, driversOf(s.Slices))
	for i, m := range modelsOf(t.Context(), gpus, &s.Snapshot) {
		s.Classes = []*resourceapi.DeviceClass{class("it", m.Selector)}
		for j, of := range modelsOf(t.Context(), gpus, &s.Snapshot) {
			if accepts := len(of.Classes) == 1; accepts != (i == j) {
				t.Errorf("%s accepts %s: %t", m.Selector, of.Name, accepts)
			}
		}
	}
}

func TestModelsUnread(t *testing.T) {
	s := newCluster(t)
	s.forbidden = []string{claimsPath, "/apis/resource.k8s.io/v1/deviceclasses"}
	out, _, err := s.run(t, "models", "--no-headers", "--model", "T4")
	if want := "Tesla T4 15Gi 7.5 2 ? <none> ?"; !strings.HasPrefix(squeezed(out), want) {
		t.Errorf("got %q, want %q", squeezed(out), want)
	}
	if err == nil || !strings.Contains(err.Error(), `the verb "list" on deviceclasses.resource.k8s.io`) {
		t.Errorf("got error %v, want the missing right", err)
	}
}
