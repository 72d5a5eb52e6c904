//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testHealth lets GPUs become sick. The node configuration of these tests evicts pods from GPUs with XID 79.
func (s *suite) testHealth(t *testing.T) {
	s.needs(t, "DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceTaints", "DRADeviceTaintRules")
	t.Run("dgx-h100", func(t *testing.T) {
		t.Parallel()
		t.Run("whole GPU", s.testSickGPU)
		t.Run("partition", s.testSickPartition)
		t.Run("extended resource", s.testSickExtended)
		t.Run("by hand, as the demo says", s.testSickGPUByHand)
		t.Run("silent fault before the pod starts", s.testSilentFault)
	})
	t.Run("shared GPU", func(t *testing.T) {
		t.Parallel()
		s.testSickSharedGPU(t)
	})
	t.Run("people clear a GPU, and replace the driver", func(t *testing.T) {
		t.Parallel()
		s.testHealthCommand(t)
	})
	t.Run("an idle GPU stays healthy", func(t *testing.T) {
		t.Parallel()
		s.testIdleHealth(t)
	})
}

// replicas creates a Deployment whose pods have a claim from the template, and these arguments instead of the usual.
func (s *suite) replicas(t *testing.T, namespace, name, node, template string, count int32, args ...string) {
	t.Helper()
	s.replicasWith(t, namespace, name, node, template, count, func(*corev1.PodSpec) {}, args...)
}

// replicasWith is replicas with a change of its pods.
func (s *suite) replicasWith(t *testing.T, namespace, name, node, template string, count int32, change podOption,
	args ...string) {
	t.Helper()
	if len(args) == 0 {
		args = []string{"show", "--stay"}
	}
	pod := &corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: s.image, Args: args}},
		// Not 0: such a pod is gone before its claim is released, and testRemote then ends the plugin that does it.
		TerminationGracePeriodSeconds: ptr.To(int64(1))}
	onNode(node)(pod)
	withTemplate(template)(pod)
	change(pod)
	labels := map[string]string{"app": name}
	s.must(t, s.ApplyTyped(t.Context(), &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.DeploymentSpec{Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: *pod}},
	}))
}

// waitReplicas waits until so many pods of the Deployment run on GPUs that match.
func (s *suite) waitReplicas(t *testing.T, namespace, name string, count int, matches func(device string) bool) (
	found []corev1.Pod) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("%d pods of %s", count, name),
		func(ctx context.Context) (bool, string, error) {
			pods, err := s.Pods(ctx, namespace, client.MatchingLabels{"app": name})
			found = nil
			state := ""
			for _, p := range pods {
				state += fmt.Sprintf("%s %s; ", p.Name, p.Status.Phase)
				if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
					continue
				}
				claim, err := s.findClaim(ctx, &p)
				if err != nil {
					return false, state, client.IgnoreNotFound(err) // the pod has been deleted since
				}
				if a := claim.Status.Allocation; a != nil && matches(a.Devices.Results[0].Device) {
					found = append(found, p)
				}
			}
			return len(found) == count, state, err
		}))
	return found
}

// waitTaint waits until the device has the taint, written as "key=value:effect"; "" means none of the driver's.
func (s *suite) waitTaint(t *testing.T, node, device, want string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("taint %q of %s", want, device),
		func(context.Context) (bool, string, error) {
			got := s.taintsOf(t, node, device)
			return got == want, got, nil
		}))
}

func (s *suite) taintsOf(t *testing.T, node, device string) string {
	t.Helper()
	var taints []string
	for _, d := range s.published(t, node) {
		for _, taint := range d.Taints {
			// Without effect is only that a GPU is not watched while another one can be reset.
			if d.Name == device && taint.Effect != resourceapi.DeviceTaintEffectNone {
				taints = append(taints, fmt.Sprintf("%s=%s:%s", strings.TrimPrefix(taint.Key, "gpu.nvidia.com/"),
					taint.Value, taint.Effect))
			}
		}
	}
	return strings.Join(taints, " ")
}

// healthOf returns the health of the pod's only device in its status: "Healthy", or "Unhealthy: message".
func healthOf(p *corev1.Pod) string {
	var all []corev1.ResourceHealth
	for _, c := range p.Status.ContainerStatuses {
		for _, r := range c.AllocatedResourcesStatus {
			all = append(all, r.Resources...)
		}
	}
	switch {
	case len(all) == 0:
		return ""
	case ptr.Deref(all[0].Message, "") == "":
		return string(all[0].Health)
	}
	return fmt.Sprintf("%s: %s", all[0].Health, *all[0].Message)
}

// waitHealth waits until the pod's status has a health that begins with prefix.
func (s *suite) waitHealth(t *testing.T, pod client.ObjectKey, prefix string) {
	t.Helper()
	last := ""
	_, err := s.WaitPod(t.Context(), soon, pod, "health "+prefix, func(p *corev1.Pod) bool {
		last = healthOf(p)
		return strings.HasPrefix(last, prefix)
	})
	if err != nil {
		t.Fatalf("%v; the last health was %q", err, last)
	}
}

// testSickGPU: a GPU gets an XID, its pod is evicted and starts on another GPU, and later the GPU is used again.
func (s *suite) testSickGPU(t *testing.T) {
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "sick")
	one := s.template(t, ns, "one-gpu")
	s.replicas(t, ns, "worker", node, one, 1)
	pod := s.waitReplicas(t, ns, "worker", 1, func(string) bool { return true })[0]
	sick := s.allocated(t, &pod)
	s.waitHealth(t, client.ObjectKeyFromObject(&pod), "Healthy")
	plugin := s.plugin(t, node)

	// The error of a program is told and changes nothing.
	s.simctl(t, plugin, "xid", sick.Name, "31")
	s.waitHealth(t, client.ObjectKeyFromObject(&pod), "Healthy: XID 31")
	if got := s.taintsOf(t, node, sick.Name); got != "" {
		t.Errorf("XID 31, which programs cause: got the taint %q", got)
	}

	s.simctl(t, plugin, "health", sick.Name, "recovery-action=reset")
	s.simctl(t, plugin, "xid", sick.Name, "79")
	next := s.waitReplicas(t, ns, "worker", 1, func(d string) bool { return d != sick.Name })[0]
	s.waitTaint(t, node, sick.Name, "unhealthy=RecoveryActionReset:NoSchedule xid=79:NoExecute")
	s.waitHealth(t, client.ObjectKeyFromObject(&next), "Healthy")
	waiting := s.pod(t, ns, "waiting", withTemplate(s.claimTemplate(t, ns, "sick", theGPU(sick))))
	s.waitUnschedulable(t, waiting)

	// The taint survives the plugin.
	plugin = s.restartPlugin(t, node)
	s.waitTaint(t, node, sick.Name, "unhealthy=RecoveryActionReset:NoSchedule xid=79:NoExecute")

	// A GPU that is in use is not evicted without an administrator's word.
	other := s.allocated(t, &next)
	s.simctl(t, plugin, "health", other.Name, "recovery-action=reset")
	s.waitTaint(t, node, other.Name, "unhealthy=RecoveryActionReset:NoSchedule")
	s.waitHealth(t, client.ObjectKeyFromObject(&next), "Unhealthy: RecoveryActionReset")
	claim := s.claimOf(t, &next)
	s.waitCondition(t, client.ObjectKeyFromObject(&claim), "False RecoveryActionReset")
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), "DeviceUnhealthy", "asks for a reset")

	// No claim holds the first GPU any more, so the plugin does not watch its events while it waits for its reset.
	s.trySimctl(t, plugin, "reset", sick.Name)
	s.simctl(t, plugin, "health", other.Name, "recovery-action=none")
	s.waitTaint(t, node, other.Name, "")
	s.waitHealth(t, client.ObjectKeyFromObject(&next), "Healthy")
	s.waitCondition(t, client.ObjectKeyFromObject(&claim), "True Recovered")
	s.waitTaint(t, node, sick.Name, "")
	s.running(t, waiting)
	if after, err := s.WaitPod(t.Context(), soon, client.ObjectKeyFromObject(&next), "still there",
		func(*corev1.Pod) bool { return true }); err != nil || after.UID != next.UID {
		t.Errorf("the pod on the GPU that needed a reset was replaced: %v", err)
	}
}

// testSilentFault: a GPU loses half of its PCIe lanes after it was allocated. The pod, which waited for a volume, does
// not start on it: the claim is refused, the pod is evicted, and the next one gets another GPU.
func (s *suite) testSilentFault(t *testing.T) {
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "silent")
	s.replicasWith(t, ns, "worker", node, s.template(t, ns, "one-gpu"), 1, func(p *corev1.PodSpec) {
		p.Volumes = []corev1.Volume{{Name: "start", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "start"}}}}}
		p.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "start", MountPath: "/start"}}
	})
	var waiting corev1.Pod
	s.must(t, kube.Until(t.Context(), soon, "a pod with a GPU", func(ctx context.Context) (bool, string, error) {
		pods, err := s.Pods(ctx, ns, client.MatchingLabels{"app": "worker"})
		if err != nil || len(pods) != 1 {
			return false, fmt.Sprint(len(pods), " pods"), err
		}
		waiting = pods[0]
		claim, err := s.findClaim(ctx, &waiting)
		return err == nil && claim.Status.Allocation != nil, fmt.Sprint(err), nil
	}))
	sick, plugin := s.names(t, &waiting)[0], s.plugin(t, node)
	s.simctl(t, plugin, "health", sick, "pcie=x8g5")
	s.waitTaint(t, node, sick, "unhealthy=PCIeLinkDegraded:NoSchedule")
	s.must(t, s.ApplyTyped(t.Context(), &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "start", Namespace: ns}}))
	s.waitEvent(t, client.ObjectKeyFromObject(&waiting), "FailedPrepareDynamicResources",
		sick+" has become sick since it was allocated")
	s.waitGone(t, &waiting)
	s.waitReplicas(t, ns, "worker", 1, func(d string) bool { return d != sick })
	s.waitTaint(t, node, sick, "unhealthy=PCIeLinkDegraded:NoSchedule") // nobody waits for it any more
	s.simctl(t, plugin, "health", sick, "pcie=profile")
	s.waitTaint(t, node, sick, "")
}

// testSickGPUByHand runs the commands of the demo's README, in the folder where its reader is.
func (s *suite) testSickGPUByHand(t *testing.T) {
	page, err := os.ReadFile("../../demo/sick-gpu/README.md")
	s.must(t, err)
	_, commands, _ := strings.Cut(string(page), "```sh\n")
	commands, _, _ = strings.Cut(commands, "```")
	defer func() { s.must(t, s.Empty(context.WithoutCancel(t.Context()), soon, "demo-sick-gpu")) }()
	output := s.shell(t, commands+"echo sick: $node $gpu")
	_, sick, _ := strings.Cut(output, "\nsick: ")
	node, gpu, _ := strings.Cut(strings.TrimSpace(sick), " ")
	if !strings.Contains(output, "\nworker-") {
		t.Fatal(output)
	}
	s.waitEvent(t, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: node}, "GPUUnhealthy", gpu)
	s.health(t, s.plugin(t, node), "--clear", gpu)
	s.waitTaint(t, node, gpu, "")
}

// waitCondition waits until the only device of the claim has the condition Healthy with this status and reason.
func (s *suite) waitCondition(t *testing.T, claim client.ObjectKey, want string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, "condition Healthy "+want, func(ctx context.Context) (bool, string, error) {
		var c resourceapi.ResourceClaim
		if err := s.Get(ctx, claim, &c); err != nil {
			return false, "", err
		}
		got := ""
		for _, d := range c.Status.Devices {
			for _, condition := range d.Conditions {
				if condition.Type == "Healthy" {
					got = fmt.Sprintf("%s %s", condition.Status, condition.Reason)
				}
			}
		}
		return got == want, got, nil
	}))
}

// testSickPartition: an XID of a partition concerns what shares memory with it, and no other partition.
func (s *suite) testSickPartition(t *testing.T) {
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "sick-partition")
	gpu := s.wholeGPUs(t, node)[0]
	var pods [2]client.ObjectKey
	var parts [2]made
	for i := range pods {
		pods[i] = s.withPartition(t, ns, fmt.Sprintf("worker-%d", i), "1g.10gb", gpu)
		parts[i] = s.madeFor(t, pods[i])
		s.waitHealth(t, pods[i], "Healthy")
	}
	plugin := s.plugin(t, node)
	s.simctl(t, plugin, "health", gpu.Name, "recovery-action=drain-and-reset")
	s.waitTaint(t, node, gpu.Name, "unhealthy=RecoveryActionDrainAndReset:NoSchedule")
	s.simctl(t, plugin, "xid", parts[0].UUID, "95")
	const reset = "unhealthy=RecoveryActionDrainAndReset:NoSchedule"
	s.waitTaint(t, node, parts[0].Device, reset+" xid=95:NoSchedule")
	s.waitHealth(t, pods[0], "Unhealthy: ")
	if got := s.taintsOf(t, node, parts[1].Device); got != reset {
		t.Errorf("the other partition: got the taints %q, want %q", got, reset)
	}
	s.simctl(t, plugin, "health", gpu.Name, "recovery-action=none")
	s.waitTaint(t, node, parts[0].Device, "")
	for _, pod := range pods {
		s.waitHealth(t, pod, "Healthy")
	}
}

// testSickExtended: pods that got a GPU or a partition as an extended resource are evicted as a pod with a claim is, by
// a rule and by an XID. A claim that tolerates the taint keeps its pod.
func (s *suite) testSickExtended(t *testing.T) {
	s.needs(t, "DRAExtendedResource")
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "sick-extended")
	const key = "example.com/drain"
	tolerates := resourceapi.DeviceToleration{Key: key, Operator: resourceapi.DeviceTolerationOpExists,
		Effect: resourceapi.DeviceTaintEffectNoExecute}
	extended := func(name corev1.ResourceName) podOption {
		return func(p *corev1.PodSpec) {
			p.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
		}
	}
	byClaim := s.running(t, s.pod(t, ns, "by-claim", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	unchanged := s.running(t, s.pod(t, ns, "unchanged", onNode(node), extended("nvidia.com/gpu")))
	partition := s.running(t, s.pod(t, ns, "partition", onNode(node), extended("nvidia.com/mig-1g.10gb")))
	tolerating := s.running(t, s.pod(t, ns, "tolerating", onNode(node), withTemplate(s.claimTemplate(t, ns, "tolerates",
		resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{gpus("gpu", 1, tolerates)}}))))
	for _, pod := range []*corev1.Pod{tolerating, byClaim, unchanged, partition} {
		rule := &resourceapi.DeviceTaintRule{
			TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceTaintRule"},
			ObjectMeta: metav1.ObjectMeta{Name: ns + "-" + pod.Name},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: driver, Pool: &node,
					Device: &s.names(t, pod)[0]},
				Taint: resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoExecute}}}
		t.Cleanup(func() { s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), rule))) })
		s.must(t, s.ApplyTyped(t.Context(), rule))
	}
	for _, pod := range []*corev1.Pod{byClaim, unchanged, partition} {
		s.waitGone(t, pod)
	}
	for _, pod := range []*corev1.Pod{unchanged, partition} {
		s.waitEvicted(t, pod, "has the taint "+key+":NoExecute by DeviceTaintRule "+ns+"-"+pod.Name)
	}

	again := s.running(t, s.pod(t, ns, "again", onNode(node), extended("nvidia.com/gpu")))
	claim, sick, plugin := s.claimOf(t, again), s.names(t, again)[0], s.plugin(t, node)
	s.simctl(t, plugin, "health", sick, "recovery-action=reset")
	s.simctl(t, plugin, "xid", sick, "79")
	s.waitGone(t, again)
	s.waitEvicted(t, again, sick+" has the taint gpu.nvidia.com/xid=79")
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), "DeviceUnhealthy", "Its pods are evicted")
	s.simctl(t, plugin, "health", sick, "recovery-action=none")
	s.waitTaint(t, node, sick, "")
	if after := s.running(t, client.ObjectKeyFromObject(tolerating)); after.UID != tolerating.UID ||
		after.DeletionTimestamp != nil {
		t.Errorf("the pod whose claim tolerates the taint was evicted")
	}
}

// waitEvicted waits for the event of an eviction: that of Kubernetes, which evicts pods with extended resources since
// 1.37.2, or that of the controller, with the text.
func (s *suite) waitEvicted(t *testing.T, pod *corev1.Pod, text string) {
	t.Helper()
	about := client.ObjectKeyFromObject(pod)
	s.must(t, kube.Until(t.Context(), soon, "an event of the eviction of "+pod.Name,
		func(ctx context.Context) (bool, string, error) {
			events, err := s.Events(ctx, about)
			return slices.ContainsFunc(events, func(e string) bool {
				return strings.Contains(e, "DeviceTaintManagerEviction") ||
					containsAll(e, []string{"DeviceTaintEviction", text})
			}), strings.Join(events, "\n"), err
		}))
}

// waitGone waits until the pod does not exist any more, or has been replaced by another one of its name.
func (s *suite) waitGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), 2*soon, "pod "+pod.Name+" to be gone",
		func(ctx context.Context) (bool, string, error) {
			var now corev1.Pod
			err := s.Get(ctx, client.ObjectKeyFromObject(pod), &now)
			return apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID,
				fmt.Sprintf("%s, conditions %v", now.Status.Phase, now.Status.Conditions), client.IgnoreNotFound(err)
		}))
}

// shell runs commands of a page in the folder where its reader is, with the kubectl of the cluster.
func (s *suite) shell(t *testing.T, commands string) string {
	t.Helper()
	tools := filepath.Dir(os.Getenv(helmProgram)) // kubectl is there, too
	if tools == "." {
		t.Skip("no programs beside $HELM")
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-euxc", commands)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
}

// testSickSharedGPU: three pods share a GPU that falls off the bus; all three start again on another one. The monitor
// of the node stays and sees it. While a share binds, Kubernetes 1.37 counts it twice: the shares are so small that all
// three fit on the first GPU nevertheless.
func (s *suite) testSickSharedGPU(t *testing.T) {
	node := s.node(t, "workstation")
	ns := s.namespace(t, "sick-shared")
	admin := s.adminNamespace(t, "sick-monitor")
	monitor := s.pod(t, admin, "monitor", onNode(node),
		withTemplate(s.templateFor(t, admin, "monitor", monitorRequest("all"))))
	s.waitHealth(t, monitor, "Healthy")
	s.replicas(t, ns, "worker", node, s.claimTemplate(t, ns, "share", resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{share("gpu", "NVIDIA RTX A6000", "5Gi", "20")}}), 3)
	pods := s.waitReplicas(t, ns, "worker", 3, func(string) bool { return true })
	sick := s.names(t, &pods[0])[0]
	for _, p := range pods {
		if got := s.names(t, &p)[0]; got != sick {
			t.Fatalf("pod %s has a share of %s, want %s as the first", p.Name, got, sick)
		}
	}
	plugin := s.plugin(t, node)
	// Every share has the health of its GPU, also after a restart of the plugin.
	s.simctl(t, plugin, "health", sick, "recovery-action=reboot")
	for _, p := range pods {
		s.waitHealth(t, client.ObjectKeyFromObject(&p), "Unhealthy: RecoveryActionReboot")
	}
	plugin = s.restartPlugin(t, node)
	s.simctl(t, plugin, "health", sick, "recovery-action=none")
	for _, p := range pods {
		s.waitHealth(t, client.ObjectKeyFromObject(&p), "Healthy")
	}
	s.simctl(t, plugin, "health", sick, "recovery-action=reboot")
	s.simctl(t, plugin, "xid", sick, "79", "--count", "3000", "--rate", "1000")
	s.waitReplicas(t, ns, "worker", 3, func(d string) bool { return d != sick })
	s.waitHealth(t, monitor, "Healthy: "+sick+": ")
	s.running(t, s.pod(t, admin, "monitor-2", onNode(node), withTemplate("monitor")))
	s.running(t, monitor)
	s.simctl(t, plugin, "health", sick, "recovery-action=none")
	s.waitTaint(t, node, sick, "")
}

// trySimctl repeats a command of simctl until it succeeds: a discovery may have NVML open at that moment.
func (s *suite) trySimctl(t *testing.T, plugin *corev1.Pod, args ...string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, "simctl "+strings.Join(args, " "),
		func(ctx context.Context) (bool, string, error) {
			output, err := s.Simctl(ctx, client.ObjectKeyFromObject(plugin), args...)
			return err == nil, fmt.Sprint(output, err), nil
		}))
}

// health runs the command "health" with these arguments and returns its output. It repeats one that the plugin has not
// followed in time.
func (s *suite) health(t *testing.T, plugin *corev1.Pod, args ...string) (output string) {
	t.Helper()
	command := append([]string{kube.SimulatedPlugin, "health"}, args...)
	s.must(t, kube.Until(t.Context(), soon, strings.Join(command, " "), func(ctx context.Context) (bool, string,
		error) {
		var err error
		output, err = s.Exec(ctx, client.ObjectKeyFromObject(plugin), command...)
		return err == nil, "", err
	}))
	return output
}

// testHealthCommand uses the command "health" as an administrator would.
func (s *suite) testHealthCommand(t *testing.T) {
	node := s.node(t, "l40s-x4")
	plugin := s.plugin(t, node)
	gpu := s.wholeGPUs(t, node)[0].Name
	health := func(args ...string) string { return s.health(t, plugin, args...) }
	s.simctl(t, plugin, "xid", gpu, "142")
	s.waitTaint(t, node, gpu, "xid=142:NoSchedule")
	says := func(want string) {
		t.Helper()
		s.must(t, kube.Until(t.Context(), soon, "the command to say "+want,
			func(context.Context) (bool, string, error) {
				got := health()
				return strings.Contains(got, gpu) && strings.Contains(got, want), got, nil
			}))
	}
	says("XID 142")
	health("--clear", gpu)
	s.waitTaint(t, node, gpu, "")
	says("(cleared)")

	if output, err := s.Simctl(t.Context(), client.ObjectKeyFromObject(plugin), "unload"); err == nil {
		t.Fatalf("the driver was unloaded while the plugin watches events: %s", output)
	}
	health("--close-nvml", "1h") // until --open-nvml
	t.Cleanup(func() {
		_, _ = s.Exec(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(plugin), kube.SimulatedPlugin,
			"health", "--open-nvml")
	})
	s.waitTaint(t, node, gpu, "unmonitored=:NoSchedule")
	s.trySimctl(t, plugin, "unload")
	health("--open-nvml")
	says("not watched: ")
	s.waitTaint(t, node, gpu, "unmonitored=:NoSchedule") // there is no driver yet
	s.simctl(t, plugin, "load")
	s.waitTaint(t, node, gpu, "")
	ns := s.namespace(t, "after-unload")
	pod := s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu")))
	s.waitHealth(t, pod, "Healthy")
	s.simctl(t, plugin, "xid", gpu, "142") // events are watched again
	s.waitTaint(t, node, gpu, "xid=142:NoSchedule")
	health("--clear", gpu)
	s.waitTaint(t, node, gpu, "")
}

// kubeletTimeout is how long the kubelet remembers the health of a device that is not reported again.
const kubeletTimeout = 30 * time.Second

// testIdleHealth: while nothing happens, the health of a device is never unknown.
func (s *suite) testIdleHealth(t *testing.T) {
	node := s.node(t, "mixed")
	ns := s.namespace(t, "idle-health")
	pod := s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu")))
	s.waitHealth(t, pod, "Healthy")
	for end := time.Now().Add(2 * kubeletTimeout); time.Now().Before(end); time.Sleep(time.Second) {
		var p corev1.Pod
		s.must(t, s.Get(t.Context(), pod, &p))
		if got := healthOf(&p); got != "Healthy" {
			t.Fatalf("got the health %q, want Healthy", got)
		}
	}
}
