// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WaitRollout waits until every DaemonSet and Deployment of the namespace has replaced its pods and all are ready,
// except those whose pods the administrator replaces. Patience: see Until; helm's own wait ends at a time.
func (c *Cluster) WaitRollout(ctx context.Context, patience time.Duration, namespace string) error {
	return Until(ctx, patience, "the rollout in "+namespace, func(ctx context.Context) (bool, string, error) {
		left, err := c.rollout(ctx, namespace)
		if err != nil || left == "" {
			return err == nil, "", err
		}
		state, err := c.State(ctx, namespace)
		return false, left + "\n" + state, err
	})
}

// rollout says which pods are not yet replaced or not ready.
func (c *Cluster) rollout(ctx context.Context, namespace string) (string, error) {
	var sets appsv1.DaemonSetList
	if err := c.List(ctx, &sets, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("list daemon sets of %s: %w", namespace, err)
	}
	var left []string
	for i := range sets.Items {
		set, s := &sets.Items[i], &sets.Items[i].Status
		if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			continue
		}
		if s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled != s.DesiredNumberScheduled ||
			s.NumberReady != s.DesiredNumberScheduled || s.NumberUnavailable > 0 {
			left = append(left, fmt.Sprintf("%s: %d of %d pods are new, %d ready", set.Name, s.UpdatedNumberScheduled,
				s.DesiredNumberScheduled, s.NumberReady))
		}
	}
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("list deployments of %s: %w", namespace, err)
	}
	for i := range deployments.Items {
		d, s := &deployments.Items[i], &deployments.Items[i].Status
		if want := ptr.Deref(d.Spec.Replicas, 1); s.ObservedGeneration != d.Generation || s.UpdatedReplicas != want ||
			s.Replicas != want || s.ReadyReplicas != want {
			left = append(left, fmt.Sprintf("%s: %d of %d pods are new, %d ready, %d in all", d.Name,
				s.UpdatedReplicas, want, s.ReadyReplicas, s.Replicas))
		}
	}
	return strings.Join(left, "; "), nil
}
