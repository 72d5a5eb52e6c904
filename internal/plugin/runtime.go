// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// runtimeTimeout is how long the API server may take to tell which container runtime the node has.
const runtimeTimeout = 10 * time.Second

// checkRuntime says, before the first container starts without its GPU, what the container runtime lacks, as far as its version tells.
func checkRuntime(ctx context.Context, client kubernetes.Interface, node string, problems func(version string) []string, event func(e Event, format string, args ...any)) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	found, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		logger.Info("Container runtime of this node not known, it was not looked at", "err", err)
		return
	}
	version := found.Status.NodeInfo.ContainerRuntimeVersion
	if all := problems(version); len(all) > 0 {
		logger.Info("Container runtime may not give containers their GPUs", "runtime", version, "problems", all)
		event(Events.RuntimeWithoutCDI, "%s", note(strings.Join(all, "; ")))
	}
}
