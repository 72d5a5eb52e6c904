// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterstate "github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// attachAnnotation on a ResourceSlice of a demo means that it is a fabric's pool of one GPU. The value names a GPU that
// this one is like. When the scheduler holds a pod back for it, it is attached to the node of the pod.
const attachAnnotation = "demo.gpu-dra-driver/attach"

// reschedule is the binding failure condition with which a fabric's controllers tell the scheduler to allocate again.
const reschedule = "FabricDeviceReschedule"

// fabric stands in for the controllers of a fabric. The zero value: the demo has none.
type fabric struct {
	pool   client.Object // the slice
	device resourceapi.DeviceRequestAllocationResult
	claim  resourceapi.ResourceClaim // that has the device
	plugin client.ObjectKey          // of the node
	added  address                   // the attached GPU
	lines  []string
}

// attach waits until a pod of the demo is held back for the fabric's GPU, and attaches it. What it returns is to be
// detached, also with an error.
func (d Demo) attach(ctx context.Context, cluster *kube.Cluster, patience time.Duration) (*fabric, error) {
	i := slices.IndexFunc(d.Objects, func(o *unstructured.Unstructured) bool {
		return o.GetAnnotations()[attachAnnotation] != ""
	})
	if i < 0 {
		return &fabric{}, nil
	}
	f := &fabric{pool: d.Objects[i]}
	pod, err := d.held(ctx, cluster, patience, f)
	if err != nil {
		return f, err
	}
	node := f.claim.Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values[0] // see bindsToNode
	answer, err := explain(ctx, cluster, pod)
	if err != nil {
		return f, err
	}
	f.lines = append(f.lines, "why:    "+answer)
	if f.plugin, err = pluginOn(ctx, cluster, node); err != nil {
		return f, err
	}
	add := []string{"add", "--like", f.pool.GetAnnotations()[attachAnnotation]}
	name, err := cluster.Simctl(ctx, f.plugin, add...)
	if err != nil {
		return f, err
	}
	f.added = address{f.device.Driver, node, strings.TrimSpace(name)}
	f.lines = append(f.lines, fmt.Sprintf("fabric: attaches %s to %s, by simctl %s", f.added.device, node,
		strings.Join(add, " ")))
	if err := f.wait(ctx, cluster, patience, true); err != nil {
		return f, err
	}
	if err := cluster.Delete(ctx, f.pool); err != nil {
		return f, err
	}
	return f, f.reschedule(ctx, cluster, patience)
}

// held waits until a pod of the demo has a device of the pool, and returns it. It fills in the device and the claim.
func (d Demo) held(ctx context.Context, cluster *kube.Cluster, patience time.Duration, f *fabric) (pod *corev1.Pod,
	err error) {
	var slice resourceapi.ResourceSlice
	if err := cluster.Get(ctx, client.ObjectKeyFromObject(f.pool), &slice); err != nil {
		return nil, err
	}
	namespace := d.Namespaces()[0]
	err = kube.Until(ctx, patience, "a pod that is held back", func(ctx context.Context) (bool, string, error) {
		pods, err := cluster.Pods(ctx, namespace)
		if err != nil {
			return false, "", err
		}
		for i := range pods {
			for _, name := range claimNames(&pods[i]) {
				if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &f.claim); err != nil {
					return false, "", err
				}
				if f.claim.Status.Allocation == nil {
					continue
				}
				for _, r := range f.claim.Status.Allocation.Devices.Results {
					if r.Pool == slice.Spec.Pool.Name {
						pod, f.device = &pods[i], r
						return true, "", nil
					}
				}
			}
		}
		state, err := cluster.State(ctx, namespace)
		return false, state, err
	})
	return pod, err
}

// explain returns the first line of kubectl gpu why about a pod whose node the scheduler has chosen.
func explain(ctx context.Context, cluster *kube.Cluster, pod *corev1.Pod) (string, error) {
	var nodes corev1.NodeList
	var claims resourceapi.ResourceClaimList
	if err := cluster.List(ctx, &nodes); err != nil {
		return "", err
	}
	if err := cluster.List(ctx, &claims, client.InNamespace(pod.Namespace)); err != nil {
		return "", err
	}
	s := &clusterstate.Snapshot{Pods: []*corev1.Pod{pod}}
	for i := range nodes.Items {
		s.Nodes = append(s.Nodes, &nodes.Items[i])
	}
	for i := range claims.Items {
		s.Claims = append(s.Claims, &claims.Items[i])
	}
	answer, err := why.Pod(ctx, s, pod.Namespace, pod.Name)
	if err != nil {
		return "", err
	}
	return answer.Cause, nil
}

// wait waits until the attached GPU is published, or no longer.
func (f *fabric) wait(ctx context.Context, cluster *kube.Cluster, patience time.Duration, want bool) error {
	what := fmt.Sprintf("%s on %s to be published: %t", f.added.device, f.added.pool, want)
	return kube.Until(ctx, patience, what, func(ctx context.Context) (bool, string, error) {
		devices, err := publishedDevices(ctx, cluster)
		_, is := devices[f.added]
		return err == nil && is == want, "", err
	})
}

// reschedule lets the scheduler allocate again: the GPU is in the slice of its node now. A scheduler that has not seen
// yet that the pool is gone allocates from it once more.
func (f *fabric) reschedule(ctx context.Context, cluster *kube.Cluster, patience time.Duration) error {
	what := fmt.Sprintf("claim %s to have no device of pool %s", f.claim.Name, f.device.Pool)
	return kube.Until(ctx, patience, what, func(ctx context.Context) (bool, string, error) {
		if err := cluster.Get(ctx, client.ObjectKeyFromObject(&f.claim), &f.claim); err != nil {
			return false, "", err
		}
		if f.claim.Status.Allocation == nil {
			return false, "it has none", nil
		}
		ofPool := func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Pool == f.device.Pool }
		if !slices.ContainsFunc(f.claim.Status.Allocation.Devices.Results, ofPool) {
			return true, "", nil
		}
		f.claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: f.device.Driver, Pool: f.device.Pool,
			Device: f.device.Device, Conditions: []metav1.Condition{{Type: reschedule, Status: metav1.ConditionTrue,
				Reason: "Attached", Message: "the GPU is on the node", LastTransitionTime: metav1.Now()}}}}
		return false, "it has one", cluster.Status().Update(ctx, &f.claim)
	})
}

// detach deletes the pods of the demo, and takes the GPU back, so that the next demo finds the node as it was.
func (f *fabric) detach(ctx context.Context, cluster *kube.Cluster, patience time.Duration,
	namespaces ...string) error {
	if f.pool == nil {
		return nil
	}
	if err := client.IgnoreNotFound(cluster.Delete(ctx, f.pool)); err != nil {
		return err
	}
	if f.added.device == "" {
		return nil
	}
	if err := cluster.Empty(ctx, patience, namespaces...); err != nil {
		return err
	}
	if _, err := cluster.Simctl(ctx, f.plugin, "remove", f.added.device); err != nil {
		return err
	}
	return f.wait(ctx, cluster, patience, false)
}
