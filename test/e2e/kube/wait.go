// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// poll is the polling period.
const poll = 100 * time.Millisecond

// Patience is how long a wait goes on with nothing new, for those who have no reason for another time.
const Patience = 4 * time.Minute

// ErrStuck means that a wait saw nothing new for its time of patience. It does not say what would have come later.
var ErrStuck = errors.New("nothing new")

// Until calls look until it returns done. How long that may take is not limited, because machines differ: Until gives
// up when look has returned no new state for the time of patience, with the last state or error in the message.
//
// Thus the state must tell everything that happens on the way. A state that was seen before is not new, so a container
// that ends again and again does not keep a wait alive, and an error is not new either. A state must not contain what
// changes by itself, such as times and counts of retries.
func Until(ctx context.Context, patience time.Duration, what string, look func(context.Context) (done bool,
	state string, err error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	seen := map[string]bool{}
	last, moved := "", time.Now()
	for {
		done, state, err := lookOnce(ctx, moved.Add(patience), look)
		switch {
		case done && err == nil:
			return nil
		case err == nil && !seen[state]:
			seen[state], moved = true, time.Now()
			last = state
		case err == nil:
			last = state
		case !errors.Is(err, context.DeadlineExceeded) || last == "": // otherwise this function interrupted it
			last = err.Error()
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for %s: %w; last seen: %s", what, err, last)
		}
		if time.Since(moved) >= patience {
			return fmt.Errorf("wait for %s: %w for %s; last seen: %s", what, ErrStuck, patience, last)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// lookOnce ends a look that hangs when the patience ends.
func lookOnce(ctx context.Context, deadline time.Time, look func(context.Context) (bool, string, error)) (bool, string,
	error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return look(ctx)
}

// PodState tells how far a pod is. It differs whenever the pod has moved, and is the same again when a container is
// started again.
func PodState(pod *corev1.Pod) string {
	words := []string{string(pod.Status.Phase)}
	if pod.DeletionTimestamp != nil {
		words = append(words, "deleted")
	}
	for _, c := range pod.Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil:
			words = append(words, c.Name+" waits: "+c.State.Waiting.Reason)
		case c.State.Running != nil:
			words = append(words, c.Name+" runs")
		case c.State.Terminated != nil:
			words = append(words, c.Name+" ended: "+c.State.Terminated.Reason)
		}
	}
	return strings.Join(words, ", ")
}

// State tells how far the pods and claims of namespaces are, and which events there are. A pod counts as any other of
// its controller, so one that is made again and again is nothing new.
func (c *Cluster) State(ctx context.Context, namespaces ...string) (string, error) {
	var lines []string
	for _, namespace := range namespaces {
		pods, err := c.Pods(ctx, namespace)
		if err != nil {
			return "", err
		}
		for i := range pods {
			lines = append(lines, "pod "+owner(&pods[i])+" on "+pods[i].Spec.NodeName+" "+PodState(&pods[i]))
		}
		var claims resourceapi.ResourceClaimList
		if err := c.List(ctx, &claims, client.InNamespace(namespace)); err != nil {
			return "", fmt.Errorf("list claims of %s: %w", namespace, err)
		}
		for i := range claims.Items {
			status := &claims.Items[i].Status
			lines = append(lines, fmt.Sprintf("claim of %s allocated=%v for %d", owner(&claims.Items[i]),
				status.Allocation != nil, len(status.ReservedFor)))
		}
		var events corev1.EventList
		if err := c.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return "", fmt.Errorf("list events of %s: %w", namespace, err)
		}
		kinds := map[string]bool{}
		for _, e := range events.Items {
			kinds["event "+e.InvolvedObject.Kind+" "+e.Reason] = true
		}
		for kind := range kinds {
			lines = append(lines, kind)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// owner returns the name of the object's controller, or its own.
func owner(object client.Object) string {
	for _, o := range object.GetOwnerReferences() {
		if o.Controller != nil && *o.Controller {
			return o.Name
		}
	}
	return object.GetName()
}
