// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestUseIt(t *testing.T) {
	text := useIt("/state/kubeconfig", "/tools", "/repository/_output/bin")
	for _, want := range []string{"export KUBECONFIG=/state/kubeconfig PATH=/tools:/repository/_output/bin:$PATH",
		"kubectl gpu ls ", "kubectl gpu why worker -n demo-unsatisfiable ", "kubectl gpu ui ", "make demo-down"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestErrorOfACommand(t *testing.T) {
	failed := errors.New("exit status 1")
	for want, args := range map[string][]string{"demo: exit status 1": {"_output/bin/demo"},
		"helm version --short: exit status 1": {"/usr/bin/helm", "version", "--short"}} {
		if got := (command{args: args}).wrap(failed).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// What is built with other flags is compiled twice.
func TestFlagsAreShared(t *testing.T) {
	for _, file := range []string{"../../Makefile", "../../deployments/container/build.go",
		"../../test/cluster/internal/components/component.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"-trimpath", "-gcflags=all=-dwarf=false"} {
			if !strings.Contains(string(text), flag) {
				t.Errorf("%s has no %s", file, flag)
			}
		}
		if tags := "netgo"; !strings.Contains(string(text), tags) || !strings.Contains(string(text), "osusergo") {
			t.Errorf("%s does not have the tags netgo and osusergo", file)
		}
	}
}

func TestProfiles(t *testing.T) {
	node := func(name, profile string, ready corev1.ConditionStatus) corev1.Node {
		n := corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready}}}}
		n.Name, n.Labels = name, map[string]string{profileLabel: profile}
		return n
	}
	got := profiles([]corev1.Node{node("a", "x", corev1.ConditionTrue), node("b", "y", corev1.ConditionUnknown)})
	if len(got) != 1 || got["a"] != "x" {
		t.Errorf("got %v, want that a has x", got)
	}
}

func TestUnready(t *testing.T) {
	daemon := func(strategy appsv1.DaemonSetUpdateStrategyType, desired, updated, ready int32) appsv1.DaemonSet {
		update := appsv1.DaemonSetUpdateStrategy{Type: strategy}
		return appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{UpdateStrategy: update},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated,
				NumberReady: ready}}
	}
	deployment := func(replicas, updated, available int32) appsv1.Deployment {
		return appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))},
			Status: appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: updated, AvailableReplicas: available}}
	}
	const rolling, onDelete = appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType
	newer := daemon(rolling, 3, 3, 3)
	newer.Generation = 2
	for _, tc := range []struct {
		name       string
		daemon     appsv1.DaemonSet
		deployment appsv1.Deployment
		want       int
	}{
		{"all is ready", daemon(rolling, 3, 3, 3), deployment(2, 2, 2), 0},
		{"nothing is ready", daemon(rolling, 3, 3, 0), deployment(2, 2, 0), 2},
		{"old pods", daemon(rolling, 3, 1, 3), deployment(3, 2, 2), 2},
		{"pods that nobody replaces", daemon(onDelete, 3, 0, 3), deployment(2, 2, 2), 0},
		{"not seen yet", newer, deployment(2, 2, 2), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := unready([]appsv1.DaemonSet{tc.daemon}, []appsv1.Deployment{tc.deployment})
			if len(got) != tc.want {
				t.Errorf("got %q, want %d", got, tc.want)
			}
		})
	}
}
