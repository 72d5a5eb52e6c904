// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PluginLabels selects the driver's plugin pods in any namespace.
var PluginLabels = client.MatchingLabels{"app.kubernetes.io/component": "kubelet-plugin"}

// tail is the number of log lines in diagnostics.
const tail = 40

// Diagnose returns diagnostics of a namespace: pods with their events, claims, and the end of the plugin's log on each
// of their nodes. Errors are reported inline.
func (c *Cluster) Diagnose(ctx context.Context, namespace string) string {
	var b strings.Builder
	pods, err := c.Pods(ctx, namespace)
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	nodes := map[string]bool{}
	for i := range pods {
		c.describePod(ctx, &b, &pods[i])
		nodes[pods[i].Spec.NodeName] = true
	}
	c.describeClaims(ctx, &b, namespace)
	plugins, err := c.Pods(ctx, "", PluginLabels)
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	for i := range plugins {
		if nodes[plugins[i].Spec.NodeName] || len(nodes) == 0 {
			c.describePlugin(ctx, &b, &plugins[i])
		}
	}
	return b.String()
}

func (c *Cluster) describePlugin(ctx context.Context, b *strings.Builder, plugin *corev1.Pod) {
	key := client.ObjectKeyFromObject(plugin)
	fmt.Fprintf(b, "--- plugin %s on %s, %s\n", key, plugin.Spec.NodeName, plugin.Status.Phase)
	text, err := c.Log(ctx, key)
	if err != nil {
		fmt.Fprintln(b, err)
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	fmt.Fprintln(b, strings.Join(lines[max(0, len(lines)-tail):], "\n"))
}

func (c *Cluster) describePod(ctx context.Context, b *strings.Builder, pod *corev1.Pod) {
	fmt.Fprintf(b, "--- pod %s on %q: %s\n", client.ObjectKeyFromObject(pod), pod.Spec.NodeName, pod.Status.Phase)
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.State.Waiting != nil:
			fmt.Fprintf(b, "  %s waits: %s: %s\n", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message)
		case s.State.Terminated != nil:
			fmt.Fprintf(b, "  %s ended: %s, exit status %d\n", s.Name, s.State.Terminated.Reason,
				s.State.Terminated.ExitCode)
		}
	}
	events, err := c.Events(ctx, client.ObjectKeyFromObject(pod))
	if err != nil {
		fmt.Fprintf(b, "  %v\n", err)
	}
	for _, e := range events {
		fmt.Fprintf(b, "  event %s\n", e)
	}
	if !Started(pod) {
		return
	}
	for _, container := range pod.Spec.Containers {
		text, err := c.ContainerLog(ctx, client.ObjectKeyFromObject(pod), container.Name)
		if err != nil {
			text = err.Error()
		}
		for line := range strings.Lines(text) {
			fmt.Fprintf(b, "  log of %s: %s\n", container.Name, strings.TrimRight(line, "\n"))
		}
	}
}

func (c *Cluster) describeClaims(ctx context.Context, b *strings.Builder, namespace string) {
	var claims resourceapi.ResourceClaimList
	if err := c.List(ctx, &claims, client.InNamespace(namespace)); err != nil {
		fmt.Fprintf(b, "list claims: %v\n", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		fmt.Fprintf(b, "--- claim %s:", client.ObjectKeyFromObject(claim))
		if claim.Status.Allocation == nil {
			fmt.Fprintln(b, " not allocated")
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			fmt.Fprintf(b, " %s=%s/%s", r.Request, r.Pool, r.Device)
		}
		fmt.Fprintln(b)
	}
}
