// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// warn adds a warning that is so many minutes younger than the claims' devices.
func warn(s *cluster.Snapshot, kind, name string, uid types.UID, minutes int, reason, message string) {
	s.Warnings = append(s.Warnings, &corev1.Event{Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, UID: uid},
		EventTime:      metav1.NewMicroTime(since.Add(time.Duration(minutes) * time.Minute))})
}

// fail adds a false condition of the claim's device.
func fail(c *resourceapi.ResourceClaim, kind, message string) {
	r := c.Status.Allocation.Devices.Results[0]
	condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Message: message}
	c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool,
		Device: r.Device, Conditions: []metav1.Condition{condition}})
}

// A pod that has its node is explained by what its node and its claims say.
func TestPodOnANode(t *testing.T) {
	const waits = "container main waits: ContainerCreating\n"
	for _, row := range []struct {
		name    string
		devices string
		change  func(*cluster.Snapshot, *corev1.Pod, *resourceapi.ResourceClaim)
		outcome Outcome
		want    string
	}{
		{"it starts", gpus(share), func(*cluster.Snapshot, *corev1.Pod, *resourceapi.ResourceClaim) {},
			Placed, "pod p is on node a; " + waits},
		{"two shares in a container", gpus(share + ", count: 2"),
			func(s *cluster.Snapshot, p *corev1.Pod, c *resourceapi.ResourceClaim) {
				fail(c, "Ready", "devices …")
				warn(s, "ResourceClaim", "c", "c", 1, "PrepareFailed", "node a: devices …")
			}, Waits, "pod p is on node a, which refuses it: devices gpu-3b-00-0, gpu-af-00-0: a process has " +
				"one set of " +
				"limits and talks to one MPS daemon; " + waits + "smallest change: in Pod ns/p: give each " +
				"container one "},
		{"the device is in use", gpus(share), func(_ *cluster.Snapshot, _ *corev1.Pod, c *resourceapi.ResourceClaim) {
			fail(c, "Ready", "request gpu: device gpu-3b-00-0 is held by claim x/y (UID z): device in use")
		}, Waits, "pod p is on node a; claim c: device gpu-3b-00-0: request gpu: device gpu-3b-00-0 is held by " +
			"claim x/y " +
			"(UID z): device in use; " + waits},
		{"the GPU has no shares by now", gpus(share),
			func(s *cluster.Snapshot, _ *corev1.Pod, _ *resourceapi.ResourceClaim) {
				s.Slices = fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive}).Slices
			}, Waits, "pod p is on node a, which refuses it: device gpu-3b-00-0 was allocated as a share, and is " +
				"exclusive by now; delete the pod"},
		{"it waits for a daemon", gpus(share), func(s *cluster.Snapshot, _ *corev1.Pod, _ *resourceapi.ResourceClaim) {
			warn(s, "ResourceClaim", "c", "c", 1, "PrepareFailed", "node a: something that is over")
			warn(s, "ResourceClaim", "c", "c", 3, "ClaimWaiting", "node a waits: MPS daemon gpu-3b-00-0: starting")
			warn(s, "ResourceClaim", "c", "former", 4, "PrepareFailed", "node a: of a claim of the same name")
		}, Waits, "pod p is on node a; claim c: its newest warning: ClaimWaiting: node a waits: MPS daemon " +
			"gpu-3b-00-0: " +
			"starting; " + waits},
		{"the plugin is gone", gpus(share), func(s *cluster.Snapshot, _ *corev1.Pod, _ *resourceapi.ResourceClaim) {
			s.Slices = nil
			warn(s, "Pod", "p", "pod", 1, "FailedPrepareDynamicResources", "DRA driver gpu.nvidia.com is not "+
				"registered")
		}, Waits, "pod p is on node a; claim c: driver gpu.nvidia.com publishes no devices of pool a: its " +
			"plugin does not " +
			"run there; " + waits},
		{"only the kubelet says something", gpus(share),
			func(s *cluster.Snapshot, _ *corev1.Pod, _ *resourceapi.ResourceClaim) {
				warn(s, "Pod", "p", "pod", 1, "FailedPrepareDynamicResources", "no answer")
			}, Waits, "pod p is on node a; its newest warning: FailedPrepareDynamicResources: no answer; " + waits},
		{"it ended, and is not prepared again", gpus(share),
			func(_ *cluster.Snapshot, p *corev1.Pod, c *resourceapi.ResourceClaim) {
				p.Status.Phase = corev1.PodRunning
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown"}}
				fail(c, "Ready", "a partition is in the way")
			}, Waits, "pod p is on node a; claim c: device gpu-3b-00-0: a partition is in the way; container " +
				"main has ended " +
				"with exit code 255: Unknown\n"},
		{"it does not end", gpus(share), func(s *cluster.Snapshot, p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.DeletionTimestamp = &since
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodRunning, nil
			warn(s, "Node", "a", "node", 2, "ReleaseFailed", "claim ns/c is not released: record is unreadable")
			warn(s, "Node", "a", "node", 3, "ReleaseFailed", "claim ns/c2 is not released: another one")
			warn(s, "Node", "b", "node", 3, "ReleaseFailed", "claim ns/c is not released: another node")
		}, Ended, "pod p is being deleted on node a; claim c: its newest warning: ReleaseFailed: claim ns/c is not " +
			"released: record is unreadable\n"},
		{"it runs on a sick GPU", gpus(share), func(s *cluster.Snapshot, p *corev1.Pod, c *resourceapi.ResourceClaim) {
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodRunning, nil
			fail(c, "Healthy", "Needs a reset")
			warn(s, "ResourceClaim", "c", "c", 3, "ClaimWaiting", "node a waits: for what is over")
		}, Placed, "pod p is on node a; claim c: device gpu-3b-00-0: Needs a reset\n"},
		{"it runs", gpus(share), func(s *cluster.Snapshot, p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Status.Phase, p.Status.ContainerStatuses, s.Slices = corev1.PodRunning, nil, nil
			warn(s, "Pod", "p", "pod", 1, "FailedPrepareDynamicResources", "what is over")
		}, Placed, "pod p is on node a\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
			c := claim(t, "c", row.devices)
			mustHold(t, s, c)
			p := pod("p", c)
			p.CreationTimestamp = since
			p.Spec.NodeName, p.Status.Phase = "a", corev1.PodPending
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
			s.Pods = []*corev1.Pod{p}
			row.change(s, p, c)
			r, err := Pod(t.Context(), s, "ns", "p")
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, r); !strings.HasPrefix(got, row.want) || r.Outcome != row.outcome {
				t.Errorf("got %s:\n%swant %s:\n%s", r.Outcome, got, row.outcome, row.want)
			}
			if !r.Search.Complete {
				t.Error("there is nothing to search, and the search is not complete")
			}
		})
	}
}
