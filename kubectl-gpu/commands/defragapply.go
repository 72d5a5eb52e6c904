// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/evict"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
)

// The label of the rules.
const (
	ruleLabel = "app.kubernetes.io/managed-by"
	ruleOwner = "kubectl-gpu-defrag"
)

// mover moves the pods of a plan.
type mover struct {
	client        kubernetes.Interface
	out           io.Writer // for what happens
	timeout, poll time.Duration
	read          func(context.Context) *cluster.Snapshot
	options       moves.DefragOptions
}

// apply moves the pods, one after the other. Before each one it plans again with what has happened. The error says what
// was done. The rules are removed in any case.
func (m *mover) apply(ctx context.Context, plan *moves.Defragmentation) (err error) {
	rules := &taintRules{client: m.client}
	defer func() { err = errors.Join(err, rules.remove(ctx)) }()
	if err := m.taint(ctx, rules, plan.Keep); err != nil {
		return err
	}
	m.options.Only = plan.Frees
	for done, all := 0, len(plan.Moves); ; done++ {
		var err error
		plan, err = moves.Defrag(ctx, m.read(ctx), m.options)
		switch {
		case err != nil:
			return err
		case len(plan.Frees) == 0 && done == 0:
			return fmt.Errorf("nothing was moved: the cluster has changed. %s", planText(plan))
		case len(plan.Frees) == 0:
			return fmt.Errorf("%s moved, and the others do not fit elsewhere any more. %s", count(done, "pod"),
				planText(plan))
		case len(plan.Moves) == 0:
			return nil
		case done == all:
			return fmt.Errorf("%s moved, and others have got the GPUs meanwhile", count(done, "pod"))
		}
		if err := m.move(ctx, plan.Moves[0]); err != nil {
			return fmt.Errorf("%d of %s moved: pod %s/%s: %w", done, count(all, "pod"), plan.Moves[0].Namespace,
				plan.Moves[0].Pod, err)
		}
	}
}

// taint keeps new pods away from the devices, but for idle ones beyond maxRules.
func (m *mover) taint(ctx context.Context, rules *taintRules, keep []resourceapi.DeviceTaintSelector) error {
	if n := len(keep) - maxRules; n > 0 {
		fmt.Fprintf(m.out, "Warning: replacements may get %d idle devices: there would be too many rules\n", n)
		keep = keep[:maxRules]
	}
	for i := range keep {
		rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", ruleOwner, i),
			Labels: map[string]string{ruleLabel: ruleOwner}},
			Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: &keep[i], Taint: moves.DefragTaint}}
		if err := rules.create(ctx, rule); apierrors.IsAlreadyExists(err) {
			return errors.New("nothing was moved: another run of kubectl gpu defrag has begun")
		} else if err != nil {
			return fmt.Errorf("nothing was moved: %w", err)
		}
	}
	return m.sleep(ctx) // the scheduler gets the rules
}

func (m *mover) sleep(ctx context.Context) error {
	select {
	case <-time.After(m.poll):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// move evicts the pod, and waits until it has released its devices and its replacement has a node.
func (m *mover) move(ctx context.Context, move moves.PodMove) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.timeout, fmt.Errorf("timeout after %s", m.timeout))
	defer cancel()
	before := map[types.UID]bool{}
	pods, err := m.podsOf(ctx, move)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		before[pod.UID] = true
	}
	gone, err := m.evict(ctx, move)
	if err != nil {
		return err
	}
	for waits := ""; ; {
		what, err := m.unreleased(ctx, move)
		if err == nil && what == "" && !gone {
			what, err = m.unreplaced(ctx, move, before)
		}
		switch {
		case err != nil:
			return err
		case what == "":
			return nil
		case what != waits:
			fmt.Fprintf(m.out, "%s/%s: %s\n", move.Namespace, move.Pod, what)
			waits = what
		}
		if err := m.sleep(ctx); err != nil {
			return fmt.Errorf("%w: %s", err, what)
		}
	}
}

// evict evicts the pod when its PodDisruptionBudgets allow that. gone means that it had ended by itself.
func (m *mover) evict(ctx context.Context, move moves.PodMove) (gone bool, err error) {
	for first := true; ; first = false {
		outcome, err := evict.Pod(ctx, m.client.CoreV1(), move.Namespace, move.Pod, move.UID)
		switch {
		case outcome == evict.Evicted:
			fmt.Fprintf(m.out, "%s/%s: evicted\n", move.Namespace, move.Pod)
			return false, nil
		case outcome == evict.Ended:
			fmt.Fprintf(m.out, "%s/%s: has ended by itself\n", move.Namespace, move.Pod)
			return true, nil
		case outcome != evict.Budget && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err):
			return false, err
		case first:
			fmt.Fprintf(m.out, "%s/%s: waits: %v\n", move.Namespace, move.Pod, err)
		}
		if slept := m.sleep(ctx); slept != nil {
			return false, fmt.Errorf("%w: %w", slept, err)
		}
	}
}

// unreleased says which claim still has the devices of the pod; empty: none.
func (m *mover) unreleased(ctx context.Context, move moves.PodMove) (string, error) {
	for _, name := range move.Claims {
		claim, err := m.client.ResourceV1().ResourceClaims(move.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", err
		case claim.Status.Allocation != nil && metav1.IsControlledBy(claim, &metav1.ObjectMeta{UID: move.UID}):
			return "its claim " + name + " has not released the devices", nil
		}
	}
	return "", nil
}

// unreplaced says what the replacement of the pod lacks; empty: it has a node.
func (m *mover) unreplaced(ctx context.Context, move moves.PodMove, before map[types.UID]bool) (string, error) {
	pods, err := m.podsOf(ctx, move)
	if err != nil {
		return "", err
	}
	what := "its controller has created no replacement"
	for _, pod := range pods {
		switch {
		case before[pod.UID] || pod.DeletionTimestamp != nil:
		case pod.Spec.NodeName != "":
			fmt.Fprintf(m.out, "%s/%s: its replacement %s is on node %s\n", move.Namespace, move.Pod, pod.Name,
				pod.Spec.NodeName)
			return "", nil
		default:
			what = fmt.Sprintf("its replacement %s has no node; kubectl gpu why %s -n %s says why", pod.Name, pod.Name,
				move.Namespace)
		}
	}
	return what, nil
}

// podsOf returns the pods of the controller.
func (m *mover) podsOf(ctx context.Context, move moves.PodMove) ([]corev1.Pod, error) {
	list, err := m.client.CoreV1().Pods(move.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return !metav1.IsControlledBy(&pod, &metav1.ObjectMeta{UID: move.Owner})
	}), nil
}
