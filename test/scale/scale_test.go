// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/apirequests"
	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

// Of the small form of make scale.
const (
	smallNodes = 200
	smallPods  = 500
	// smallPartitioned of the nodes have all partitions. The others have the same GPUs whole.
	smallPartitioned = 20
)

// maxSliceBytes bounds the stored size of a slice. etcd takes 1.5 MiB; what a scheduler reads is the sum.
const maxSliceBytes = 80 << 10

// TestSmall publishes 200 nodes and places 500 pods of all kinds of claims, on a control plane of its own. It judges
// what does not depend on the speed of this machine.
func TestSmall(t *testing.T) {
	l := openLab(t)
	ctx := t.Context()
	before := l.counted(t)
	config := h100(smallNodes, gpu.PartitionsNone)
	for i := range smallPartitioned {
		config.Nodes[i].Use = gpu.SharingMode{}
	}
	f, err := fleet.Start(ctx, l.plane.REST(), config)
	if err != nil {
		t.Fatal(err)
	}
	published := l.counted(t)
	did, size := published.Since(before), f.Size()
	if got := did.Writes("resourceslices"); got != size.Slices {
		t.Errorf("%d writes publish %d slices: %v", got, size.Slices, did)
	}
	if want := 7*smallPartitioned + 2*(smallNodes-smallPartitioned); size.Slices != want {
		t.Errorf("got %d slices, want %d", size.Slices, want)
	}
	w, err := l.read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mean, largest := sizes(w)
	t.Logf("slices have %d bytes at most, %d in the mean", largest, mean)
	if largest > maxSliceBytes {
		t.Errorf("the largest slice has %d bytes, want %d at most", largest, maxSliceBytes)
	}

	kinds := append([]kind{none}, documented...)
	slices.Reverse(kinds) // partitions come first: whole GPUs may be taken from the nodes that have them
	kindOf := map[string]kind{}
	claims, placed := 0, 0
	for i, k := range kinds {
		count := smallPods*(i+1)/len(kinds) - smallPods*i/len(kinds)
		namespace, took, err := l.place(ctx, k, count, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d pods, %s: %.0f/s", count, k.name, float64(count)/took.Seconds())
		kindOf[namespace] = k
		placed += count
		if k.count > 0 {
			claims += count
		}
	}
	if placed != smallPods {
		t.Errorf("%d pods are placed, want %d", placed, smallPods)
	}
	if w, err = l.read(ctx); err != nil {
		t.Fatal(err)
	}
	for _, problem := range judge(w, kindOf) {
		t.Error(problem)
	}
	did = l.counted(t).Since(published)
	t.Logf("requests: %v", did)
	// A claim is created, gets its finalizer, and is allocated for its pod, in that order.
	if got := did.Writes("resourceclaims", "resourceclaims/status"); got != 3*claims {
		t.Errorf("%d writes of %d claims, want three for each: %v", got, claims, did)
	}
	if got := did.Writes("resourceslices"); got != 0 {
		t.Errorf("%d writes of slices while pods are placed: %v", got, did)
	}
}

// openLab starts a lab with the programs that are beside helm.
func openLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv("SCALE_SMALL") == "" {
		t.Skip("make test-scale runs it")
	}
	helm := os.Getenv("HELM")
	real, err := filepath.EvalSymlinks(helm)
	if err == nil {
		_, err = os.Stat(filepath.Join(filepath.Dir(real), "kube-apiserver"))
	}
	if err != nil {
		t.Skip("$HELM is none with Kubernetes beside it, which make test-unit builds: ", err)
	}
	classes, err := exec.CommandContext(t.Context(), helm, "template", "../../deployments/helm/gpu-dra-driver",
		"--show-only", "templates/deviceclass.yaml").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "classes.yaml")
	if err := os.WriteFile(file, classes, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := open(t.Context(), programs{kubernetes: filepath.Dir(real), classes: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *lab) counted(t *testing.T) apirequests.Counts {
	t.Helper()
	all, err := apirequests.Read(t.Context(), l.client.Discovery().RESTClient())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// judge says what is wrong with the pods, whose kinds are known by namespace, and with their claims.
func judge(w check.World, kinds map[string]kind) (problems []error) {
	for _, v := range new(check.Checker).Look(w) {
		problems = append(problems, errors.New(v.What))
	}
	claims := map[types.UID][]resourceapi.ResourceClaim{} // by pod
	for _, c := range w.Claims {
		for _, user := range c.Status.ReservedFor {
			claims[user.UID] = append(claims[user.UID], c)
		}
	}
	for _, p := range w.Pods {
		if problem := judgePod(p, kinds[p.Namespace], claims[p.UID]); problem != "" {
			problems = append(problems, fmt.Errorf("pod %s/%s, %s: %s", p.Namespace, p.Name, kinds[p.Namespace].name,
				problem))
		}
	}
	return problems
}

// judgePod says what is wrong with a pod and the claims that are reserved for it; empty: nothing.
func judgePod(p corev1.Pod, k kind, claims []resourceapi.ResourceClaim) string {
	if p.Spec.NodeName == "" {
		return "it is not bound"
	}
	if k.count == 0 {
		if len(claims) > 0 {
			return "it has a claim"
		}
		return ""
	}
	if len(claims) != 1 || len(claims[0].Status.ReservedFor) != 1 || claims[0].Status.Allocation == nil {
		return fmt.Sprintf("%d claims are its own, want 1 that is allocated", len(claims))
	}
	results := claims[0].Status.Allocation.Devices.Results
	if len(results) != k.count {
		return fmt.Sprintf("it has %d devices, want %d", len(results), k.count)
	}
	for _, r := range results {
		if r.Pool != p.Spec.NodeName {
			return fmt.Sprintf("it is on node %s, its device %s is of pool %s", p.Spec.NodeName, r.Device, r.Pool)
		}
	}
	return ""
}

// TestJudge plants what TestSmall must not overlook.
func TestJudge(t *testing.T) {
	two := kind{name: "two", count: 2}
	for _, row := range []struct {
		name   string
		change func(*corev1.Pod, *resourceapi.ResourceClaim)
		want   string
	}{
		{"nothing is wrong", func(*corev1.Pod, *resourceapi.ResourceClaim) {}, "[]"},
		{"a pod waits", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.NodeName = "" },
			"[pod batch-1/a, two: it is not bound]"},
		{"a claim is shared", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: "b"})
		}, "[pod batch-1/a, two: 1 claims are its own, want 1 that is allocated]"},
		{"a device is missing", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results = c.Status.Allocation.Devices.Results[1:]
		}, "[pod batch-1/a, two: it has 1 devices, want 2]"},
		{"a device is elsewhere", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[1].Pool = "node-2"
		}, "[pod batch-1/a, two: it is on node node-1, its device gpu-1 is of pool node-2]"},
		{"a device is given twice", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[1].Device = "gpu-0"
		}, "[allocated to 2 claims: node-1/gpu-0 (claim, claim)]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "batch-1", Name: "a", UID: "a"},
				Spec: corev1.PodSpec{NodeName: "node-1"}}
			result := func(device string) resourceapi.DeviceRequestAllocationResult {
				return resourceapi.DeviceRequestAllocationResult{Driver: fleet.Driver, Pool: "node-1", Device: device}
			}
			c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim"},
				Status: resourceapi.ResourceClaimStatus{
					ReservedFor: []resourceapi.ResourceClaimConsumerReference{{UID: "a"}},
					Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
						Results: []resourceapi.DeviceRequestAllocationResult{result("gpu-0"), result("gpu-1")}}}}}
			row.change(&p, &c)
			slice := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: fleet.Driver,
				Pool:    resourceapi.ResourcePool{Name: "node-1"},
				Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}}}}
			got := judge(check.World{Pods: []corev1.Pod{p}, Claims: []resourceapi.ResourceClaim{c},
				Slices: []resourceapi.ResourceSlice{slice}}, map[string]kind{"batch-1": two})
			if fmt.Sprint(got) != row.want {
				t.Errorf("got %v, want %s", got, row.want)
			}
		})
	}
}
