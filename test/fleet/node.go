// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// podsPerNode is the kubelet's default.
	podsPerNode = "110"
	// disk is the allocatable ephemeral storage: enough that it never limits scheduling.
	disk = "1Ti"
	// beatPeriod and leaseDuration are the kubelet's defaults.
	beatPeriod    = 10 * time.Second
	leaseDuration = 40 * time.Second
	// requestTimeout is the API server's default for most requests.
	requestTimeout = time.Minute
)

// newMember validates the node and fills in defaults.
func newMember(n Node, model *model) (*member, error) {
	if problems := validation.IsDNS1123Subdomain(n.Name); len(problems) > 0 {
		return nil, fmt.Errorf("node %q: %s", n.Name, strings.Join(problems, "; "))
	}
	if n.CPU.Sign() < 0 || n.Memory.Sign() < 0 {
		return nil, fmt.Errorf("node %s: CPU %s and memory %s must not be negative", n.Name, n.CPU.String(),
			n.Memory.String())
	}
	if n.CPU.IsZero() {
		n.CPU = resource.MustParse(DefaultCPU)
	}
	if n.Memory.IsZero() {
		n.Memory = resource.MustParse(DefaultMemory)
	}
	return &member{Node: n, model: model}, nil
}

// object returns the node as its kubelet reports it when it is ready.
func object(n Node, profile string, now metav1.Time) *corev1.Node {
	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		ProfileLabel: profile,
	})
	has := corev1.ResourceList{
		corev1.ResourceCPU: n.CPU, corev1.ResourceMemory: n.Memory,
		corev1.ResourcePods: resource.MustParse(podsPerNode), corev1.ResourceEphemeralStorage: resource.MustParse(disk),
	}
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: "Fleet", Message: "there is no kubelet",
			LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse),
				condition(corev1.NodeReady, corev1.ConditionTrue),
			},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}},
			NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64",
				KubeletVersion: "v0.0.0-fleet"},
		},
	}
}

// register creates the node and its lease. It completes even if ctx ends meanwhile.
func (f *Fleet) register(ctx context.Context, n *member) (*corev1.Node, error) {
	wanted := object(n.Node, n.model.Name, metav1.Now())
	// Without the response the node would not be removed later, so cancellation must not interrupt the request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	made, err := f.client.CoreV1().Nodes().Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err := f.removeAbandoned(ctx, n.Name); err != nil {
			return nil, err
		}
		made, err = f.client.CoreV1().Nodes().Create(ctx, wanted, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create node: %w", err)
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1",
			Kind: "Node", Name: n.Name, UID: made.UID}}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &n.Name, LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)),
			RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
	if _, err := f.leases().Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return made, fmt.Errorf("create lease: %w", err)
	}
	return made, nil
}

// removeAbandoned removes the node if another fleet left it behind.
func (f *Fleet) removeAbandoned(ctx context.Context, name string) error {
	left, err := f.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look who has made the node: %w", err)
	}
	if _, ours := left.Labels[ProfileLabel]; !ours {
		return fmt.Errorf("there is a node of that name that is not of a fleet: it has no label %s", ProfileLabel)
	}
	if err := f.checkAbandoned(ctx, name); err != nil {
		return err
	}
	return errors.Join(f.removeSlices(ctx, name), f.removeNode(ctx, left))
}

// checkAbandoned returns an error while another fleet renews the node's lease.
func (f *Fleet) checkAbandoned(ctx context.Context, node string) error {
	lease, err := f.leases().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if lease.Spec.RenewTime == nil {
		return nil
	}
	if silent := time.Since(lease.Spec.RenewTime.Time); silent < 2*beatPeriod {
		return fmt.Errorf(
			"another fleet runs it, or did until %s ago: end it, or wait until it has been silent for %s",
			silent.Round(time.Second), 2*beatPeriod)
	}
	return nil
}

// leave removes the node, if it was created, and all of its objects. Slices go first: after the node, the garbage
// collector would delete them at the same time, one by one.
func (f *Fleet) leave(ctx context.Context, m *member) error {
	if m.object == nil {
		return nil
	}
	m.mu.Lock()
	written := m.slices
	if m.stale {
		written = nil
	}
	m.slices = nil // it publishes nothing more
	m.mu.Unlock()
	if written == nil { // a slice may exist whose creation returned an error
		return errors.Join(f.removeSlices(ctx, m.Name), f.removeNode(ctx, m.object))
	}
	var errs []error
	for _, slice := range written {
		errs = append(errs, client.IgnoreNotFound(f.client.ResourceV1().ResourceSlices().Delete(ctx, slice.Name,
			metav1.DeleteOptions{})))
	}
	return errors.Join(append(errs, f.removeNode(ctx, m.object))...)
}

// removeNode removes the node with its lease and its pods. A missing object is no error.
func (f *Fleet) removeNode(ctx context.Context, n *corev1.Node) error {
	return errors.Join(
		client.IgnoreNotFound(f.leases().Delete(ctx, n.Name, metav1.DeleteOptions{})),
		client.IgnoreNotFound(f.client.CoreV1().Nodes().Delete(ctx, n.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(n.UID))})),
		f.removePods(ctx, n.Name), // after the node, so that no further pod is bound
	)
}

// renewLeases renews the leases until the fleet ends, a tenth of them at a time.
func (f *Fleet) renewLeases() {
	const parts = 10
	tick := time.NewTicker(beatPeriod / parts)
	defer tick.Stop()
	for part := 0; ; part = (part + 1) % parts {
		select {
		case <-f.life.Done():
			return
		case <-tick.C:
		}
		var all errgroup.Group
		all.SetLimit(atOnce)
		for i, m := range f.members() {
			if i%parts == part {
				all.Go(func() error { f.renew(m.Name); return nil })
			}
		}
		_ = all.Wait()
	}
}

func (f *Fleet) leases() coordinationclient.LeaseInterface {
	return f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
}

// renew renews the node's lease. The lease is missing while the node is being created or after somebody deleted it.
func (f *Fleet) renew(node string) {
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	_, err := f.leases().Patch(f.life, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if client.IgnoreNotFound(err) != nil && f.life.Err() == nil {
		klog.FromContext(f.life).Error(err, "Lease not renewed", "node", node)
	}
}
