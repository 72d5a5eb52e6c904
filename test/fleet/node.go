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
	// disk is what pods can ask for of the node's disk: enough that it never decides.
	disk = "1Ti"
	// beatPeriod and leaseDuration are the kubelet's.
	beatPeriod    = 10 * time.Second
	leaseDuration = 40 * time.Second
	// requestTimeout is the API server's own for most requests.
	requestTimeout = time.Minute
)

// newMember checks the node and fills in what it does not say.
func newMember(n Node, model *model) (*member, error) {
	if problems := validation.IsDNS1123Subdomain(n.Name); len(problems) > 0 {
		return nil, fmt.Errorf("node %q: %s", n.Name, strings.Join(problems, "; "))
	}
	if n.CPU.Sign() < 0 || n.Memory.Sign() < 0 {
		return nil, fmt.Errorf("node %s: CPU %s and memory %s must not be negative", n.Name, n.CPU.String(), n.Memory.String())
	}
	if n.CPU.IsZero() {
		n.CPU = resource.MustParse(DefaultCPU)
	}
	if n.Memory.IsZero() {
		n.Memory = resource.MustParse(DefaultMemory)
	}
	return &member{Node: n, model: model}, nil
}

// object is the node as its kubelet would report it when it is ready.
func object(n Node, profile string, now metav1.Time) *corev1.Node {
	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", ProfileLabel: profile, sweepLabel: "off",
	})
	has := corev1.ResourceList{
		corev1.ResourceCPU: n.CPU, corev1.ResourceMemory: n.Memory,
		corev1.ResourcePods: resource.MustParse(podsPerNode), corev1.ResourceEphemeralStorage: resource.MustParse(disk),
	}
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: "Fleet", Message: "there is no kubelet", LastHeartbeatTime: now, LastTransitionTime: now}
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
			NodeInfo:  corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v0.0.0-fleet"},
		},
	}
}

// register makes the node and its lease, also when ctx ends meanwhile.
func (f *Fleet) register(ctx context.Context, n *member) (*corev1.Node, error) {
	wanted := object(n.Node, n.model.Name, metav1.Now())
	// The answer must not be missed: without it, nobody would remove the node.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	made, err := f.client.CoreV1().Nodes().Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err := f.clearLeft(ctx, n.Name); err != nil {
			return nil, err
		}
		made, err = f.client.CoreV1().Nodes().Create(ctx, wanted, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create node: %w", err)
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: made.UID}}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &n.Name, LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)), RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
	if _, err := f.leases().Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return made, fmt.Errorf("create lease: %w", err)
	}
	return made, nil
}

// clearLeft removes the node that another fleet has left, and no other.
func (f *Fleet) clearLeft(ctx context.Context, name string) error {
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
	if err := f.deserted(ctx, name); err != nil {
		return err
	}
	return errors.Join(f.removeSlices(ctx, name), f.removeNode(ctx, left))
}

// deserted is an error while another fleet keeps the node alive.
func (f *Fleet) deserted(ctx context.Context, node string) error {
	lease, err := f.leases().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if lease.Spec.RenewTime == nil {
		return nil
	}
	if silent := time.Since(lease.Spec.RenewTime.Time); silent < 2*beatPeriod {
		return fmt.Errorf("another fleet plays it, or did until %s ago: end it, or wait until it has been silent for %s", silent.Round(time.Second), 2*beatPeriod)
	}
	return nil
}

// withdraw removes the node, if it was made, and all that is of it. Slices go first: those of a node that is gone would be removed by
// the cluster's garbage collector too, one by one and at the same time.
func (f *Fleet) withdraw(ctx context.Context, m *member) error {
	if m.object == nil {
		return nil
	}
	if m.slices == nil { // one may be there of which we were not told
		return errors.Join(f.removeSlices(ctx, m.Name), f.removeNode(ctx, m.object))
	}
	var errs []error
	for _, slice := range m.slices {
		errs = append(errs, client.IgnoreNotFound(f.client.ResourceV1().ResourceSlices().Delete(ctx, slice, metav1.DeleteOptions{})))
	}
	return errors.Join(append(errs, f.removeNode(ctx, m.object))...)
}

// removeNode removes the node with its lease and its pods. What is gone already is no error.
func (f *Fleet) removeNode(ctx context.Context, n *corev1.Node) error {
	return errors.Join(
		client.IgnoreNotFound(f.leases().Delete(ctx, n.Name, metav1.DeleteOptions{})),
		client.IgnoreNotFound(f.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(n.UID))})),
		f.removePods(ctx, n.Name), // after the node, so that no other comes
	)
}

// beat renews the leases until the fleet ends, a tenth of them at a time.
func (f *Fleet) beat() {
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

// renew says that the node is alive. It has no lease while it is being made, or when somebody has deleted it.
func (f *Fleet) renew(node string) {
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	_, err := f.leases().Patch(f.life, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if client.IgnoreNotFound(err) != nil && f.life.Err() == nil {
		klog.FromContext(f.life).Error(err, "Lease not renewed", "node", node)
	}
}
