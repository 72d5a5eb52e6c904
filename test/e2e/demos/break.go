// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// breakAnnotation on a demo's namespace is a command of simctl and its last argument, such as "xid 79". It is run for
// the GPU of the demo's first pod that is ready.
const breakAnnotation = "demo.gpu-dra-driver/break"

// broken is the GPU for which the command was run. The zero value: none.
type broken struct {
	node, device, command string
	plugin                client.ObjectKey // of the node
}

// breakGPU runs the command of the demo's annotation, if it has one.
func (d Demo) breakGPU(ctx context.Context, cluster *kube.Cluster, patience time.Duration) (broken, error) {
	var namespace, command string
	for _, o := range d.Objects {
		if text := o.GetAnnotations()[breakAnnotation]; o.GetKind() == "Namespace" && text != "" {
			namespace, command = o.GetName(), text
		}
	}
	if command == "" {
		return broken{}, nil
	}
	var b broken
	err := kube.Until(ctx, patience, "a pod with a GPU to break", func(ctx context.Context) (bool, string, error) {
		pods, err := cluster.Pods(ctx, namespace)
		for i := range pods {
			if p := &pods[i]; kube.Ready(p) && b.device == "" {
				b.node = p.Spec.NodeName
				b.device, err = deviceOf(ctx, cluster, p)
			}
		}
		if err != nil {
			return false, "", err
		}
		state, err := cluster.State(ctx, namespace)
		return b.device != "", state, err
	})
	if err != nil {
		return broken{}, err
	}
	name, last, _ := strings.Cut(command, " ")
	b.command = strings.Join([]string{name, b.device, last}, " ")
	if b.plugin, err = pluginOn(ctx, cluster, b.node); err != nil {
		return broken{}, err
	}
	_, err = cluster.Simctl(ctx, b.plugin, strings.Fields(b.command)...)
	return b, err
}

// pluginOn returns the plugin's pod on the node.
func pluginOn(ctx context.Context, cluster *kube.Cluster, node string) (client.ObjectKey, error) {
	plugins, err := cluster.Pods(ctx, "", kube.PluginLabels)
	if err != nil {
		return client.ObjectKey{}, err
	}
	for _, p := range plugins {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			return client.ObjectKeyFromObject(&p), nil
		}
	}
	return client.ObjectKey{}, fmt.Errorf("no plugin on %s", node)
}

// clear ends what the command has caused, so that the next demo can have the GPU. It repeats the command that clears,
// which fails if the plugin does not follow it in time.
func (b broken) clear(ctx context.Context, cluster *kube.Cluster, patience time.Duration) error {
	if b.device == "" {
		return nil
	}
	return kube.Until(ctx, patience, b.device+" to be cleared", func(ctx context.Context) (bool, string, error) {
		_, err := cluster.Exec(ctx, b.plugin, kube.SimulatedPlugin, "health", "--clear", b.device)
		return err == nil, "", err
	})
}

// deviceOf returns the first device of the pod's claims.
func deviceOf(ctx context.Context, cluster *kube.Cluster, pod *corev1.Pod) (string, error) {
	for _, name := range claimNames(pod) {
		var claim resourceapi.ResourceClaim
		if err := cluster.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name}, &claim); err != nil {
			return "", err
		}
		if claim.Status.Allocation != nil && len(claim.Status.Allocation.Devices.Results) > 0 {
			return claim.Status.Allocation.Devices.Results[0].Device, nil
		}
	}
	return "", nil
}

// moved reports that no pod of the demo uses the broken GPU any more.
func (b broken) moved(ctx context.Context, cluster *kube.Cluster, pods []corev1.Pod) ([]string, error) {
	if b.device == "" {
		return nil, nil
	}
	for i := range pods {
		device, err := deviceOf(ctx, cluster, &pods[i])
		if err != nil || device == b.device && pods[i].Spec.NodeName == b.node {
			return nil, err
		}
	}
	return []string{fmt.Sprintf("moved:  no pod uses %s on %s any more", b.device, b.node)}, nil
}
