// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
)

// What is checked of the Node object: when, and how long the API server may take.
const (
	checkPeriod  = time.Hour
	checkTimeout = 10 * time.Second
)

// Check reports, until ctx ends, what the container runtime of the node lacks, judging by its version, before the first
// container starts without its GPU; and a device plugin that gives out the same GPUs. problems returns what a runtime
// of a version ("containerd://1.7.24") lacks, and how to fix it.
func Check(ctx context.Context, client kubernetes.Interface, name string, reporter *report.Reporter,
	problems func(version string) []string) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { check(ctx, client, name, reporter, problems) }, checkPeriod)
}

func check(ctx context.Context, client kubernetes.Interface, name string, reporter *report.Reporter,
	problems func(version string) []string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	found, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		logger.Info("This node cannot be read: neither its container runtime nor its device plugins are known", "err",
			err)
		return
	}
	version := found.Status.NodeInfo.ContainerRuntimeVersion
	if all := problems(version); len(all) > 0 {
		logger.Info("Container runtime may not give containers their GPUs", "runtime", version, "problems", all)
		reporter.Node(report.Events.RuntimeWithoutCDI, strings.Join(all, "; "))
	}
	if offered := devicePluginResources(found.Status.Allocatable); len(offered) > 0 {
		logger.Info("A device plugin offers GPUs of this node", "resources", offered)
		reporter.Node(report.Events.DevicePluginPresent, fmt.Sprintf("a device plugin offers %s: keep NVIDIA's "+
			"device plugin off the nodes of this driver", strings.Join(offered, ", ")))
	}
}

// devicePluginResources returns the resources of NVIDIA's device plugins that pods can have, sorted: GPUs and
// partitions, and for virtual machines those with the name of a chip. NVIDIA's network operator names those of network
// cards nvidia.com/..., too.
func devicePluginResources(allocatable corev1.ResourceList) []string {
	var names []string
	for name, amount := range allocatable {
		if isGPU.MatchString(string(name)) && !amount.IsZero() {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// isGPU matches nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb and nvidia.com/GA102GL_A10.
var isGPU = regexp.MustCompile(`^nvidia\.com/(gpu(\.shared)?$|mig-|[A-Z])`)
