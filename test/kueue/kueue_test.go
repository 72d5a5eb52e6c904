// SPDX-License-Identifier: Apache-2.0

// Package kueue runs Kueue's controllers with the slices and classes of this driver, beside a real API server,
// scheduler and controller manager. Nodes have no kubelet: the test ends pods itself. `make test-kueue` runs it.
package kueue

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadjob "sigs.k8s.io/kueue/pkg/controller/jobs/job"
	"sigs.k8s.io/yaml"
)

// localQueue is the queue of docs/operate/teams.md.
const localQueue = "gpus"

// TestDRA: jobs that ask for devices of this driver wait in a queue until the quota has room for them.
func TestDRA(t *testing.T) {
	blocks := blocksOfPage(t)
	c := start(t, blocks[0])
	c.apply(t, "", blocks[1])

	// The shapes of Kueue's own end-to-end tests.
	for _, row := range []struct {
		name, asks string // two jobs ask for this, and only one fits into the quota
		resource   string // the name of the quota
		devices    int
		kind       string // in the names of devices: of partitions the profile
	}{
		{"whole GPUs", claims("gpu.nvidia.com", 3), "gpu", 3, ""},
		{"partitions, which consume counters", claims("mig-1g.10gb.nvidia.com", 4), "gpu-1g.10gb", 4, "mig-1g10gb-"},
		{"whole GPUs as an extended resource", "nvidia.com/gpu: 3", "gpu", 3, ""},
		{"partitions as an extended resource", "nvidia.com/mig-1g.10gb: 4", "gpu-1g.10gb", 4, "mig-1g10gb-"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ns := c.namespace(t, blocks[2])
			other := func(device string) bool {
				_, partition, _ := strings.Cut(device, "-mig-")
				return !strings.HasPrefix("mig-"+partition, row.kind) || (partition == "") != (row.kind == "")
			}
			first, second := c.job(t, ns, "first", row.asks), c.job(t, ns, "second", row.asks)
			running, waiting := c.admitted(t, first, second)
			if got := c.usage(t, running, row.resource); got != int64(row.devices) {
				t.Errorf("got %d of the quota used, want %d", got, row.devices)
			}
			c.waits(t, waiting, "insufficient unused quota for "+row.resource)
			if got := c.scheduled(t, running); len(got) != row.devices || slices.ContainsFunc(got, other) {
				t.Errorf("the job that is admitted got the devices %v, want %d of the kind %q", got, row.devices,
					row.kind)
			}
			if job := c.get(t, waiting); !*job.Spec.Suspend {
				t.Error("the job over the quota is not suspended")
			}
			c.end(t, running)
			if got := c.scheduled(t, waiting); len(got) != row.devices {
				t.Errorf("the job that has waited got the devices %v, want %d", got, row.devices)
			}
			c.end(t, waiting)
		})
	}

	t.Run("the job of the page", func(t *testing.T) {
		ns := c.namespace(t, "")
		c.apply(t, ns, blocks[2])
		job := client.ObjectKey{Namespace: ns, Name: "train"}
		if got := c.scheduled(t, job); len(got) != 2 {
			t.Errorf("got the devices %v, want 2", got)
		}
		c.end(t, job)
	})

	t.Run("claims and extended resources use one quota", func(t *testing.T) {
		ns := c.namespace(t, blocks[2])
		first, second := c.job(t, ns, "first", claims("gpu.nvidia.com", 3)), c.job(t, ns, "second", "nvidia.com/gpu: 2")
		running, waiting := c.admitted(t, first, second)
		c.waits(t, waiting, "insufficient unused quota for gpu")
		c.end(t, running)
		c.end(t, waiting)
	})

	// What Kueue does not count: the job is never admitted.
	for _, row := range []struct{ name, asks, want string }{
		{"alternatives", "claim: {requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: " +
			"gpu.nvidia.com}]}]}", "FirstAvailable device selection is not supported"},
		{"all devices", "claim: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: " +
			"All}}]}", "AllocationMode 'All' is not supported"},
		{"a class without a mapping", claims("mig-2g.20gb.nvidia.com", 1),
			"DeviceClass mig-2g.20gb.nvidia.com is not mapped"},
		{"a claim that is not from a template", "named " + claims("gpu.nvidia.com", 1),
			"does not support use of resource claims"},
		{"an extended resource without a request", "only limit nvidia.com/gpu: 1",
			"resource nvidia.com/gpu unavailable"},
	} {
		t.Run(row.name+" is refused", func(t *testing.T) {
			job := c.job(t, c.namespace(t, blocks[2]), "first", row.asks)
			c.waits(t, job, row.want)
			c.delete(t, job)
		})
	}

	// What does not change the count.
	for _, row := range []struct{ name, asks string }{
		{"a share counts as a whole device", one("gpu.nvidia.com", "capacity: {requests: {memory: 5Gi}}")},
		{"a claim for GPUs that are kept counts as others",
			one("gpu.nvidia.com", "tolerations: [{key: gpu.nvidia.com/reserved, value: vision}]")},
		{"a claim with a selector counts as others",
			one("gpu.nvidia.com", "selectors: [{cel: {expression: \"device.driver != ''\"}}]")},
		{"a claim with a constraint counts as others",
			"claim: {constraints: [{matchAttribute: gpu.nvidia.com/productName}], " + onlyRequest},
		{"a claim with a configuration counts as others", "claim: {config: [{opaque: {driver: gpu.nvidia.com, " +
			"parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}}}], " + onlyRequest},
	} {
		t.Run(row.name, func(t *testing.T) {
			job := c.job(t, c.namespace(t, blocks[2]), "first", row.asks)
			if got := c.usage(t, job, "gpu"); got != 1 {
				t.Errorf("got %d of the quota used, want 1", got)
			}
			c.end(t, job)
		})
	}

	// Kueue admits both jobs. The quota of the namespace has room for one claim. So the other job holds its part of the
	// queue's quota while it waits for its claim.
	t.Run("a ResourceQuota and the quota of the queue", func(t *testing.T) {
		ns := c.namespace(t, blocks[2])
		c.create(t, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "gpus"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
				"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": resource.MustParse("2")}}})
		c.until(t, "the status of the quota", func(ctx context.Context) (bool, string, error) {
			var quota corev1.ResourceQuota
			err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "gpus"}, &quota)
			return len(quota.Status.Hard) > 0, fmt.Sprint(quota.Status), err
		})
		two := claims("gpu.nvidia.com", 2)
		first, second := c.job(t, ns, "first", two), c.job(t, ns, "second", two)
		for _, job := range []client.ObjectKey{first, second} {
			if got := c.usage(t, job, "gpu"); got != 2 {
				t.Errorf("job %s: got %d of the quota used, want 2", job.Name, got)
			}
		}
		var running, waiting client.ObjectKey
		c.until(t, "a pod without a claim, because of the quota", func(ctx context.Context) (bool, string, error) {
			var events corev1.EventList
			err := c.List(ctx, &events, client.InNamespace(ns))
			for _, e := range events.Items {
				if strings.Contains(e.Message, "exceeded quota: gpus") && e.InvolvedObject.Kind == "Pod" {
					running, waiting = first, second
					if strings.HasPrefix(e.InvolvedObject.Name, "first-") {
						running, waiting = second, first
					}
					return true, "", err
				}
			}
			return false, fmt.Sprintf("%d events", len(events.Items)), err
		})
		if got := c.get(t, waiting); *got.Spec.Suspend {
			t.Error("the job over the quota of the namespace is suspended, want that Kueue has admitted it")
		}
		c.end(t, running)
		c.end(t, waiting)
	})
}

// TestSources: what the configuration of docs/operate/teams.md charges that has sources.
func TestSources(t *testing.T) {
	blocks := blocksOfPage(t)
	c := start(t, blocks[3])
	c.apply(t, "", strings.NewReplacer("[gpu, gpu-1g.10gb]", "[gpu-memory, gpu-partitions]",
		"{name: gpu, nominalQuota: 4}", "{name: gpu-memory, nominalQuota: 400Gi}",
		"{name: gpu-1g.10gb, nominalQuota: 7}", "{name: gpu-partitions, nominalQuota: 400Gi}").Replace(blocks[1]))
	for _, row := range []struct{ name, asks, resource, want string }{
		{"a share", one("gpu.nvidia.com", "capacity: {requests: {memory: 5Gi}}"), "gpu-memory", "5Gi"},
		{"a share with cores", one("gpu.nvidia.com", "capacity: {requests: {memory: 5Gi, cores: 50}}"), "gpu-memory",
			"5Gi"},
		{"a share with the qualified name", one("gpu.nvidia.com", "capacity: {requests: {gpu.nvidia.com/memory: 5Gi}}"),
			"gpu-memory", "81559Mi"},
		{"a whole GPU", claims("gpu.nvidia.com", 1), "gpu-memory", "81559Mi"},
		{"only cores", one("gpu.nvidia.com", "capacity: {requests: {cores: 20}}"), "gpu-memory", "81559Mi"},
		{"a partition", claims("mig-1g.10gb.nvidia.com", 1), "gpu-memory", "9984Mi"},
		{"two partitions", claims("mig-2g.20gb.nvidia.com", 2), "gpu-memory", "40192Mi"},
		{"a partition by the counter", one("mig.nvidia.com", "selectors: [{cel: {expression: "+
			"\"device.attributes['gpu.nvidia.com'].profile == '1g.10gb'\"}}]"), "gpu-partitions", "9984Mi"},
	} {
		t.Run(row.name, func(t *testing.T) {
			job := c.job(t, c.namespace(t, blocks[2]), "first", row.asks)
			if got, want := c.usage(t, job, row.resource), resource.MustParse(row.want); got != want.Value() {
				t.Errorf("got %d of the quota used, want %d", got, want.Value())
			}
			c.delete(t, job)
		})
	}
	for _, row := range []struct{ name, asks, want string }{
		{"an extended resource of a class with a source", "nvidia.com/gpu: 1", "gpu.nvidia.com"},
		{"a selector on what Kueue does not know", one("gpu.nvidia.com", "selectors: [{cel: {expression: "+
			"device.allowMultipleAllocations}}]"), "0 device(s) match"},
	} {
		t.Run(row.name+" is refused", func(t *testing.T) {
			job := c.job(t, c.namespace(t, blocks[2]), "first", row.asks)
			c.waits(t, job, row.want)
			c.delete(t, job)
		})
	}
}

// blocksOfPage returns the blocks of YAML about Kueue in docs/operate/teams.md: the configuration, the queue, a job and
// a configuration with sources.
func blocksOfPage(t *testing.T) []string {
	t.Helper()
	const section = "\n## Queues and quotas with Kueue\n"
	page, err := os.ReadFile("../../docs/operate/teams.md")
	must(t, err)
	_, about, _ := strings.Cut(string(page), section)
	blocks := yamlBlocks(about)
	if len(blocks) != 4 {
		t.Fatalf("got %d blocks of YAML in docs/operate/teams.md after %q, want 4", len(blocks), section)
	}
	return blocks
}

// one is what a job asks for: a device of a class, with more fields of the request.
func one(class, more string) string {
	return "claim: {requests: [{name: gpu, exactly: {deviceClassName: " + class + ", " + more + "}}]}"
}

// onlyRequest is the end of a claim for one GPU.
const onlyRequest = "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}"

// claims is what a job asks for: so many devices of a class, by a claim.
func claims(class string, count int) string {
	return fmt.Sprintf("claim: {requests: [{name: gpu, exactly: {deviceClassName: %s, count: %d}}]}", class, count)
}

// job creates a job in the queue, with one pod. It asks for devices by a claim of a template: "claim: DEVICES", by a
// claim of its own with "named" before that, by an extended resource as request and limit: "NAME: COUNT", or by one as
// limit with "only limit" before that.
func (c *cluster) job(t *testing.T, namespace, name, asks string) client.ObjectKey {
	t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{"kueue.x-k8s.io/queue-name": localQueue}}}
	pod := &job.Spec.Template.Spec
	pod.RestartPolicy = corev1.RestartPolicyNever
	pod.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	resources := &pod.Containers[0].Resources
	if before, devices, ok := strings.Cut(asks, "claim: "); ok {
		var spec resourceapi.ResourceClaimSpec
		must(t, yaml.UnmarshalStrict([]byte(devices), &spec.Devices))
		named := metav1.ObjectMeta{Namespace: namespace, Name: name}
		pod.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		if before == "" {
			c.create(t, &resourceapi.ResourceClaimTemplate{ObjectMeta: named,
				Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}})
			pod.ResourceClaims[0].ResourceClaimTemplateName = &name
		} else {
			c.create(t, &resourceapi.ResourceClaim{ObjectMeta: named, Spec: spec})
			pod.ResourceClaims[0].ResourceClaimName = &name
		}
		resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	} else {
		name, onlyLimit := strings.CutPrefix(asks, "only limit ")
		name, count, _ := strings.Cut(name, ": ")
		resources.Limits = corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(count)}
		if !onlyLimit {
			resources.Requests = resources.Limits
		}
	}
	c.create(t, job)
	return client.ObjectKeyFromObject(job)
}

func (c *cluster) get(t *testing.T, job client.ObjectKey) *batchv1.Job {
	t.Helper()
	var got batchv1.Job
	must(t, c.Get(t.Context(), job, &got))
	return &got
}

// workload returns Kueue's object of the job.
func (c *cluster) workload(ctx context.Context, key client.ObjectKey) (*kueue.Workload, error) {
	var job batchv1.Job
	if err := c.Get(ctx, key, &job); err != nil {
		return nil, err
	}
	var w kueue.Workload
	return &w, c.Get(ctx, client.ObjectKey{Namespace: key.Namespace,
		Name: workloadjob.GetWorkloadNameForJob(job.Name, job.UID)}, &w)
}

// admitted waits until Kueue has admitted one of the jobs, and returns it and the other.
func (c *cluster) admitted(t *testing.T, first, second client.ObjectKey) (running, waiting client.ObjectKey) {
	t.Helper()
	c.until(t, "a job to be admitted", func(ctx context.Context) (bool, string, error) {
		state := ""
		for _, pair := range [][2]client.ObjectKey{{first, second}, {second, first}} {
			running, waiting = pair[0], pair[1]
			w, err := c.workload(ctx, running)
			if client.IgnoreNotFound(err) != nil {
				return false, "", err
			}
			if meta.IsStatusConditionTrue(w.Status.Conditions, kueue.WorkloadAdmitted) {
				return true, "", nil
			}
			state += fmt.Sprintln(running.Name, w.Status.Conditions)
		}
		return false, state, nil
	})
	return running, waiting
}

// usage waits until Kueue has admitted the job, and returns what it uses of the quota.
func (c *cluster) usage(t *testing.T, job client.ObjectKey, name string) int64 {
	t.Helper()
	var used resource.Quantity
	c.until(t, "job "+job.Name+" to be admitted", func(ctx context.Context) (bool, string, error) {
		w, err := c.workload(ctx, job)
		if err != nil || w.Status.Admission == nil {
			return false, "it is not", client.IgnoreNotFound(err)
		}
		used = w.Status.Admission.PodSetAssignments[0].ResourceUsage[corev1.ResourceName(name)]
		return true, "", nil
	})
	return used.Value()
}

// waits waits until Kueue says why the job is not admitted.
func (c *cluster) waits(t *testing.T, job client.ObjectKey, why string) {
	t.Helper()
	c.until(t, "job "+job.Name+" to wait: "+why, func(ctx context.Context) (bool, string, error) {
		w, err := c.workload(ctx, job)
		if err != nil {
			return false, "", client.IgnoreNotFound(err)
		}
		condition := meta.FindStatusCondition(w.Status.Conditions, kueue.WorkloadQuotaReserved)
		if condition == nil {
			return false, "no condition", nil
		}
		if condition.Status == metav1.ConditionTrue {
			return false, "", fmt.Errorf("job %s is admitted", job.Name)
		}
		return strings.Contains(condition.Message, why), condition.Message, nil
	})
}

// pods returns the pods of the job.
func (c *cluster) pods(ctx context.Context, job client.ObjectKey) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name})
	return pods.Items, err
}

// scheduled waits until the pod of the job has a node, and returns the devices of its claim.
func (c *cluster) scheduled(t *testing.T, job client.ObjectKey) (devices []string) {
	t.Helper()
	c.until(t, "the pod of job "+job.Name+" to be scheduled", func(ctx context.Context) (bool, string, error) {
		pods, err := c.pods(ctx, job)
		if err != nil || len(pods) != 1 || pods[0].Spec.NodeName == "" {
			return false, fmt.Sprintf("%d pods; %v", len(pods), conditions(pods)), err
		}
		var claims resourceapi.ResourceClaimList
		if err := c.List(ctx, &claims, client.InNamespace(job.Namespace)); err != nil {
			return false, "", err
		}
		for _, claim := range claims.Items {
			if metav1.IsControlledBy(&claim, &pods[0]) && claim.Status.Allocation != nil {
				for _, r := range claim.Status.Allocation.Devices.Results {
					devices = append(devices, r.Device)
				}
			}
		}
		return true, "", nil
	})
	return devices
}

// conditions are those of the pods, for messages.
func conditions(pods []corev1.Pod) (all []string) {
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			all = append(all, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Message))
		}
	}
	return all
}

// end lets the pod of the job succeed once it has a node, as the kubelet would, and waits until the workload of the job
// has finished.
func (c *cluster) end(t *testing.T, job client.ObjectKey) {
	t.Helper()
	c.scheduled(t, job)
	pods, err := c.pods(t.Context(), job)
	must(t, err)
	for _, pod := range pods {
		before := client.MergeFrom(pod.DeepCopy()) // others change the pod at the same time
		pod.Status.Phase = corev1.PodSucceeded
		must(t, c.Status().Patch(t.Context(), &pod, before))
	}
	c.until(t, "job "+job.Name+" to end", func(ctx context.Context) (bool, string, error) {
		w, err := c.workload(ctx, job)
		if err != nil {
			return false, "", err
		}
		return meta.IsStatusConditionTrue(w.Status.Conditions, kueue.WorkloadFinished), fmt.Sprint(w.Status), nil
	})
}

// delete deletes the job.
func (c *cluster) delete(t *testing.T, job client.ObjectKey) {
	t.Helper()
	must(t, c.Delete(t.Context(), c.get(t, job), client.PropagationPolicy(metav1.DeletePropagationBackground)))
}
