// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A device for virtual machines is no GPU of its own: who has it has all of its GPU.
func TestGPUForVirtualMachines(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*resourceapi.ResourceSlice)
		claims []*resourceapi.ResourceClaim
		want   string
	}{
		{"nobody", nil, nil,
			"38: idle 1000\n3a: idle 1000\na8: idle 1000\naa: idle 1000\n4 available, 4 of the node, 3 kinds"},
		{"a virtual machine", nil, []*resourceapi.ResourceClaim{claim("vm", "n", "gpu-aa-00-0-vfio")},
			"38: idle 1000\n3a: idle 1000\na8: idle 1000\naa: idle 0 vm 46068Mi 100%\n" +
				"3 available, 4 of the node, 3 kinds"},
		{"a virtual machine, and shares of another GPU", nil, []*resourceapi.ResourceClaim{
			claim("vm", "n", "gpu-aa-00-0-vfio"), claim("share", "n", "gpu-38-00-0", "memory=23034Mi", "cores=0")},
			"38: idle 500 share 23034Mi 0%\n3a: idle 1000\na8: idle 1000\naa: idle 0 vm 46068Mi 100%\n" +
				"2 available, 4 of the node, 3 kinds"},
		{"only virtual machines can have it", func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
				return d.Name == "gpu-aa-00-0"
			})
		}, nil, "38: idle 1000\n3a: idle 1000\na8: idle 1000\naa: idle 1000\n3 available, 4 of the node, 3 kinds"},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := cluster.New(clustertest.Driver)
			published := clustertest.Slices(t, clustertest.SimNode{Name: "n", Profile: "l40s-x4"})
			for _, s := range published {
				if row.change != nil {
					row.change(s)
				}
				v.SetSlice(v.SlimSlice(s))
			}
			for _, c := range row.claims {
				v.SetClaim(c)
			}
			if got := vmText(v); got != row.want {
				t.Errorf("got %s\nwant %s", got, row.want)
			}
			for _, c := range row.claims {
				v.DeleteClaim(types.NamespacedName{Namespace: "ns", Name: c.Name})
			}
			for _, s := range published {
				v.DeleteSlice(s.Name)
			}
			for g := range v.GPUs {
				t.Errorf("GPU %s remains without slices and claims", g.Name)
			}
		})
	}
}

// vmText prints the idle thousandths of the GPUs of the node n, their holders, and how many GPUs there are.
func vmText(v *cluster.View) string {
	var lines []string
	for g, held := range v.GPUs {
		line := fmt.Sprintf("%s: idle %d", g.Name[len("gpu-"):len("gpu-38")], g.Idle(g.Use(), nil))
		for _, h := range held {
			line += fmt.Sprintf(" %s %s %d%%", h.Claim.Name, resource.NewQuantity(h.Memory, resource.BinarySI), h.Cores)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	available, ofNode := int64(0), 0
	for _, k := range v.Kinds() {
		if k.Type() == gpu.TypeGPU {
			available += v.Available(k, asks(nil, nil, 1), 100)
		}
	}
	v.Nodes([]string{"n"}, func(_ int, devices *cluster.NodeDevices) { ofNode = len(devices.GPUs) })
	return fmt.Sprintf("%s\n%d available, %d of the node, %d kinds", strings.Join(lines, "\n"), available, ofNode,
		len(v.Kinds()))
}

// A quota counts a GPU for a virtual machine as a whole GPU, before and after the claim has it. One of unknown size
// counts as the largest.
func TestAmountForVirtualMachines(t *testing.T) {
	const want = "map[cores:100 gpus:1 memory:48305799168 tflops:362]"
	v := clustertest.New(t, clustertest.SimNode{Name: "n", Profile: "l40s-x4"})
	unknown := cluster.New(clustertest.Driver)
	for _, class := range clustertest.Classes(t) {
		unknown.SetClass(class)
	}
	for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "n", Profile: "l40s-x4"}) {
		for i, d := range s.Spec.Devices {
			if gpu.IsVFIO(d.Name) {
				s.Spec.Devices[i].Capacity["memory"] = resourceapi.DeviceCapacity{}
			}
		}
		unknown.SetSlice(s)
	}
	pending := clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: vfio.gpu.nvidia.com}}]")
	for _, row := range []struct {
		name  string
		view  *cluster.View
		claim *resourceapi.ResourceClaim
	}{
		{"pending", v, pending},
		{"allocated", v, claim("vm", "n", "gpu-aa-00-0-vfio")},
		{"pending, for a GPU of unknown size", unknown, pending},
	} {
		amount, err := row.view.AmountOf(t.Context(), row.claim)
		if err != nil {
			t.Fatal(row.name, err)
		}
		if got := fmt.Sprint(amount); got != want {
			t.Errorf("%s: got %s, want %s", row.name, got, want)
		}
	}
}
