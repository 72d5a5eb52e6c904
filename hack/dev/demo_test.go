// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strings"
	"testing"

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

// The commands that are printed are about what stays: no demo after the first ends those before it.
func TestWhatStays(t *testing.T) {
	if !strings.Contains(useIt("", ""), "-n demo-"+stay[len(stay)-1]+" ") {
		t.Errorf("got %s, want a pod of %s", useIt("", ""), stay[len(stay)-1])
	}
	for i, name := range stay {
		text, err := os.ReadFile("../../demo/" + name + "/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && strings.Contains(string(text), "demo.gpu-dra-driver/alone") {
			t.Errorf("%s must be alone on the cluster", name)
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
