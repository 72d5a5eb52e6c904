// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// labelAnnotation on a demo's namespace has a profile of simulated GPUs and a label, such as "l40s-x4 a.io/b=c". While
// the demo runs, the node with that profile has the label. The demo's pods end before that, because they may need it.
const labelAnnotation = "demo.gpu-dra-driver/label"

// labelled is the node with the label. The zero value: the demo labels none.
type labelled struct{ node, key string }

// labelOf returns what the demo's annotation says.
func labelOf(d Demo) (profile, label string, ok bool) {
	for _, o := range d.Objects {
		if text := o.GetAnnotations()[labelAnnotation]; o.GetKind() == "Namespace" && text != "" {
			return strings.Cut(text, " ")
		}
	}
	return "", "", false
}

// label labels the node of the demo's annotation, if it has one.
func (d Demo) label(ctx context.Context, cluster *kube.Cluster) (labelled, error) {
	profile, label, ok := labelOf(d)
	if !ok {
		return labelled{}, nil
	}
	var nodes corev1.NodeList
	if err := cluster.List(ctx, &nodes, client.MatchingLabels{kube.ProfileLabel: profile}); err != nil {
		return labelled{}, err
	}
	if len(nodes.Items) == 0 {
		return labelled{}, fmt.Errorf("no node with the label %s=%s", kube.ProfileLabel, profile)
	}
	l := labelled{node: nodes.Items[0].Name}
	var value string
	l.key, value, _ = strings.Cut(label, "=")
	return l, cluster.Label(ctx, l.node, l.key, &value)
}

// remove deletes the pods of the demo and what it has beside its namespaces, and then the label.
func (l labelled) remove(ctx context.Context, cluster *kube.Cluster, patience time.Duration, d Demo) error {
	if l.node == "" {
		return nil
	}
	return errors.Join(cluster.Empty(ctx, patience, d.Namespaces()...), d.DeleteBeside(ctx, cluster, patience),
		cluster.Label(ctx, l.node, l.key, nil))
}

// Beside returns the objects in namespaces that the demo does not create.
func (d Demo) Beside() []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(d.Objects), func(o *unstructured.Unstructured) bool {
		return o.GetNamespace() == "" || slices.Contains(d.Namespaces(), o.GetNamespace())
	})
}

// DeleteBeside deletes these objects, and waits until they and their pods are gone.
func (d Demo) DeleteBeside(ctx context.Context, cluster *kube.Cluster, patience time.Duration) error {
	for _, o := range d.Beside() {
		err := cluster.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationForeground))
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		what := fmt.Sprintf("%s %s to be gone", o.GetKind(), o.GetName())
		if err := kube.Until(ctx, patience, what, func(ctx context.Context) (bool, string, error) {
			err := cluster.Get(ctx, client.ObjectKeyFromObject(o), o.DeepCopy())
			return apierrors.IsNotFound(err), "", client.IgnoreNotFound(err)
		}); err != nil {
			return err
		}
	}
	return nil
}
