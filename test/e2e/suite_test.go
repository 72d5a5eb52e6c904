//go:build e2e

// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the driver on a real cluster with simulated GPUs, only through its kubeconfig ($KUBECONFIG). `make
// test-e2e` starts such a cluster, with the built-in profiles that the tests need on its nodes.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

var (
	driver = flag.String("driver-name", "gpu.nvidia.com", "name of the DRA driver")
	update = flag.Bool("update", false, "write the golden files")
)

const (
	// soon is the patience with anything that the cluster does by itself: how long nothing may be new.
	soon = kube.Patience
	// hangs is when a program in a pod, which cannot tell whether it moves, is taken to hang.
	hangs = 10 * time.Minute
	// profileLabel selects the profile of a node's simulated GPUs.
	profileLabel = kube.ProfileLabel
	simDir       = "/var/lib/gpu-dra-driver/sim"
	cdiDir       = "/var/run/cdi"
)

// suite is the state that all tests share.
type suite struct {
	*kube.Cluster
	image string
	nodes map[string]string // profile → node
}

// TestCluster runs the tests in this order on purpose: a test may rely on the GPUs of its nodes being free again after
// the previous one.
func TestCluster(t *testing.T) {
	s := newSuite(t)
	// Later, some nodes publish more partitions.
	t.Run("devices are published as the golden files have them, strongest first", s.testPublished)
	t.Run("every demo is as its README says", s.testDemos)
	t.Run("the event FieldsDropped names what the API server lacks", s.testFieldsDropped)
	t.Run("the fields of a claim that the API server drops are told", s.testClaimFieldsDropped)
	idle := s.startIdle(t) // restarts a plugin and then only watches; judged at the end
	t.Run("each claim gets its own GPU and the container sees only that one", s.testDistinct)
	t.Run("a container reaches the GPU of its claim and no other", s.testIsolation)
	t.Run("the claim's status, the container's metadata and the metrics show its GPU", s.testVisible)
	t.Run("containers of every shape start and reach their GPU", s.testShapes)
	t.Run("an invalid configuration is refused with the reason and the field", s.testConfig)
	t.Run("the webhook refuses invalid claims", s.testAdmission)
	t.Run("a new user's mistakes are named when they are typed, or by an event of the pod", s.testMistakes)
	t.Run("the class of the strongest GPU gives the strongest free one", s.testStrongest)
	t.Run("replicas without default spreading get the strongest GPUs", s.testDefaultSpreading)
	t.Run("claims can be created while the controller fails", s.testControllerFaults)
	t.Run("a pod of a tenant calls the webhooks in vain", s.testCallers)
	t.Run("pods of older systems run unchanged, and see what they asked for", s.testConversion)
	t.Run("kubectl-gpu shows the GPUs of the cluster and their use", s.testKubectl)
	t.Run("kubectl-gpu says why a pod waits, and the scheduler agrees", s.testKubectlWhy)
	t.Run("kubectl-gpu moves a share, and a GPU is free", s.testKubectlDefrag)
	t.Run("kubectl-gpu keeps a GPU for a team", s.testKubectlReserve)
	t.Run("a pod that does not use its GPU is marked and evicted", s.testIdlePod)
	t.Run("the examples of the documentation work", s.testDocs)
	t.Run("the manifests to copy are accepted, and their pods get their GPUs", s.testExamples)
	// Each of these uses its own nodes or its own models of GPUs.
	t.Run("nodes", func(t *testing.T) {
		t.Run("workstation", func(t *testing.T) {
			t.Parallel()
			t.Run("constraints select two GPUs that belong together", s.testPairs)
			t.Run("a constraint selects the GPU next to another driver's device", s.testNextToNIC)
			t.Run("a tainted GPU is only for claims that tolerate it", s.testTaint)
			t.Run("a monitor sees a GPU that is found later", s.testMonitorLater)
			t.Run("the node configuration changes while the plugin runs, for each GPU", s.testNodeConfig)
			t.Run("any number of pods use an unlimited GPU", s.testUnlimited)
		})
		t.Run("others", func(t *testing.T) {
			t.Parallel()
			t.Run("pods wait for GPUs and start when others finish", s.testQueue)
			t.Run("a claim shared by containers and pods is one GPU until the last has ended", s.testSharedClaim)
			t.Run("a claim of a PodGroup is one share until the group is gone", s.testPodGroup)
			t.Run("a deleted CDI file of a claim is created again", s.testDeletedSpec)
			t.Run("shares of one card, for several namespaces and users, each within its limits", s.testShares)
			t.Run("pods that come at once and fill a GPU with shares all run", s.testBursts)
			t.Run("two shares in one claim keep their own limits", s.testSharesOfOneClaim)
			t.Run("containers of a share have the memory of their daemon as /dev/shm", s.testSharedMemory)
			t.Run("a claim that wants other settings of a shared card is refused", s.testSharingConflict)
			t.Run("an MPS daemon that does not start or dies is reported and restarted", s.testDaemonFaults)
			t.Run("an MPS daemon outlives the plugin", s.testDaemonOutlivesPlugin)
			t.Run("metrics report the GPU usage of each container", s.testContainerMetrics)
			t.Run("pods have partitions of one GPU, which is restored afterwards", s.testPartition)
			t.Run("partitions, shares and whole GPUs do not conflict", s.testPartitionsAndWholeGPUs)
			t.Run("partitions of several GPUs are created in parallel", s.testPartitionsAtOnce)
			t.Run("a container that names a request gets the GPU of this request", s.testRequests)
		})
	})
	t.Run("virtual machines of KubeVirt get whole GPUs, and then a container does", s.testVirtualMachine)
	t.Run("virtual machines get vGPUs, one that exists and one that is made", s.testVGPU)
	t.Run("a pod gets the GPU of another node, and then that of another server", s.testRemote)
	t.Run("helm test prints what is published, and the GPU of a claim", s.testHelmTest)
	t.Run("pods of higher priority get GPUs, and a budget keeps others", s.testPreemption)
	t.Run("a quota counts the GPUs of a class for all kinds of requests", s.testQuota)
	t.Run("claims at once do not exceed a quota of GiB", s.testGPUQuota)
	t.Run("monitors see all GPUs while all are allocated, and allocate none", s.testMonitor)
	t.Run("the policy refuses the monitor device without admin access, with advice", s.testMonitorPolicy)
	t.Run("the plugin refuses the monitor device without admin access", s.testMonitorRefused)
	t.Run("a plugin can only write objects of its own node", s.testOwnNode)
	t.Run("nothing is left on the nodes when the pods are gone", s.testNothingLeft)
	t.Run("a failing GPU does not affect the others", s.testBrokenGPU)
	t.Run("slices do not change during a restart and an idle minute", idle.check)
	// These change slices.
	t.Run("possible partitions are published as they are needed", s.testPartitionsOnDemand)
	t.Run("partitions change outside the driver", s.testPartitionsChange)
	t.Run("a sick GPU is noticed, avoided and drained, and comes back", s.testHealth)
	t.Run("the controller deletes nothing of users, and creates no other secret", s.testControllerToken)
	t.Run("plugin and controller use all of their permissions and no others", s.testRights)
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG is not set: make test-e2e starts a cluster and sets it")
	}
	cluster, err := kube.Connect("")
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{Cluster: cluster, image: "localhost/gpu-dra-demo:" + strings.TrimSpace(string(version)),
		nodes: map[string]string{}}
	t.Cleanup(func() { s.KeepLogsOf(t) })
	var nodes corev1.NodeList
	if err := s.List(t.Context(), &nodes, client.HasLabels{profileLabel}); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		s.nodes[node.Labels[profileLabel]] = node.Name
	}
	s.waitPublished(t)
	if os.Getenv(auditCommand) != "" { // a cluster of ours: no test is left out
		for _, profile := range []string{"dgx-h100", "l40s-x4", "workstation", "mixed", vgpuProfile} {
			if s.nodes[profile] == "" {
				t.Fatalf("no node has the label %s=%s", profileLabel, profile)
			}
		}
	}
	return s
}

// waitPublished waits until the devices of all nodes are published: a plugin is ready before.
func (s *suite) waitPublished(t *testing.T) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, "devices of all nodes", func(ctx context.Context) (bool, string, error) {
		list, err := s.Slices(ctx, *driver)
		found, want := map[string]int64{}, map[string]int64{} // slices by pool
		for _, slice := range list {
			found[slice.Spec.Pool.Name]++
			want[slice.Spec.Pool.Name] = slice.Spec.Pool.ResourceSliceCount
		}
		var left []string
		for _, node := range s.nodes {
			if found[node] == 0 || found[node] < want[node] {
				left = append(left, fmt.Sprintf("%s: %d of %d slices", node, found[node], want[node]))
			}
		}
		slices.Sort(left)
		return len(left) == 0, strings.Join(left, ", "), err
	}))
}

// node returns the node with the profile. It skips the test if there is none.
func (s *suite) node(t *testing.T, profile string) string {
	t.Helper()
	node, ok := s.nodes[profile]
	if !ok {
		t.Skipf("no node with the label %s=%s", profileLabel, profile)
	}
	return node
}

// needs skips the test if the cluster lacks one of these feature gates of Kubernetes.
func (s *suite) needs(t *testing.T, gates ...string) {
	t.Helper()
	lacks, err := s.Lacks(t.Context(), gates...)
	s.must(t, err)
	skipWithout(t, lacks)
}

func skipWithout(t *testing.T, lacks []string) {
	t.Helper()
	if len(lacks) > 0 {
		t.Skipf("the cluster lacks %s", strings.Join(lacks, ", "))
	}
}

// namespace creates a namespace for a test. The end of the test removes its pods and claims, and prints diagnostics if
// the test failed.
func (s *suite) namespace(t *testing.T, name string) string {
	t.Helper()
	return s.labelled(t, name, nil)
}

// labelled is namespace with labels that are set at creation.
func (s *suite) labelled(t *testing.T, name string, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-" + name + "-", Labels: labels}}
	s.must(t, s.Create(t.Context(), ns))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			t.Log(s.Diagnose(ctx, ns.Name))
		}
		s.KeepLogsOf(t)
		s.must(t, s.Empty(ctx, soon, ns.Name))
		s.must(t, s.DeleteNamespaces(ctx, ns.Name))
	})
	return ns.Name
}

// namespaceWithoutWebhooks returns a namespace without the controller's webhooks: the node rejects what they would
// reject.
func (s *suite) namespaceWithoutWebhooks(t *testing.T, name string) string {
	t.Helper()
	return s.labelled(t, name, map[string]string{"gpu.nvidia.com/admission": "off"})
}

// createInTime creates the object, and tries again while no webhook answers in time: machines differ in speed.
func (s *suite) createInTime(ctx context.Context, o client.Object) (answer error) {
	what, tried := "an answer about "+o.GetName(), false
	err := kube.Until(ctx, soon, what, func(ctx context.Context) (bool, string, error) {
		answer = s.Create(ctx, o)
		if tried && apierrors.IsAlreadyExists(answer) { // the answer came too late
			answer = nil
		}
		tried = true
		if answer == nil || kube.Refuses(answer) {
			return true, "", nil
		}
		return false, "", answer
	})
	if err != nil {
		return err
	}
	return answer
}

func (s *suite) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// claimSpec requests one GPU of the driver's class.
func claimSpec(configs ...resourceapi.DeviceClaimConfiguration) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver}}},
		Config: configs,
	}}
}

// template creates a ResourceClaimTemplate for one GPU and returns its name.
func (s *suite) template(t *testing.T, namespace, name string, configs ...resourceapi.DeviceClaimConfiguration) string {
	t.Helper()
	s.must(t, s.ApplyTyped(t.Context(), &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(configs...)},
	}))
	return name
}

// podOption changes a pod before it is created.
type podOption func(*corev1.PodSpec)

func onNode(node string) podOption {
	return func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

func withArgs(args ...string) podOption {
	return func(p *corev1.PodSpec) { p.Containers[0].Args = args }
}

// withTemplate gives the container a claim made from a template.
func withTemplate(name string) podOption {
	return withClaimSource(corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &name})
}

// withClaim gives the container an existing claim.
func withClaim(name string) podOption {
	return withClaimSource(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name})
}

func withClaimSource(claim corev1.PodResourceClaim) podOption {
	return func(p *corev1.PodSpec) {
		p.ResourceClaims = []corev1.PodResourceClaim{claim}
		p.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: claim.Name}}
	}
}

// withMknod lets the container create device nodes, so that only the device cgroup prevents access to a GPU.
func withMknod(p *corev1.PodSpec) {
	p.Containers[0].SecurityContext =
		&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"MKNOD"}}}
}

// withHostDirs mounts directories of the node at the same paths.
func withHostDirs(dirs ...string) podOption {
	return func(p *corev1.PodSpec) {
		for i, dir := range dirs {
			name := fmt.Sprintf("host-%d", i)
			p.Volumes = append(p.Volumes, corev1.Volume{Name: name,
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
			p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name,
				MountPath: dir})
		}
	}
}

// pod creates a pod that prints the GPUs it sees and then keeps running, unless an option changes that.
func (s *suite) pod(t *testing.T, namespace, name string, options ...podOption) client.ObjectKey {
	t.Helper()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: s.image, Args: []string{"show", "--stay"}}},
		},
	}
	for _, option := range options {
		option(&pod.Spec)
	}
	s.must(t, s.ApplyTyped(t.Context(), pod))
	return client.ObjectKeyFromObject(pod)
}

func succeeded(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded }

// running waits until the pod is running.
func (s *suite) running(t *testing.T, pod client.ObjectKey) *corev1.Pod {
	t.Helper()
	got, err := s.WaitPod(t.Context(), soon, pod, "running",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	s.must(t, err)
	return got
}

// run runs a program in a pod and returns its output.
func (s *suite) run(t *testing.T, pod client.ObjectKey, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	output, err := s.Exec(ctx, pod, command...)
	s.must(t, err)
	return output
}
