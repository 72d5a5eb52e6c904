// SPDX-License-Identifier: Apache-2.0

package event

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ClaimReference returns the reference of an event to a claim. It has no resource version, so that client-go counts
// repeated events in one, even if the claim changes.
func ClaimReference(namespace, name string, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: namespace, Name: name, UID: uid}
}

// ClassReference returns the reference of an event to a DeviceClass, without its resource version.
func ClassReference(class *resourceapi.DeviceClass) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass",
		Name: class.Name, UID: class.UID}
}

// PodReference returns the reference of an event to a pod, without its resource version.
func PodReference(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
		UID: pod.UID}
}
