// SPDX-License-Identifier: Apache-2.0

// Package kube contains the cluster operations of the demos and the end-to-end tests: apply, wait, read logs, exec in a
// container, and diagnose failures. It only needs a kubeconfig.
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// fieldOwner is the field manager of applied objects.
const fieldOwner = "gpu-dra-driver-e2e"

// Cluster is a client of a Kubernetes cluster.
type Cluster struct {
	client.Client
	config     *rest.Config
	set        kubernetes.Interface
	kubeconfig string // its file, if it was read from one

	warnings *warnings
}

// Connect reads a kubeconfig; an empty path means $KUBECONFIG, then the default path. It does not connect yet.
func Connect(kubeconfig string) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	c, err := connect(config)
	if err != nil {
		return nil, err
	}
	c.kubeconfig = rules.GetDefaultFilename()
	return c, nil
}

func connect(config *rest.Config) (*Cluster, error) {
	log.SetLogger(klog.Logger{}) // controller-runtime warns without one
	config.QPS = -1              // the API server's fairness limits requests
	heard := &warnings{}
	config.WarningHandler = heard
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return &Cluster{Client: c, config: config, set: set, warnings: heard}, nil
}

// Apply applies the objects in order, with server-side apply. It is idempotent.
func (c *Cluster) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()),
			client.FieldOwner(fieldOwner), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// ApplyTyped is Apply for objects of Go types. Their TypeMeta must be set.
func (c *Cluster) ApplyTyped(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return fmt.Errorf("convert %s: %w", o.GetName(), err)
		}
		delete(fields, "status")
		if err := c.Apply(ctx, &unstructured.Unstructured{Object: fields}); err != nil {
			return err
		}
	}
	return nil
}

// ProfileLabel is the label of nodes with the profile of their simulated GPUs.
const ProfileLabel = "gpu.nvidia.com/sim-profile"

// Label sets a label of a node; without a value, it removes it.
func (c *Cluster) Label(ctx context.Context, node, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{key: value}}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch(types.MergePatchType, patch))
}

// Empty deletes the pods and claims of namespaces and the objects that would recreate them, and waits until they are
// gone, so that their GPUs are free. It keeps the namespaces, because deleting even an empty one takes five seconds.
func (c *Cluster) Empty(ctx context.Context, patience time.Duration, names ...string) error {
	for _, name := range names {
		for _, kind := range []client.Object{&appsv1.StatefulSet{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{},
			&corev1.Pod{}, &resourceapi.ResourceClaim{}} {
			if err := c.DeleteAllOf(ctx, kind, client.InNamespace(name)); err != nil {
				return fmt.Errorf("empty namespace %s: %w", name, err)
			}
		}
	}
	for _, name := range names {
		err := Until(ctx, patience, "pods and claims of "+name+" to be gone", func(ctx context.Context) (bool, string,
			error) {
			return c.empty(ctx, name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteNamespaces deletes namespaces without waiting. Missing ones are no error.
func (c *Cluster) DeleteNamespaces(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := c.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete namespace %s: %w", name, err)
		}
	}
	return nil
}

func (c *Cluster) empty(ctx context.Context, namespace string) (bool, string, error) {
	pods, err := c.Pods(ctx, namespace)
	if err != nil {
		return false, "", err
	}
	var claims resourceapi.ResourceClaimList
	if err := c.List(ctx, &claims, client.InNamespace(namespace)); err != nil {
		return false, "", err
	}
	var left []string
	for i := range pods {
		left = append(left, "pod "+pods[i].Name+" "+PodState(&pods[i]))
	}
	for _, claim := range claims.Items {
		left = append(left, fmt.Sprintf("claim %s of %d pods", claim.Name, len(claim.Status.ReservedFor)))
	}
	return len(left) == 0, strings.Join(left, "; "), nil
}

// Slices returns the driver's published slices in the scheduler's order: by pool and name.
func (c *Cluster) Slices(ctx context.Context, driver string) ([]resourceapi.ResourceSlice, error) {
	var list resourceapi.ResourceSliceList
	if err := c.List(ctx, &list, client.MatchingFields{"spec.driver": driver}); err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name), cmp.Compare(a.Name, b.Name))
	})
	return list.Items, nil
}

// SliceVersions returns the UID and the version of the driver's published slices, one per line: on these nodes, or on
// all without names.
func (c *Cluster) SliceVersions(ctx context.Context, driver string, nodes ...string) (string, error) {
	list, err := c.Slices(ctx, driver)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, slice := range list {
		if len(nodes) == 0 || slices.Contains(nodes, ptr.Deref(slice.Spec.NodeName, "")) {
			fmt.Fprintf(&b, "%s %s generation %d resourceVersion %s\n", slice.Name, slice.UID,
				slice.Spec.Pool.Generation, slice.ResourceVersion)
		}
	}
	return b.String(), nil
}
