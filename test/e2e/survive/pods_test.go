//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespace creates a namespace; its pods and claims are removed at the end of the test.
func (s *suite) namespace(t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}
	must(t, s.Create(t.Context(), ns))
	// Without it the API server rejects pods. After downtime of the API server it is created with a delay.
	eventually(t, soon, "the default service account", func() string {
		if err := s.Get(t.Context(), client.ObjectKey{Namespace: ns.Name, Name: "default"},
			&corev1.ServiceAccount{}); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			t.Log(s.Diagnose(ctx, ns.Name))
		}
		s.KeepLogsOf(t)
		if err := s.Empty(ctx, soon, ns.Name); err != nil {
			t.Error(err)
		}
		must(t, s.DeleteNamespaces(ctx, ns.Name))
	})
	return ns.Name
}

// adminNamespace creates a namespace that allows admin access.
func (s *suite) adminNamespace(t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace(t, name)}}
	before := ns.DeepCopy()
	ns.Labels = map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}
	must(t, s.Patch(t.Context(), ns, client.MergeFrom(before)))
	return ns.Name
}

// podOption changes a pod before it is created.
type podOption func(*corev1.Pod)

// runs makes the pod run another command.
func runs(command ...string) podOption {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = command, nil }
}

// shell makes the pod run a script with the node's programs, because its image has none.
func shell(script string) podOption {
	return func(p *corev1.Pod) {
		runs("/host/usr/sbin/chroot", "/host", "/bin/sh", "-c", script)(p)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}
	}
}

// once makes the pod end with its program.
func once(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }

// grace sets the pod's termination grace period.
func grace(period time.Duration) podOption {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(period.Seconds())) }
}

// pod creates a pod on the node with one GPU that the expression selects; empty: any.
func (n node) pod(t *testing.T, namespace, name, selector string, options ...podOption) client.ObjectKey {
	t.Helper()
	request := resourceapi.ExactDeviceRequest{DeviceClassName: driver}
	if selector != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	return n.podFor(t, namespace, name, request, options...)
}

// share creates a pod on the node with that memory and a fifth of the cores of a GPU.
func (n node) share(t *testing.T, namespace, name, memory string, options ...podOption) client.ObjectKey {
	t.Helper()
	return n.podFor(t, namespace, name, resourceapi.ExactDeviceRequest{DeviceClassName: driver,
		Capacity: &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(memory), "cores": resource.MustParse("20")}}}, options...)
}

// monitor creates a pod on the node with its monitor device. The namespace must allow admin access.
func (n node) monitor(t *testing.T, namespace, name string) client.ObjectKey {
	t.Helper()
	return n.podFor(t, namespace, name, resourceapi.ExactDeviceRequest{DeviceClassName: "monitor." + driver,
		AdminAccess: new(true)})
}

// machine creates a pod on the node with a GPU for a virtual machine.
func (n node) machine(t *testing.T, namespace, name string) client.ObjectKey {
	t.Helper()
	return n.podFor(t, namespace, name, resourceapi.ExactDeviceRequest{DeviceClassName: "vfio." + driver})
}

// podFor creates a pod on the node with the request.
func (n node) podFor(t *testing.T, namespace, name string, request resourceapi.ExactDeviceRequest,
	options ...podOption) client.ObjectKey {
	t.Helper()
	must(t, n.ApplyTyped(t.Context(), &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}}}},
	}))
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeSelector:   map[string]string{corev1.LabelHostname: n.name},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}},
			Containers: []corev1.Container{{
				Name: "main", Image: n.image, Args: []string{"show", "--stay"},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}
	grace(time.Second)(pod)
	for _, option := range options {
		option(pod)
	}
	must(t, n.ApplyTyped(t.Context(), pod))
	return client.ObjectKeyFromObject(pod)
}

// exactly selects one GPU.
func exactly(uuid string) string {
	return fmt.Sprintf("device.attributes['%s'].uuid == '%s'", driver, uuid)
}

// running waits until the pod is running.
func (s *suite) running(t *testing.T, pod client.ObjectKey) *corev1.Pod {
	t.Helper()
	got, err := s.WaitPod(t.Context(), soon, pod, "running", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) == 1 &&
			p.Status.ContainerStatuses[0].Ready
	})
	must(t, err)
	return got
}

func (s *suite) get(t *testing.T, pod client.ObjectKey) *corev1.Pod {
	t.Helper()
	var got corev1.Pod
	must(t, s.Get(t.Context(), pod, &got))
	return &got
}

// remove deletes pods without waiting.
func (s *suite) remove(t *testing.T, pods ...client.ObjectKey) {
	t.Helper()
	for _, pod := range pods {
		must(t, client.IgnoreNotFound(s.Delete(t.Context(), object(pod))))
	}
}

// force deletes pods like --force --grace-period=0: their objects are gone at once.
func (s *suite) force(t *testing.T, pods ...client.ObjectKey) {
	t.Helper()
	for _, pod := range pods {
		must(t, s.Delete(t.Context(), object(pod), client.GracePeriodSeconds(0)))
	}
}

func object(pod client.ObjectKey) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}

// gone waits until the pods no longer exist.
func (s *suite) gone(t *testing.T, pods ...client.ObjectKey) {
	t.Helper()
	for _, pod := range pods {
		eventually(t, soon, "pod "+pod.String()+" to be gone", func() string {
			var got corev1.Pod
			switch err := s.Get(t.Context(), pod, &got); {
			case apierrors.IsNotFound(err):
				return ""
			case err != nil:
				return err.Error()
			}
			return string(got.Status.Phase)
		})
	}
}

// claim returns the claim that was created for the pod.
func (s *suite) claim(t *testing.T, pod client.ObjectKey) *resourceapi.ResourceClaim {
	t.Helper()
	statuses := s.get(t, pod).Status.ResourceClaimStatuses
	if len(statuses) != 1 || statuses[0].ResourceClaimName == nil {
		t.Fatalf("pod %s has no claim", pod)
	}
	var claim resourceapi.ResourceClaim
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: *statuses[0].ResourceClaimName},
		&claim))
	return &claim
}

// device returns the name of the GPU that is allocated to the pod's claim.
func (s *suite) device(t *testing.T, pod client.ObjectKey) string {
	t.Helper()
	allocation := s.claim(t, pod).Status.Allocation
	if allocation == nil || len(allocation.Devices.Results) != 1 {
		t.Fatalf("the claim of pod %s has no device", pod)
	}
	return allocation.Devices.Results[0].Device
}
