// SPDX-License-Identifier: Apache-2.0

// Package clustertest creates views for tests, with the slices of simulated nodes and the classes of the Helm chart.
package clustertest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// Driver is the name of the driver.
const Driver = "gpu.nvidia.com"

// SimNode is a node with simulated GPUs.
type SimNode struct {
	Name    string
	Profile string
	Use     gpu.SharingMode // of all its GPUs
}

// New returns a view with the chart's classes and the slices of the nodes.
func New(t testing.TB, nodes ...SimNode) *cluster.View {
	t.Helper()
	v := cluster.New(Driver)
	for _, class := range Classes(t) {
		v.SetClass(class)
	}
	for _, n := range nodes {
		for _, s := range Slices(t, n) {
			v.SetSlice(v.SlimSlice(s))
		}
	}
	return v
}

// Slices returns the slices that the node's plugin would publish.
func Slices(t testing.TB, n SimNode) []*resourceapi.ResourceSlice {
	t.Helper()
	devices := simtest.Discover(t, n.Profile)
	inv := inventory.Unclaimed(devices, func(gpu.Device) gpu.SharingMode { return n.Use })
	all := inventory.Slices(Driver, n.Name, inv.Pools(n.Name))
	for i, slice := range all {
		slice.Name = fmt.Sprint(slice.GenerateName, i)
	}
	return all
}

// Classes returns the classes of the chart.
func Classes(t testing.TB) []*resourceapi.DeviceClass {
	t.Helper()
	all, err := classes()
	if err != nil {
		t.Fatal(err)
	}
	var own []*resourceapi.DeviceClass
	for _, class := range all {
		own = append(own, class.DeepCopy())
	}
	return own
}

// classes reads the classes, once.
var classes = sync.OnceValues(func() ([]*resourceapi.DeviceClass, error) {
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here),
		"../../deployments/helm/testdata/default.golden.yaml"))
	if err != nil {
		return nil, err
	}
	var all []*resourceapi.DeviceClass
	for _, document := range strings.Split(string(text), "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(document), &class); err != nil {
			return nil, err
		}
		if class.Kind == "DeviceClass" {
			all = append(all, &class)
		}
	}
	return all, nil
})

// Claim returns a claim with that spec.devices, defaulted as by the API server.
func Claim(t testing.TB, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "claim"}}
	if err := yaml.UnmarshalStrict([]byte(devices), &claim.Spec.Devices); err != nil {
		t.Fatal(err)
	}
	cluster.SetDefaults(&claim.Spec)
	return claim
}

// Fleet adds nodes with eight GPUs each to the view, in equal parts of that many models, each of another speed. Model 0
// is the strongest. The name of a node is "model-number".
func Fleet(t testing.TB, v *cluster.View, nodes, models int, use gpu.SharingMode) {
	t.Helper()
	like := Slices(t, SimNode{Name: "like", Profile: "dgx-h100", Use: use})
	for model := range models {
		var slices []*resourceapi.ResourceSlice
		for _, s := range like {
			s = s.DeepCopy()
			for i := range s.Spec.Devices {
				attributes := s.Spec.Devices[i].Attributes
				product := fmt.Sprintf("Model %d", model)
				attributes["productName"] = resourceapi.DeviceAttribute{StringValue: &product}
				attributes["peakCompute"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(1000 - model))}
			}
			slices = append(slices, s)
		}
		for number := model; number < nodes; number += models {
			name := fmt.Sprintf("%d-%d", model, number)
			for i, s := range slices {
				of := *s
				of.Name = fmt.Sprintf("%05x-%s-%s", i, Driver, name)
				of.Spec.NodeName, of.Spec.Pool.Name = &name, strings.Replace(s.Spec.Pool.Name, "like", name, 1)
				v.SetSlice(v.SlimSlice(&of))
			}
		}
	}
}
