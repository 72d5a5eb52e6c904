// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

func TestCompare(t *testing.T) {
	for _, tc := range []struct{ name, want, got, diff string }{
		{"the same lines", "a\nb", "a\nb", ""},
		{"a placeholder stands for any text", "on <node>: <device>, ok", "on node-1: gpu-3b-00-0, ok", ""},
		{"a placeholder stands for the same text everywhere", "<uuid>\n<uuid>", "GPU-1\nGPU-2",
			"  GPU-1\n- GPU-1\n+ GPU-2\n"},
		{"twice in one line", "<uuid> = <uuid>", "GPU-1 = GPU-2", "- <uuid> = <uuid>\n+ GPU-1 = GPU-2\n"},
		{"a placeholder is never empty", "uuid: <uuid>", "uuid: ", "- uuid: <uuid>\n+ uuid: \n"},
		{"signs of regular expressions mean themselves", "a.c (x) [<n>]", "a.c (x) [1]", ""},
		{"a sign does not match another", "a.c", "abc", "- a.c\n+ abc\n"},
		{"a line too much", "a\nb", "a\nx\nb", "  a\n+ x\n  b\n"},
		{"a line too few", "a\nb\nc", "a\nc", "  a\n- b\n  c\n"},
		{"nothing came", "a\nb", "", "- a\n- b\n"},
		{"something came", "", "a", "+ a\n"},
		{"a model with spaces", "<device>, <model> (UUID: <uuid>)", "gpu-1, NVIDIA H100 80GB HBM3 (UUID: GPU-1)", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Compare(lines(tc.want), lines(tc.got)); got != tc.diff {
				t.Errorf("got\n%s\nwant\n%s", got, tc.diff)
			}
		})
	}
}

func TestReadme(t *testing.T) {
	for _, tc := range []struct{ name, readme, asked, expected, err string }{
		{"a paragraph over two lines", "# Title\n\nOne GPU,\nany.\n\nMore.\n\n```text expected\na\nb\n```\n",
			"One GPU, any.", "a\nb", ""},
		{"other blocks do not count", "x\n\n```text\nno\n```\n\n```text expected\nyes\n```\n", "x", "yes", ""},
		{"no block", "x\n", "x", "", "no block that begins with"},
		{"a block without end", "x\n\n```text expected\na\n", "x", "", "has no end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := asked(tc.readme); got != tc.asked {
				t.Errorf("asked: got %q, want %q", got, tc.asked)
			}
			block, err := expected(tc.readme)
			if got := strings.Join(block, "\n"); got != tc.expected {
				t.Errorf("expected: got %q, want %q", got, tc.expected)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
		})
	}
}

// clusterScoped are the kinds without a namespace in the demos.
var clusterScoped = []string{"Namespace", "DeviceClass", "PriorityClass", "ResourceSlice"}

// Users rely on the demos. This test checks what can be checked without a cluster.
func TestDemosOfTheRepository(t *testing.T) {
	version, err := os.ReadFile("../../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	all, err := Load("../../../demo")
	if err != nil {
		t.Fatal(err)
	}
	for _, demo := range all {
		t.Run(demo.Name, func(t *testing.T) {
			if got, want := demo.Expected[0], "asked:  "+demo.Asked; got != want {
				t.Errorf("first expected line: got %q, want %q", got, want)
			}
			for _, o := range demo.Objects {
				if !slices.Contains(clusterScoped, o.GetKind()) && o.GetNamespace() != demo.Namespaces()[0] &&
					o.GetNamespace() != "gpu-dra-driver" {
					t.Errorf("%s %s is in namespace %q, want the demo's own or the driver's", o.GetKind(), o.GetName(),
						o.GetNamespace())
				}
			}
			for _, image := range images(demo) {
				of := strings.TrimSpace(string(version))
				if image != "localhost/gpu-dra-demo:"+of && image != "localhost/gpu-dra-driver:"+of {
					t.Errorf("image: got %s, want that of the demos or of the driver, %s", image, of)
				}
			}
			if _, _, ok := labelOf(demo); !ok && len(demo.Beside()) > 0 {
				t.Errorf("%s stays after the demo, without the annotation %s", demo.Beside()[0].GetName(),
					labelAnnotation)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	all := []Demo{{Name: "a"}, {Name: "b"}}
	for _, tc := range []struct {
		name  string
		names []string
		want  string
	}{
		{"no names select all", nil, "a b"},
		{"names select in their order", []string{"b", "a"}, "b a"},
		{"an unknown name is an error", []string{"c"}, "select demos: there is none called c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			selected, err := Select(all, tc.names)
			var names []string
			for _, d := range selected {
				names = append(names, d.Name)
			}
			got := strings.Join(names, " ")
			if err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAlike(t *testing.T) {
	root := func(value string) resourceapi.Device {
		return resourceapi.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pcieRoot": {StringValue: &value},
		}}
	}
	port := func(value int64) resourceapi.Device {
		return resourceapi.Device{
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"port": {IntValue: &value}},
		}
	}
	devices := map[address]resourceapi.Device{
		{"gpu.example.com", "node", "gpu"}: root("pci0000:15"),
		{"nic.example.com", "node", "nic"}: root("pci0000:15"),
		{"nic.example.com", "node", "far"}: root("pci0000:ff"),
		{"nic.example.com", "node", "one"}: port(1),
		{"nic.example.com", "node", "uno"}: port(1),
	}
	for _, tc := range []struct {
		name, attribute string
		requests        []string
		results         string // request=driver/device
		want            string
	}{
		{"devices of two drivers", "resource.kubernetes.io/pcieRoot", nil, "a=gpu/gpu b=nic/nic",
			"alike:  resource.kubernetes.io/pcieRoot pci0000:15"},
		{"different devices are listed one by one", "resource.kubernetes.io/pcieRoot", nil, "a=gpu/gpu b=nic/far",
			"alike:  resource.kubernetes.io/pcieRoot pci0000:15, pci0000:ff"},
		{"other requests do not count", "resource.kubernetes.io/pcieRoot", []string{"a"}, "a=gpu/gpu b=nic/far",
			"alike:  resource.kubernetes.io/pcieRoot pci0000:15"},
		{"alternatives of a request", "resource.kubernetes.io/pcieRoot", []string{"a"},
			"a/first=gpu/gpu a/first=nic/nic", "alike:  resource.kubernetes.io/pcieRoot pci0000:15"},
		{"an attribute in the driver's own domain", "nic.example.com/port", nil, "a=nic/one a=nic/uno",
			"alike:  nic.example.com/port 1"},
		{"a device that does not have it", "nic.example.com/port", nil, "a=nic/one a=nic/nic",
			"alike:  nic.example.com/port 1, unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{
				Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
			}
			claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{
				{Requests: tc.requests, MatchAttribute: new(resourceapi.FullyQualifiedName(tc.attribute))},
				{DistinctAttribute: new(resourceapi.FullyQualifiedName("a.example.com/other"))},
			}
			for _, result := range strings.Fields(tc.results) {
				request, device, _ := strings.Cut(result, "=")
				driver, name, _ := strings.Cut(device, "/")
				claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
					resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver + ".example.com",
						Pool: "node", Device: name})
			}
			if got := strings.Join(equalAttributes(devices, claim), "\n"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// images returns the images of the demo's pods.
func images(d Demo) []string {
	var found []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if image, ok := v["image"].(string); ok {
				found = append(found, image)
			}
			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	for _, o := range d.Objects {
		walk(o.Object)
	}
	return found
}

// What is made for a claim has no UUID before, so its card stands there.
func TestDescribe(t *testing.T) {
	for name, uuid := range map[string]string{"gpu-3b-00-0": "UUID: GPU-1",
		"gpu-3b-00-0-mig-1g10gb-0": "part of GPU-1"} {
		attribute := map[string]string{"uuid": name, "parentUUID": "GPU-1", "productName": "H100"}
		if !strings.Contains(name, "mig") {
			attribute["uuid"] = "GPU-1"
		}
		device := resourceapi.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		for key, value := range attribute {
			device.Attributes[resourceapi.QualifiedName(key)] = resourceapi.DeviceAttribute{StringValue: &value}
		}
		const driver = "gpu.nvidia.com"
		got := describe(driver, resourceapi.DeviceRequestAllocationResult{Driver: driver, Device: name}, device)
		if want := name + ", H100 (" + uuid + ")"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
