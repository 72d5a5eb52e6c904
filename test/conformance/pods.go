// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// maxAtOnce is how many pods start at the same time, at most.
const maxAtOnce = 8

func podStarts(ctx context.Context, s *suite) (string, error) {
	pod, claim, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	got := devices(claim.Status.Allocation, s.Driver)
	if len(got) == 0 {
		return "", fmt.Errorf("the claim has no device of %s: does the class select those of another driver?", s.Driver)
	}
	sees, err := s.probe(ctx, pod.Name)
	return strings.TrimSpace(strings.Join(got, " ") + " " + oneLine(sees)), err
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// podEnds runs one pod after the other, so that each must give back what it had.
func podEnds(ctx context.Context, s *suite) (string, error) {
	for range 3 {
		pod, claim, err := s.started(ctx)
		if err != nil {
			return "", err
		}
		if err := s.remove(ctx, metav1.DeleteOptions{}, pod.Name); err != nil {
			return "", err
		}
		if err := s.released(ctx, claim.Name); err != nil {
			return "", err
		}
	}
	return "", nil
}

// startMany starts n pods, each with a claim of its own, and waits until all run.
func (s *suite) startMany(ctx context.Context, n int) (pods, claims []string, err error) {
	for range n {
		claim, err := s.claim(ctx)
		if err != nil {
			return nil, nil, err
		}
		pod, err := s.pod(ctx, claim.Name)
		if err != nil {
			return nil, nil, err
		}
		pods, claims = append(pods, pod), append(claims, claim.Name)
	}
	_, err = s.running(ctx, pods...)
	return pods, claims, err
}

func podsAtOnce(ctx context.Context, s *suite) (string, error) {
	free, err := s.freeDevices(ctx)
	if err != nil {
		return "", err
	}
	n := min(free, maxAtOnce)
	if n < 2 {
		return "", skip(fmt.Sprintf("the node has %d free devices, and this needs two", n))
	}
	names, claims, err := s.startMany(ctx, n)
	if err != nil {
		return "", err
	}
	sees := map[string]string{}
	for i, name := range names {
		text, err := s.probe(ctx, name)
		if err != nil {
			return "", err
		}
		claim, err := s.getClaim(ctx, claims[i])
		if err != nil {
			return "", err
		}
		if other, ok := sees[text]; ok && text != "" && !shares(claim) {
			return "", fmt.Errorf("pods %s and %s have different devices and see the same: %s", other, name,
				oneLine(text))
		}
		sees[text] = name
	}
	return fmt.Sprintf("%d pods", n), s.remove(ctx, metav1.DeleteOptions{}, names...)
}

// shares reports whether other claims may have the same device.
func shares(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool { return r.ShareID != nil })
}

// sharedClaim gives one claim to two pods, one of them with two containers.
func sharedClaim(ctx context.Context, s *suite) (string, error) {
	first, claim, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	second, err := s.podWith(ctx, func(spec *corev1.PodSpec) {
		uses := corev1.PodResourceClaim{Name: "claim-0", ResourceClaimName: &claim.Name}
		spec.ResourceClaims = append(spec.ResourceClaims, uses)
		spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: uses.Name}}
		spec.Containers = append(spec.Containers, *spec.Containers[0].DeepCopy())
		spec.Containers[1].Name = "other"
	})
	if err != nil {
		return "", err
	}
	if _, err := s.running(ctx, second); err != nil {
		return "", err
	}
	a, err := s.probe(ctx, first.Name)
	if err != nil {
		return "", err
	}
	b, err := s.probe(ctx, second)
	if err != nil {
		return "", err
	}
	if a != b {
		return "", fmt.Errorf("one pod sees %s, the other %s", oneLine(a), oneLine(b))
	}
	if err := s.remove(ctx, metav1.DeleteOptions{}, first.Name); err != nil {
		return "", err
	}
	if err := s.unchanged(ctx, second, b); err != nil {
		return "", fmt.Errorf("when the first pod has ended: %w", err)
	}
	third, err := s.pod(ctx, claim.Name)
	if err != nil {
		return "", err
	}
	if _, err := s.running(ctx, third); err != nil {
		return "", fmt.Errorf("a third pod: %w", err)
	}
	if err := s.remove(ctx, metav1.DeleteOptions{}, second, third); err != nil {
		return "", err
	}
	return "", s.released(ctx, claim.Name)
}

// unchanged tests that the pod runs, was not restarted, and sees what it saw before.
func (s *suite) unchanged(ctx context.Context, name, saw string) error {
	pod, err := s.running(ctx, name)
	if err != nil {
		return err
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.RestartCount > 0 {
			return fmt.Errorf("pod %s: container %s was restarted", name, container.Name)
		}
	}
	sees, err := s.probe(ctx, name)
	if err == nil && sees != saw {
		err = fmt.Errorf("pod %s saw %s, and now %s", name, oneLine(saw), oneLine(sees))
	}
	return err
}

// forceDeleted deletes a pod as if its node were gone, so that the kubelet must release a claim that may not exist.
func forceDeleted(ctx context.Context, s *suite) (string, error) {
	for range 2 { // the next pod may have the same device
		pod, claim, err := s.started(ctx)
		if err != nil {
			return "", err
		}
		now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		if err := s.remove(ctx, now, pod.Name); err != nil {
			return "", err
		}
		if err := s.released(ctx, claim.Name); err != nil {
			return "", err
		}
	}
	free, err := s.freeDevices(ctx)
	if err != nil {
		return "", err
	}
	names, _, err := s.startMany(ctx, min(max(free, 1), maxAtOnce)) // all devices, as the scheduler may avoid that one
	if err != nil {
		return "", fmt.Errorf("afterwards: %w", err)
	}
	return fmt.Sprintf("%d pods had the devices afterwards", len(names)),
		s.remove(ctx, metav1.DeleteOptions{}, names...)
}

// restart makes a check that runs a command line with a pod running, deletes that pod, and starts another.
func restart(what string, line func(*suite) string) run {
	return func(ctx context.Context, s *suite) (string, error) {
		if line(s) == "" {
			return "", skip("no command is given that " + what)
		}
		pod, _, err := s.started(ctx)
		if err != nil {
			return "", err
		}
		saw, err := s.probe(ctx, pod.Name)
		if err != nil {
			return "", err
		}
		before, err := s.nodeDevices(ctx)
		if err != nil {
			return "", err
		}
		if err := s.Run(ctx, line(s)); err != nil {
			return "", fmt.Errorf("the command that %s: %w", what, err)
		}
		if err := s.until(ctx, "the devices are published as before", func(ctx context.Context) (bool, string, error) {
			after, err := s.nodeDevices(ctx)
			missing, more := difference(before, after), difference(after, before)
			return len(missing)+len(more) == 0, fmt.Sprintf("missing: %v, new: %v", missing, more), err
		}); err != nil {
			return "", err
		}
		free, err := s.freeDevices(ctx)
		if err != nil {
			return "", err
		}
		ends := []string{pod.Name}
		if free == 0 { // the new pod needs the device of the first
			err := s.unchanged(ctx, pod.Name, saw)
			if err := errors.Join(err, s.remove(ctx, metav1.DeleteOptions{}, ends...)); err != nil {
				return "", err
			}
			ends = nil
		}
		next, _, err := s.started(ctx)
		if err != nil {
			return "", fmt.Errorf("a new pod: %w", err)
		}
		if free > 0 { // a new pod has shown that the driver is there again
			if err := s.unchanged(ctx, pod.Name, saw); err != nil {
				return "", err
			}
		}
		return "", s.remove(ctx, metav1.DeleteOptions{}, append(ends, next.Name)...)
	}
}

// difference returns the devices of a that b lacks, in order.
func difference(a, b map[string]resourceapi.Device) []string {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[name]; !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// duringRestart runs a command line that restarts the plugin, and something else at the same time.
func (s *suite) duringRestart(ctx context.Context, do func() error) error {
	if s.RestartPlugin == "" {
		return skip("no command is given that restarts the plugin")
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	return errors.Join(s.Run(ctx, s.RestartPlugin), <-done)
}

func startsDuringRestart(ctx context.Context, s *suite) (string, error) {
	return "", s.duringRestart(ctx, func() error {
		pod, _, err := s.started(ctx)
		if err != nil {
			return err
		}
		return s.remove(ctx, metav1.DeleteOptions{}, pod.Name)
	})
}

func endsDuringRestart(ctx context.Context, s *suite) (string, error) {
	pod, claim, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	if err := s.duringRestart(ctx, func() error {
		return s.remove(ctx, metav1.DeleteOptions{}, pod.Name)
	}); err != nil {
		return "", err
	}
	return "", s.released(ctx, claim.Name)
}

// startsDuringUpgrade starts pods as long as the upgrade takes.
func startsDuringUpgrade(ctx context.Context, s *suite) (string, error) {
	if s.UpgradePlugin == "" {
		return "", skip("no command is given that upgrades the plugin")
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, s.UpgradePlugin) }()
	for n := 1; ; n++ {
		pod, _, err := s.started(ctx)
		if err != nil {
			return "", errors.Join(err, <-done)
		}
		if reason := s.state(ctx, pod); strings.Contains(reason, refused) {
			return "", errors.Join(fmt.Errorf("pod %s had to wait: %s", pod.Name, reason), <-done)
		}
		if err := s.remove(ctx, metav1.DeleteOptions{}, pod.Name); err != nil {
			return "", errors.Join(err, <-done)
		}
		select {
		case err := <-done:
			return fmt.Sprintf("%d pods", n), err
		default:
		}
	}
}

// refused is part of the reason of the kubelet's event when Prepare fails.
const refused = "PrepareDynamicResources"

// restartWritesNothing compares the slices before and after restarts.
func restartWritesNothing(ctx context.Context, s *suite) (string, error) {
	if s.RestartPlugin == "" {
		return "", skip("no command is given that restarts the plugin")
	}
	before, err := s.versions(ctx)
	if err != nil {
		return "", err
	}
	const times = 2
	for range times {
		if err := s.Run(ctx, s.RestartPlugin); err != nil {
			return "", err
		}
		pod, _, err := s.started(ctx) // then the driver is there again, and publishes
		if err != nil {
			return "", err
		}
		if err := s.remove(ctx, metav1.DeleteOptions{}, pod.Name); err != nil {
			return "", err
		}
	}
	after, err := s.versions(ctx)
	if err != nil {
		return "", err
	}
	if before != after {
		return "", fmt.Errorf("slices were %s, and after %d restarts %s", before, times, after)
	}
	return "", nil
}

// versions writes the versions of all slices of the node.
func (s *suite) versions(ctx context.Context) (string, error) {
	list, err := s.slices(ctx)
	var all []string
	for _, slice := range list {
		if ptr.Deref(slice.Spec.NodeName, "") == s.Node {
			all = append(all, slice.Name+"@"+slice.ResourceVersion)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), err
}

// configAccepted gives claims the parameters that the driver documents.
func configAccepted(ctx context.Context, s *suite) (string, error) {
	if len(s.Accepted) == 0 {
		return "", skip("no parameters are given that the driver accepts")
	}
	for _, parameters := range s.Accepted {
		pod, _, err := s.started(ctx, s.withConfig(parameters))
		if err != nil {
			return "", fmt.Errorf("%s: %w", parameters, err)
		}
		if err := s.remove(ctx, metav1.DeleteOptions{}, pod.Name); err != nil {
			return "", fmt.Errorf("%s: %w", parameters, err)
		}
	}
	return fmt.Sprintf("%d parameters", len(s.Accepted)), nil
}

// withConfig adds a configuration for the first request.
func (s *suite) withConfig(parameters []byte) func(*resourceapi.ResourceClaimSpec) {
	return func(spec *resourceapi.ResourceClaimSpec) {
		config := resourceapi.DeviceClaimConfiguration{Requests: []string{spec.Devices.Requests[0].Name}}
		config.Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: s.Driver}
		config.Opaque.Parameters.Raw = parameters
		spec.Devices.Config = append(spec.Devices.Config, config)
	}
}

func configRefused(ctx context.Context, s *suite) (string, error) {
	if len(s.Refused) == 0 {
		return "", skip("no parameters are given that the driver refuses")
	}
	var reason string
	for _, parameters := range s.Refused {
		var err error
		if reason, err = s.refuses(ctx, parameters); err != nil {
			return "", err
		}
	}
	// The driver must still be there.
	_, _, err := s.started(ctx)
	return reason, err
}

// refuses tests that the driver refuses a claim, and returns its reason.
func (s *suite) refuses(ctx context.Context, parameters []byte, more ...func(*resourceapi.ResourceClaimSpec)) (string,
	error) {
	claim, err := s.claim(ctx, append([]func(*resourceapi.ResourceClaimSpec){s.withConfig(parameters)}, more...)...)
	if refusal := apierrors.APIStatus(nil); errors.As(err, &refusal) { // by a webhook
		return "when it is created: " + refusal.Status().Message, nil
	} else if err != nil {
		return "", err
	}
	name, err := s.pod(ctx, claim.Name)
	if err != nil {
		return "", err
	}
	var reason string
	err = s.until(ctx, "the driver refuses "+string(parameters), func(ctx context.Context) (bool, string, error) {
		pod, err := s.Client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if pod.Status.Phase == corev1.PodRunning {
			return false, "", fmt.Errorf("a pod runs with %s", parameters)
		}
		reason = s.state(ctx, pod)
		return strings.Contains(reason, refused), reason, nil
	})
	return reason, errors.Join(err, s.remove(ctx, metav1.DeleteOptions{}, name))
}

// configOfAlternatives: a configuration that names a request is for all of its subrequests. Accepted parameters show
// it if the probe shows their effect, otherwise refused ones.
func configOfAlternatives(ctx context.Context, s *suite) (string, error) {
	if s.Spec.Devices.Requests[0].Exactly == nil {
		return "", skip("the first request of the claim already has alternatives")
	}
	for _, parameters := range s.Accepted {
		if compared, err := s.sameForAlternatives(ctx, parameters); compared || err != nil {
			return "by what the container sees", err
		}
	}
	if len(s.Refused) == 0 {
		return "", skip("no parameters are given that the driver refuses, or whose effect the probe shows")
	}
	return s.refuses(ctx, s.Refused[0], alternatives)
}

// alternatives turns the first request into one with a list of alternatives, which has one.
func alternatives(spec *resourceapi.ResourceClaimSpec) {
	first := &spec.Devices.Requests[0]
	first.FirstAvailable = []resourceapi.DeviceSubRequest{{Name: "alternative",
		DeviceClassName: first.Exactly.DeviceClassName, Selectors: first.Exactly.Selectors,
		AllocationMode: first.Exactly.AllocationMode, Count: first.Exactly.Count,
		Tolerations: first.Exactly.Tolerations, Capacity: first.Exactly.Capacity}}
	first.Exactly = nil
}

// sameForAlternatives compares what containers see without parameters, with them, and with them for alternatives. It
// reports whether the parameters can be seen at all.
func (s *suite) sameForAlternatives(ctx context.Context, parameters []byte) (bool, error) {
	with := s.withConfig(parameters)
	var seen []string
	for _, options := range [][]func(*resourceapi.ResourceClaimSpec){nil, {with}, {with, alternatives}} {
		pod, claim, err := s.started(ctx, options...)
		if err != nil {
			return true, err
		}
		text, err := s.probe(ctx, pod.Name)
		if err != nil {
			return true, err
		}
		text = strings.ReplaceAll(text, string(claim.UID), "UID")
		seen = append(seen, fmt.Sprint(devices(claim.Status.Allocation, s.Driver), text))
		if err := s.remove(ctx, metav1.DeleteOptions{}, pod.Name); err != nil {
			return true, err
		}
	}
	if seen[0] == seen[1] {
		return false, nil
	}
	if seen[1] != seen[2] {
		return true, fmt.Errorf("with %s: the container sees %s, and with the same for alternatives %s", parameters,
			oneLine(seen[1]), oneLine(seen[2]))
	}
	return true, nil
}
