//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/convert"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testConversion creates a Deployment for each older system, as its users wrote it. The containers are on one node with
// four GPUs of 46068 MiB. All of them fit on one, also while the scheduler counts a share twice: it does so from the
// moment when it sees the allocation that it has written until it has finished with the pod.
func (s *suite) testConversion(t *testing.T) {
	s.needs(t, "DRAConsumableCapacity", "Kubernetes 1.36")
	node := s.node(t, "l40s-x4")
	ns := s.labelled(t, "converted", map[string]string{"gpu.nvidia.com/convert": "on"})
	deployments := []struct {
		family, annotations, limits string
		replicas                    int
		cores, memory               int // percent, MiB: what each container may use
	}{
		{"kai", `{gpu-fraction: "0.25"}`, `{}`, 2, 100, 11517},
		{"gpu-manager", `{tencent.com/vcuda-core-limit: "50"}`,
			`{tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20}`, 1, 50, 5120},
		{"gpushare", `{}`, `{aliyun.com/gpu-mem: 3}`, 1, 100, 3072},
		{"hami", `{nvidia.com/use-gputype: "L40S"}`,
			`{nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 20}`, 1, 20, 3000},
		{"qgpu", `{}`, `{tke.cloud.tencent.com/qgpu-core: 10, tke.cloud.tencent.com/qgpu-memory: 4}`, 1, 10, 4096},
		{"tflops", `{}`, `{resource.nvidia.com/tflops: "36"}`, 1, 10, 4606}, // of 362
		{"volcano", `{}`, `{volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 2000, volcano.sh/vgpu-cores: 5}`, 1, 5,
			2000},
	}
	if len(deployments) != len(convert.Names()) {
		t.Errorf("there are %d families, and %d are tested", len(convert.Names()), len(deployments))
	}
	for _, d := range deployments {
		s.must(t, s.Apply(t.Context(), s.parsed(t, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s, namespace: %[2]s},
spec: {replicas: %[3]d, selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}, annotations: %[4]s},
spec: {nodeSelector: {kubernetes.io/hostname: %[5]s}, terminationGracePeriodSeconds: 0,
containers: [{name: main, image: %[6]q, args: [probe, --stay], resources: {limits: %[7]s}}]}}}}`, d.family, ns, d.replicas, d.annotations,
			node, s.image, d.limits))))
	}
	devices := map[string][]string{} // by family
	for _, d := range deployments {
		for _, running := range s.allRunning(t, ns, d.family, d.replicas) {
			key := client.ObjectKeyFromObject(running)
			s.waitLog(t, key, fmt.Sprintf("may use %d%% of the multiprocessors\n%d MiB: granted\n%d MiB: "+
				"CUDA_ERROR_OUT_OF_MEMORY\n1 MiB without the MPS variables: CUDA_ERROR_DEVICE_UNAVAILABLE\n", d.cores,
				d.memory, d.memory+1))
			devices[d.family] = append(devices[d.family], s.allocated(t, running).Name)
			if got := running.Labels[convert.FamilyLabel]; got != d.family {
				t.Errorf("pod %s: got family %q, want %s", key.Name, got, d.family)
			}
			s.waitEvent(t, key, "Converted", "from "+d.family)
		}
	}
	if kai := devices["kai"]; len(kai) != 2 || kai[0] != kai[1] {
		t.Errorf("the two quarters are on %q, want them on one GPU", kai)
	}

	t.Run("a server of a language model has its volume at /dev/shm",
		func(t *testing.T) { s.testConversionOfServer(t, ns, node) })
	t.Run("a request in TFLOPS gets a partition where no share is free", s.testConversionToPartition)

	// A pod by itself can be applied again, and a dry run creates nothing.
	pod := s.parsed(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: alone, namespace: %s}, spec: {terminationGracePeriodSeconds: 0,
containers: [{name: main, image: %q, args: [sleep], resources: {limits: {tencent.com/vcuda-core: 7, tencent.com/vcuda-memory: 7}}}]}}`, ns,
		s.image))
	before := s.templatesIn(t, ns)
	s.must(t, s.Create(t.Context(), pod.DeepCopy(), client.DryRunAll))
	if after := s.templatesIn(t, ns); after != before {
		t.Errorf("after a dry run there are %d templates, before it %d", after, before)
	}
	for range 2 {
		s.must(t, s.Apply(t.Context(), pod))
	}
	s.running(t, client.ObjectKey{Namespace: ns, Name: "alone"})

	// Of many pods at once each is converted, and gets its claim. The API server creates a pod without the webhook if
	// that takes longer than its timeout, and for no other reason: such a pod is created again.
	const many, atOnce = 500, 50
	burst := s.labelled(t, "burst", map[string]string{"gpu.nvidia.com/convert": "on"})
	var created errgroup.Group
	created.SetLimit(atOnce)
	for i := range many {
		created.Go(func() error {
			for {
				p := s.parsed(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {generateName: pod-, namespace: %s},
spec: {nodeSelector: {no: node},
containers: [{name: main, image: none, resources: {limits: {aliyun.com/gpu-mem: %d}}}]}}`,
					burst, 1+i%5))
				begin := time.Now()
				err := s.Create(t.Context(), p)
				if err != nil || p.GetLabels()[convert.FamilyLabel] != "" {
					return err
				}
				if took := time.Since(begin); took < answerTime {
					return fmt.Errorf("pod %s was not converted, and its creation took only %s", p.GetName(), took)
				}
				t.Logf("pod %s was not converted, because the webhook took too long", p.GetName())
				if err := s.Delete(t.Context(), p); err != nil {
					return err
				}
			}
		})
	}
	s.must(t, created.Wait())
	s.must(t, kube.Until(t.Context(), soon, "the claims of all pods", func(ctx context.Context) (bool, string,
		error) {
		var pods corev1.PodList
		err := s.List(ctx, &pods, client.InNamespace(burst), client.MatchingLabels{convert.FamilyLabel: "gpushare"})
		claims := 0
		for _, p := range pods.Items {
			claims += len(p.Status.ResourceClaimStatuses)
		}
		return claims == many, fmt.Sprintf("%d converted, %d claims", len(pods.Items), claims), err
	}))

	// A mistake is refused with its path.
	wrong := pod.DeepCopy()
	wrong.SetName("wrong")
	s.must(t, unstructured.SetNestedSlice(wrong.Object, []any{map[string]any{"name": "main", "image": s.image,
		"resources": map[string]any{"limits": map[string]any{"tencent.com/vcuda-core": "150"}}}}, "spec", "containers"))
	if err := s.Create(t.Context(), wrong); err == nil ||
		!strings.Contains(err.Error(), "spec.containers[0].resources.limits[tencent.com/vcuda-core]") {
		t.Errorf("150 vcuda-core: got error %v, want a refusal with the path", err)
	}
}

// answerTime is how long the webhook has to answer: controller.admission.timeoutSeconds, as in demo/values.yaml, less a
// tenth.
const answerTime = 9 * time.Second

// testConversionOfServer creates a pod as those of vLLM and the like: with a volume at /dev/shm, and an enforced share.
func (s *suite) testConversionOfServer(t *testing.T, ns, node string) {
	s.must(t, s.Apply(t.Context(), s.parsed(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: vllm, namespace: %s},
spec: {nodeSelector: {kubernetes.io/hostname: %s}, terminationGracePeriodSeconds: 0,
volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}, {name: models, emptyDir: {}}],
containers: [{name: vllm, image: %q, args: [probe, --stay], resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 2000}},
env: [{name: CUDA_DISABLE_CONTROL, value: "true"}],
volumeMounts: [{name: models, mountPath: /models}, {name: shm, mountPath: /dev/shm}]}]}}`, ns, node, s.image))))
	key := client.ObjectKey{Namespace: ns, Name: "vllm"}
	claim := s.claimOf(t, s.running(t, key))
	s.waitLog(t, key, "may use 100% of the multiprocessors\n2000 MiB: granted\n2001 MiB: CUDA_ERROR_OUT_OF_MEMORY\n"+
		"1 MiB without the MPS variables: CUDA_ERROR_DEVICE_UNAVAILABLE\n")
	mounts := s.run(t, key, "gpu-demo", "cat", "/proc/mounts")
	if strings.Count(mounts, " /dev/shm ") != 1 || !strings.Contains(mounts, "mps /dev/shm tmpfs ") ||
		!strings.Contains(mounts, " /models ") {
		t.Errorf("got mounts\n%s\nwant the memory of the MPS daemon at /dev/shm, and the other volume", mounts)
	}
	s.waitEvent(t, key, "Converted", "its volume shm at /dev/shm is not mounted")
	s.waitEvent(t, key, "Converted", "the variable CUDA_DISABLE_CONTROL no longer lifts the limits")
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), "SharedMemoryReplaced", "container vllm")
}

// testConversionToPartition fills a node with eight H100: seven whole, and the last one by a partition, after which it
// has no shares. A seventh of an H100 has 119 of 989 TFLOP/s.
func (s *suite) testConversionToPartition(t *testing.T) {
	s.needs(t, "DRAPartitionableDevices")
	node := s.node(t, "dgx-h100")
	ns := s.labelled(t, "converted-mig", map[string]string{"gpu.nvidia.com/convert": "on"})
	full := s.claimTemplate(t, ns, "full", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
		{Name: "whole", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 7}},
		partition("partition", small, "")}})
	s.running(t, s.pod(t, ns, "full", onNode(node), withTemplate(full)))
	key := s.pod(t, ns, "tflops", onNode(node), func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{"resource.nvidia.com/tflops": resource.MustParse("50")}
	})
	device := s.allocated(t, s.running(t, key))
	if got := stringAttribute(device, "profile"); got != small {
		t.Errorf("got %s with profile %q, want a partition %s", device.Name, got, small)
	}
}

func (s *suite) parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	var object unstructured.Unstructured
	s.must(t, yaml.Unmarshal([]byte(text), &object.Object))
	return &object
}

func (s *suite) templatesIn(t *testing.T, namespace string) int {
	t.Helper()
	var list resourceapi.ResourceClaimTemplateList
	s.must(t, s.List(t.Context(), &list, client.InNamespace(namespace)))
	return len(list.Items)
}

// allRunning waits until so many pods with the label app exist and run.
func (s *suite) allRunning(t *testing.T, namespace, app string, want int) (running []*corev1.Pod) {
	t.Helper()
	var pods corev1.PodList
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("%d pods of %s", want, app),
		func(ctx context.Context) (bool, string, error) {
			err := s.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app": app})
			return len(pods.Items) == want, fmt.Sprint(len(pods.Items)), err
		}))
	for i := range pods.Items {
		running = append(running, s.running(t, client.ObjectKeyFromObject(&pods.Items[i])))
	}
	return running
}
