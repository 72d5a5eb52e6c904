// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// The victims are those with which the least work is lost: GPUs × time, and four hours of a GPU for each restart.
func TestVictimsByWhatIsLost(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	running := func(d time.Duration) corev1.ContainerStatus {
		return corev1.ContainerStatus{RestartCount: 1, State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: ago(d)}}}
	}
	waits := corev1.ContainerStatus{RestartCount: 1, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{}}, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{FinishedAt: ago(time.Minute)}}}
	type held struct {
		node, name, devices string
		minutes             int
		statuses            []corev1.ContainerStatus
	}
	four := []held{{"b", "b-0", gpus(""), 601, nil}, {"b", "b-1", gpus(""), 602, nil},
		{"b", "b-2", gpus(""), 603, nil}, {"b", "b-3", gpus(""), 604, nil}}
	young := slices.Clone(four)
	for i := range young {
		young[i].minutes = 2 + i
	}
	shares := func(minutes int) (all []held) {
		for i := range 4 { // two on each GPU
			all = append(all, held{"c", fmt.Sprint("c-", i), shareOf("7Gi"), minutes + i, nil})
		}
		return all
	}
	one := func(node string, minutes int, statuses ...corev1.ContainerStatus) held {
		return held{node, node + "-0", gpus(", count: 4"), minutes, statuses}
	}
	for _, row := range []struct {
		name, want string // the victims
		devices    string
		held       []held
	}{
		{"one GPU of ten hours, not four of as many", "b-0", gpus(""), append(four, one("a", 600))},
		{"two GPUs of minutes, not four of ten hours", "b-0 b-1", gpus(", count: 2"), append(young, one("a", 600))},
		{"one pod of minutes, not two of ten hours", "a-0", gpus(", count: 2"), append(four, one("a", 2))},
		{"a pod that has restarted has little to lose", "a-0", gpus(""), append(four, one("a", 6000,
			running(time.Minute)))},
		{"so has one that waits for its restart", "a-0", gpus(""), append(four, one("a", 6000, waits))},
		{"a container that runs on has it", "b-0", gpus(""), append(four, one("a", 6000, running(time.Minute),
			corev1.ContainerStatus{}))},
		{"a pod with a GPU, not two with halves", "b-0", gpus(""), append(four, shares(600)...)},
		{"two with halves, not a pod of weeks", "c-0 c-1", gpus(""), append(shares(600), one("a", 50_000))},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &preemptCase{Snapshot: fleet(t, clustertest.SimNode{Name: "c", Profile: "t4-x2"},
				clustertest.SimNode{Name: "a", Profile: "l40s-x4", Use: exclusive},
				clustertest.SimNode{Name: "b", Profile: "l40s-x4", Use: exclusive})}
			full := map[string]bool{}
			for _, h := range row.held {
				full[h.node] = true
			}
			c.Nodes = slices.DeleteFunc(c.Nodes, func(n *corev1.Node) bool { return !full[n.Name] })
			for _, h := range row.held {
				of := claim(t, h.name, h.devices)
				only := *c.Snapshot
				only.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(n *corev1.Node) bool {
					return n.Name != h.node
				})
				if !hold(t, &only, of) {
					t.Fatalf("no room for %s", h.name)
				}
				p := podOn(h.node, h.name, 0, "100m", h.minutes, of)
				p.Status.ContainerStatuses = h.statuses
				for range h.statuses[min(1, len(h.statuses)):] {
					p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second"})
				}
				c.Claims, c.Pods = only.Claims, append(c.Pods, p)
			}
			own := claim(t, "own", row.devices)
			pod := podOn("", "own", 9, "100m", 0, own)
			c.Claims, c.Pods = append(c.Claims, own), append(c.Pods, pod)
			plan, err := Preempt(t.Context(), c.Snapshot, pod, PreemptOptions{Now: now})
			if err != nil || plan == nil {
				t.Fatalf("got %v, %v, want a plan", plan, err)
			}
			if got := namesOf(plan.Victims); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// Pods without GPUs are no victims where only GPUs are missing. They also must not keep the cheapest set from being
// found: sets are compared up to a limit.
func TestVictimsAmongManyPods(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100", Use: exclusive})
	add := func(name, devices string) {
		of := claim(t, name, devices)
		if !hold(t, s, of) {
			t.Fatalf("no room for %s", name)
		}
		s.Pods = append(s.Pods, podOn("a", name, 0, "100m", 60, of))
	}
	for i := range 3 {
		add(fmt.Sprint("two-", i), gpus(", count: 2"))
	}
	add("one-0", gpus(""))
	add("one-1", gpus(""))
	for i := range 60 {
		s.Pods = append(s.Pods, podOn("a", fmt.Sprint("cpu-", i), 0, "100m", 60))
	}
	own := claim(t, "own", gpus(", count: 6"))
	pod := podOn("", "own", 9, "100m", 0, own)
	s.Claims, s.Pods = append(s.Claims, own), append(s.Pods, pod)
	plan, err := Preempt(t.Context(), s, pod, PreemptOptions{Now: now})
	if err != nil || plan == nil {
		t.Fatalf("got %v, %v, want a plan", plan, err)
	}
	if got, want := namesOf(plan.Victims), "two-0 two-1 two-2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func namesOf(pods []*corev1.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// How much of GPUs pods hold, in thousandths: by memory, and all of a GPU where nothing limits the use.
func TestGPUsOfPods(t *testing.T) {
	unlimited := gpu.SharingMode{Sharing: gpu.Unlimited}
	for _, row := range []struct {
		name    string
		node    clustertest.SimNode
		without func(d resourceapi.Device) bool // is not published
		devices []string                        // of each claim
		want    []int64
	}{
		{"whole GPUs", clustertest.SimNode{Profile: "l40s-x4", Use: exclusive}, nil,
			[]string{gpus(", count: 3"), gpus("")}, []int64{3000, 1000}},
		{"shares", clustertest.SimNode{Profile: "t4-x2"}, nil, []string{shareOf("5Gi"), shareOf("7680Mi")},
			[]int64{333, 500}},
		{"a partition", clustertest.SimNode{Profile: "dgx-h100"}, nil, []string{shareOf("1g.10gb")}, []int64{122}},
		{"a partition of a GPU that is not offered as a whole", clustertest.SimNode{Profile: "dgx-h100"},
			func(d resourceapi.Device) bool { return !gpu.IsPart(d.Name) }, []string{shareOf("1g.10gb")}, []int64{123}},
		{"a GPU without limits", clustertest.SimNode{Profile: "t4-x2", Use: unlimited}, nil,
			[]string{shareOf("5Gi"), shareOf("whole")}, []int64{1000, 1000}},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.node.Name = "a"
			s := fleet(t, row.node)
			for i := range s.Slices {
				if row.without != nil {
					s.Slices[i].Spec.Devices = slices.DeleteFunc(s.Slices[i].Spec.Devices, row.without)
				}
			}
			for i, devices := range row.devices {
				of := claim(t, fmt.Sprint("c", i), devices)
				if !hold(t, s, of) {
					t.Fatalf("no room for %s", devices)
				}
				s.Pods = append(s.Pods, podOn("a", of.Name, 0, "100m", 1, of))
			}
			held := gpusOf(s)
			for i, want := range row.want {
				if got := held[s.Pods[i].UID]; got != want {
					t.Errorf("pod %d: got %d, want %d", i, got, want)
				}
			}
		})
	}
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4", Use: exclusive})
	shared := claim(t, "shared", gpus(""))
	if !hold(t, s, shared) {
		t.Fatal("no room")
	}
	one, two := podOn("a", "one", 0, "1", 1, shared), podOn("a", "two", 0, "1", 1, shared)
	if held := gpusOf(s); held[one.UID] != 500 || held[two.UID] != 500 {
		t.Errorf("two pods with one claim: got %v, want half for each", held)
	}
}
