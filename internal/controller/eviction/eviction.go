// SPDX-License-Identifier: Apache-2.0

// Package eviction evicts pods from devices with a NoExecute taint if they got the devices as an extended resource,
// such as nvidia.com/gpu: 1. The device taint eviction of Kubernetes looks only at the claims in the spec of a pod, and
// the claim of such a pod is in status.extendedResourceClaimStatus (kubernetes/kubernetes#141290).
package eviction

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// The rate limit of evictions, in requests per second: the default one of the controller manager, which evicts the
// other pods. An eviction is up to three requests, beside its event.
const (
	qps   = 20
	burst = 30
)

// Add evicts pods on the leader.
func Add(ctx context.Context, c *feature.Controller) error {
	limited := rest.CopyConfig(c.REST)
	limited.QPS, limited.Burst = qps, burst
	deletes, err := kubernetes.NewForConfig(limited)
	if err != nil {
		return err
	}
	reads, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return err
	}
	rules := newRules(reads)
	e := &evictor{driver: c.View.Driver(), cached: c.Manager.GetClient(), pods: deletes.CoreV1(), rules: rules.list,
		tell: func(ctx context.Context, pod *corev1.Pod, text string) error {
			_, err := feature.CreateEvent(ctx, c.Direct, Evicted, event.PodReference(pod), "evicted-"+string(pod.UID),
				text)
			return err
		},
		evicted: metrics.NewEvictedPods()}
	return errors.Join(index(ctx, c.Manager.GetFieldIndexer()), ctrlmetrics.Registry.Register(e.evicted),
		c.Manager.Add(rules), e.watch(c.Manager, rules.changed))
}
