// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// slim keeps what is needed of a pod.
func slim(pod *corev1.Pod) *corev1.Pod {
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp}}
	s.Spec.NodeName, s.Spec.SchedulingGates = pod.Spec.NodeName, pod.Spec.SchedulingGates
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			c.Message = "" // it is long
			s.Status.Conditions = append(s.Status.Conditions, c)
		}
	}
	if !feature.IsRefused(s) {
		return s // it is updated when it is refused
	}
	s.Spec.ResourceClaims, s.Status.ResourceClaimStatuses = pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses
	s.Spec.InitContainers, s.Spec.Containers = withExtended(pod.Spec.InitContainers), withExtended(pod.Spec.Containers)
	return s
}

// withExtended returns the containers that request extended resources, with nothing else.
func withExtended(all []corev1.Container) (some []corev1.Container) {
	for _, c := range all {
		requests := corev1.ResourceList{}
		for name, n := range c.Resources.Requests {
			if strings.Contains(string(name), "/") {
				requests[name] = n
			}
		}
		if len(requests) > 0 {
			some = append(some, corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests}})
		}
	}
	return some
}

// shape is a request for devices of the driver. Pods with equal requests have the same one.
type shape struct {
	text         string
	alternatives []resourceapi.DeviceSubRequest // one of them is enough
}

// read returns what the pod still lacks of the driver's devices, in a list that is not nil.
func (r *Retrier) read(ctx context.Context, pod *corev1.Pod) ([]*shape, error) {
	all := []*shape{}
	add := func(alternatives ...resourceapi.DeviceSubRequest) error {
		s, err := r.intern(alternatives)
		all = append(all, s)
		return err
	}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return []*shape{}, nil //nolint:nilerr // it is not generated yet: that is why the pod waits
		}
		if name == nil {
			continue
		}
		claim, err := r.reads.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return []*shape{}, nil
		case err != nil:
			return nil, fmt.Errorf("claim %s: %w", types.NamespacedName{Namespace: pod.Namespace, Name: *name}, err)
		case claim.Status.Allocation != nil:
			continue
		}
		for _, request := range claim.Spec.Devices.Requests {
			alternatives := slices.Clone(cluster.Alternatives(request))
			if len(alternatives) == 0 {
				continue
			}
			for i := range alternatives {
				alternatives[i].Tolerations = nil // one may be for this pod alone
			}
			if err := add(alternatives...); err != nil {
				return nil, err
			}
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			for name, n := range c.Resources.Requests {
				class, ok := r.view.ExtendedClass(string(name))
				if !ok || n.Value() <= 0 {
					continue
				}
				if err := add(resourceapi.DeviceSubRequest{DeviceClassName: class, Count: n.Value()}); err != nil {
					return nil, err
				}
			}
		}
	}
	return all, nil
}

// intern returns the shape of the alternatives.
func (r *Retrier) intern(alternatives []resourceapi.DeviceSubRequest) (*shape, error) {
	text, err := json.Marshal(alternatives)
	if err != nil {
		return nil, fmt.Errorf("encode a request: %w", err)
	}
	if known := r.shapes[string(text)]; known != nil {
		return known, nil
	}
	s := &shape{string(text), alternatives}
	r.shapes[s.text] = s
	return s, nil
}
