// SPDX-License-Identifier: Apache-2.0

package feature

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// EventLifetime is how long the API server keeps an event.
const EventLifetime = time.Hour

// CreateEvent creates an event of that name. It returns false if the event exists, or the namespace does not. A name
// that depends only on the object and the text keeps a new leader from repeating the event. Events about objects
// without a namespace are in the namespace default.
func CreateEvent(ctx context.Context, to client.Client, kind event.Kind, about *corev1.ObjectReference, name,
	text string) (bool, error) {
	now := metav1.Now()
	err := to.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault), Name: name},
		InvolvedObject: *about,
		Type:           kind.Type, Reason: kind.Reason, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "dra-controller"}, ReportingController: "dra-controller",
		Message: event.Text(text),
	})
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s %s/%s: %w", about.Kind, about.Namespace, about.Name, err)
	}
	return true, nil
}
