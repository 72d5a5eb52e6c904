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

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// ErrDifferent means that a demo has come to its end with another output than its README says.
var ErrDifferent = errors.New("output differs from the README")

// Failure says why a demo is not what its README says.
type Failure struct {
	Kind error  // ErrDifferent, or kube.ErrStuck for a demo that has not come to its end
	Why  string // in a line
	Diff string // see Compare
}

// Error returns the reason and the diff.
func (f Failure) Error() string { return fmt.Sprintf("%v: %s\n%s", f.Kind, f.Why, f.Diff) }

// Unwrap returns the kind.
func (f Failure) Unwrap() error { return f.Kind }

// sight is a demo at one moment.
type sight struct {
	lines []string
	pods  []corev1.Pod
	state string // see kube.State
}

// settle looks until the output matches the README, and returns the last output. When nothing is new for the time of
// patience, it says as a Failure whether the demo has come to its end.
func (d Demo) settle(ctx context.Context, patience time.Duration, look func(context.Context) (sight, error)) ([]string,
	error) {
	var last sight
	err := kube.Until(ctx, patience, "demo "+d.Name, func(ctx context.Context) (bool, string, error) {
		now, err := look(ctx)
		if err != nil {
			return false, "", err
		}
		last = now
		return Compare(d.Expected, now.lines) == "", now.state + "\n" + strings.Join(now.lines, "\n"), nil
	})
	switch {
	case err == nil:
		return last.lines, nil
	case !errors.Is(err, kube.ErrStuck):
		return last.lines, err
	case len(last.lines) == 0: // the last error says why
		return nil, Failure{kube.ErrStuck, err.Error(), ""}
	}
	return last.lines, d.judge(last, patience)
}

// judge says what is wrong with the output of a demo of which nothing is new.
func (d Demo) judge(last sight, patience time.Duration) error {
	diff := Compare(d.Expected, last.lines)
	wrong, missing := firstLine(diff, "+ "), firstLine(diff, "- ")
	unfinished := slices.IndexFunc(last.pods, func(p corev1.Pod) bool { return !d.final(&p) })
	running := slices.ContainsFunc(last.pods, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	switch {
	case unfinished >= 0:
		pod := &last.pods[unfinished]
		return Failure{kube.ErrStuck, fmt.Sprintf("pod %s is %s for %s", pod.Name, kube.PodState(pod), patience), diff}
	case wrong != "" && missing != "":
		return Failure{ErrDifferent, fmt.Sprintf("%q instead of %q", wrong, missing), diff}
	case wrong != "":
		return Failure{ErrDifferent, fmt.Sprintf("%q is too much", wrong), diff}
	case running || len(last.pods) == 0: // the line may still come
		return Failure{kube.ErrStuck, fmt.Sprintf("waited %s for %q", patience, missing), diff}
	}
	return Failure{ErrDifferent, fmt.Sprintf("%q is missing", missing), diff}
}

// final reports whether the pod is as the README wants it before one reads its log: finished, running, or waiting if
// the README says that it waits.
func (d Demo) final(pod *corev1.Pod) bool {
	runs := !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running == nil && c.State.Terminated == nil
	})
	switch {
	case pod.DeletionTimestamp != nil:
		return false
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return true
	case pod.Spec.NodeName == "":
		return slices.ContainsFunc(d.Expected, func(line string) bool {
			return strings.HasPrefix(line, "landed: pod "+pod.Name+" nowhere")
		})
	}
	return pod.Status.Phase == corev1.PodRunning && runs
}

// firstLine returns the first line of a diff with the sign, without it.
func firstLine(diff, sign string) string {
	for line := range strings.Lines(diff) {
		if text, ok := strings.CutPrefix(line, sign); ok {
			return strings.TrimSpace(text)
		}
	}
	return ""
}
