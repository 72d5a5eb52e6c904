// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
)

func TestCheck(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	node.Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.8"
	problems := func(version string) []string {
		if strings.HasPrefix(version, "containerd://1.") {
			return []string{version + " knows no CDI", "update it"}
		}
		return nil
	}
	for _, row := range []struct {
		name, node, version string
		allocatable         corev1.ResourceList
		want                string
	}{
		{"a runtime that lacks something", "node-1", "containerd://1.6.8", nil,
			"Warning RuntimeWithoutCDI: containerd://1.6.8 knows no CDI; update it"},
		{"one that lacks nothing", "node-1", "containerd://2.4.2", nil, ""},
		{"a node that cannot be read is not judged", "node-2", "containerd://1.6.8", nil, ""},
		{"a device plugin", "node-1", "containerd://2.4.2", corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse("8"), "nvidia.com/mig-1g.10gb": resource.MustParse("7"),
			"nvidia.com/gpu.shared": resource.MustParse("0"), "cpu": resource.MustParse("2")},
			"Warning DevicePluginPresent: a device plugin offers nvidia.com/gpu, nvidia.com/mig-1g.10gb: keep " +
				"NVIDIA's device plugin off the nodes of this driver"},
		{"a device plugin for virtual machines", "node-1", "containerd://2.4.2", corev1.ResourceList{
			"nvidia.com/GA102GL_A10": resource.MustParse("2")},
			"Warning DevicePluginPresent: a device plugin offers nvidia.com/GA102GL_A10: keep " +
				"NVIDIA's device plugin off the nodes of this driver"},
		{"network cards of NVIDIA", "node-1", "containerd://2.4.2", corev1.ResourceList{
			"nvidia.com/hostdev": resource.MustParse("8"), "nvidia.com/mlnxnics": resource.MustParse("8"),
			"nvidia.com/rdma_shared_device_a": resource.MustParse("63"),
			"nvidia.com/sriov_rdma_vf":        resource.MustParse("8")}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			node.Status.Allocatable = row.allocatable
			node.Status.NodeInfo.ContainerRuntimeVersion = row.version
			var got string
			told := recorder(func(text string) { got += text })
			client := fake.NewClientset(node.DeepCopy())
			reporter := report.NewReporterTo(told, report.ReporterConfig{Driver: driver, Node: row.node,
				Client: client})
			check(t.Context(), client, row.node, reporter, problems)
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// recorder calls the function with the text of every event.
type recorder func(text string)

func (r recorder) Eventf(_, _ runtime.Object, eventType, reason, _, note string, args ...any) {
	r(eventType + " " + reason + ": " + fmt.Sprintf(note, args...))
}
