// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
)

// request is the name of the request if Config has no spec.
const request = "device"

// suite is the state of a run.
type suite struct {
	Config
	Access
	namespace string
	number    int // of the last object
	samples   []resourceapi.AllocationResult
	history   map[string][]seen // by pool
}

// begin creates the namespace and chooses the node.
func (s *suite) begin(ctx context.Context) error {
	s.history = map[string][]seen{}
	list, err := s.slices(ctx)
	if err != nil {
		return err
	}
	for _, slice := range list {
		if node := slice.Spec.NodeName; s.Node == "" && node != nil && len(slice.Spec.Devices) > 0 {
			s.Node = *node
		}
	}
	if s.Spec == nil {
		s.Spec = &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: s.Class}}}}}
	}
	s.namespace = "dra-conformance-" + rand.String(5)
	_, err = s.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: s.namespace, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}},
		metav1.CreateOptions{})
	return err
}

func (s *suite) end(ctx context.Context) {
	_ = s.Client.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{})
}

// until looks until it is done, at least once. The error has what was seen last.
func (s *suite) until(ctx context.Context, what string, look func(context.Context) (bool, string, error)) error {
	for deadline := time.Now().Add(s.Timeout); ; {
		done, last, err := look(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case done:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%s: not within %s; last: %s", what, s.Timeout, last)
		}
		if err := s.pause(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// pause waits until the next look.
func (s *suite) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.Poll):
		return nil
	}
}

// slices returns the slices of the driver.
func (s *suite) slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + s.Driver})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	var own []resourceapi.ResourceSlice
	for _, slice := range list.Items {
		if slice.Spec.Driver == s.Driver {
			own = append(own, slice)
		}
	}
	s.observe(own)
	return own, nil
}

func (s *suite) name(kind string) string {
	s.number++
	return fmt.Sprintf("%s-%d", kind, s.number)
}

// claim creates a claim. The options change its spec.
func (s *suite) claim(ctx context.Context, options ...func(*resourceapi.ResourceClaimSpec)) (*resourceapi.ResourceClaim,
	error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: s.name("claim"), Namespace: s.namespace},
		Spec: *s.Spec.DeepCopy()}
	for _, option := range options {
		option(&claim.Spec)
	}
	return s.Client.ResourceV1().ResourceClaims(s.namespace).Create(ctx, claim, metav1.CreateOptions{})
}

func (s *suite) getClaim(ctx context.Context, name string) (*resourceapi.ResourceClaim, error) {
	return s.Client.ResourceV1().ResourceClaims(s.namespace).Get(ctx, name, metav1.GetOptions{})
}

// pod creates a pod that uses the claims.
func (s *suite) pod(ctx context.Context, claims ...string) (string, error) {
	return s.podWith(ctx, func(spec *corev1.PodSpec) {
		for i, claim := range claims {
			name := fmt.Sprintf("claim-%d", i)
			spec.ResourceClaims = append(spec.ResourceClaims, corev1.PodResourceClaim{Name: name,
				ResourceClaimName: &claim})
			spec.Containers[0].Resources.Claims = append(spec.Containers[0].Resources.Claims,
				corev1.ResourceClaim{Name: name})
		}
	})
}

// podWith creates a pod on the node.
func (s *suite) podWith(ctx context.Context, change func(*corev1.PodSpec)) (string, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.name("pod"), Namespace: s.namespace},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			Hostname:                      "dra-conformance", // so that the environments of containers can be compared
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken:  ptr.To(false),
			Containers: []corev1.Container{{Name: "main", Image: s.Image, Args: s.Args,
				ImagePullPolicy: corev1.PullIfNotPresent}},
		}}
	if s.Node != "" {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
					Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{s.Node}}}}}}}}
	}
	change(&pod.Spec)
	err := s.until(ctx, "create pod", func(ctx context.Context) (bool, string, error) {
		_, err := s.Client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil && strings.Contains(err.Error(), "serviceaccount") { // the namespace is new
			return false, err.Error(), nil
		}
		return true, "", err
	})
	return pod.Name, err
}

// running waits until the pods run and returns the last of them.
func (s *suite) running(ctx context.Context, names ...string) (*corev1.Pod, error) {
	var pod *corev1.Pod
	for _, name := range names {
		err := s.until(ctx, name+" runs", func(ctx context.Context) (bool, string, error) {
			got, err := s.Client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			pod = got
			switch got.Status.Phase {
			case corev1.PodFailed, corev1.PodSucceeded:
				return false, "", fmt.Errorf("it has ended: %s", s.state(ctx, got))
			case corev1.PodRunning:
				return true, "", nil
			}
			return false, s.state(ctx, got), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return pod, nil
}

// state describes why a pod does not run: its last event, or its phase.
func (s *suite) state(ctx context.Context, pod *corev1.Pod) string {
	text := string(pod.Status.Phase) + " " + pod.Status.Message
	events, err := s.Client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return text
	}
	for _, event := range events.Items {
		if event.InvolvedObject.UID == pod.UID && event.Type == corev1.EventTypeWarning {
			text = event.Reason + ": " + event.Message
		}
	}
	return text
}

// started creates a claim and a pod that uses it, and waits until the pod runs.
func (s *suite) started(ctx context.Context, options ...func(*resourceapi.ResourceClaimSpec)) (*corev1.Pod,
	*resourceapi.ResourceClaim, error) {
	claim, err := s.claim(ctx, options...)
	if err != nil {
		return nil, nil, err
	}
	name, err := s.pod(ctx, claim.Name)
	if err != nil {
		return nil, nil, err
	}
	pod, err := s.running(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	claim, err = s.getClaim(ctx, claim.Name)
	return pod, claim, err
}

// remove deletes pods and waits until they are gone. A grace period of 0 does not wait for the kubelet.
func (s *suite) remove(ctx context.Context, options metav1.DeleteOptions, names ...string) error {
	for _, name := range names {
		err := s.Client.CoreV1().Pods(s.namespace).Delete(ctx, name, options)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, name := range names {
		if err := s.until(ctx, name+" ends", func(ctx context.Context) (bool, string, error) {
			pod, err := s.Client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return apierrors.IsNotFound(err), "", ignoreNotFound(err)
			}
			return false, "it is terminating; " + s.state(ctx, pod), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// released waits until the claim is not allocated.
func (s *suite) released(ctx context.Context, claim string) error {
	return s.until(ctx, claim+" is released", func(ctx context.Context) (bool, string, error) {
		got, err := s.getClaim(ctx, claim)
		if err != nil {
			return apierrors.IsNotFound(err), "", ignoreNotFound(err)
		}
		state := fmt.Sprintf("it is allocated, and reserved for %v", got.Status.ReservedFor)
		return got.Status.Allocation == nil, state, nil
	})
}

// clean removes all pods and claims of the last check. It fails if a pod does not end.
func (s *suite) clean(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	pods, err := s.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	stuck := s.remove(ctx, metav1.DeleteOptions{}, names...)
	if stuck != nil { // so that it does not fail the next checks
		_ = s.remove(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, names...)
	}
	claims, err := s.Client.ResourceV1().ResourceClaims(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, claim := range claims.Items {
		err := s.Client.ResourceV1().ResourceClaims(s.namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{})
		stuck = errors.Join(stuck, ignoreNotFound(err))
	}
	return errors.Join(stuck, s.until(ctx, "claims are deleted", func(ctx context.Context) (bool, string, error) {
		claims, err := s.Client.ResourceV1().ResourceClaims(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		return len(claims.Items) == 0, fmt.Sprintf("%d claims are there", len(claims.Items)), nil
	}))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// devices names the devices of an allocation, for comparisons and messages.
func devices(allocation *resourceapi.AllocationResult, driver string) []string {
	var names []string
	if allocation == nil {
		return nil
	}
	for _, result := range allocation.Devices.Results {
		if result.Driver == driver {
			names = append(names, result.Pool+"/"+result.Device)
		}
	}
	return names
}

// probe returns what the container says of its devices; empty if there is no command for it. The order of lines does
// not count: the kubelet writes variables in any order.
func (s *suite) probe(ctx context.Context, pod string) (string, error) {
	if len(s.Probe) == 0 || s.Exec == nil {
		return "", nil
	}
	output, err := s.Exec(ctx, s.namespace, pod, s.Probe...)
	lines := strings.FieldsFunc(output, func(r rune) bool { return r == '\n' || r == 0 }) // as in /proc/self/environ
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

// freeDevices counts the devices of the class on the node that can be allocated at the same time. Of devices that
// consume counters of one set, one counts.
func (s *suite) freeDevices(ctx context.Context) (int, error) {
	list, err := s.slices(ctx)
	if err != nil {
		return 0, err
	}
	class, err := s.Client.ResourceV1().DeviceClasses().Get(ctx, s.Class, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	claims, err := s.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	held := map[string]bool{} // by pool/device
	for _, claim := range claims.Items {
		for _, name := range devices(claim.Status.Allocation, s.Driver) {
			held[name] = true
		}
	}
	free := map[string]bool{} // by device or counter set: whether none of its devices is held
	for _, slice := range list {
		if slice.Spec.NodeName != nil && *slice.Spec.NodeName != s.Node {
			continue
		}
		for _, device := range slice.Spec.Devices {
			key := slice.Spec.Pool.Name + "/device " + device.Name
			if len(device.ConsumesCounters) > 0 {
				key = slice.Spec.Pool.Name + "/set " + device.ConsumesCounters[0].CounterSet
			}
			if held[slice.Spec.Pool.Name+"/"+device.Name] {
				free[key] = false
				continue
			}
			matches, err := selects(ctx, class, s.Driver, device)
			if _, known := free[key]; err == nil && matches && !tainted(device) && !known {
				free[key] = true
			}
		}
	}
	count := 0
	for _, usable := range free {
		if usable {
			count++
		}
	}
	return count, nil
}

// nodeDevices returns the devices of the node as pool/device.
func (s *suite) nodeDevices(ctx context.Context) (map[string]resourceapi.Device, error) {
	list, err := s.slices(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]resourceapi.Device{}
	for _, slice := range list {
		if ptr.Deref(slice.Spec.NodeName, s.Node) == s.Node {
			for _, device := range slice.Spec.Devices {
				all[slice.Spec.Pool.Name+"/"+device.Name] = device
			}
		}
	}
	return all, nil
}

// tainted reports whether a taint keeps new claims from a device.
func tainted(device resourceapi.Device) bool {
	for _, taint := range device.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNone {
			return true
		}
	}
	return false
}
