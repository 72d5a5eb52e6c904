// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestProfileOfANode(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("gpuz: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name  string
		label string
		flag  string
		want  string // name of the profile, or a part of the error
	}{
		{"the label decides", "t4-x2", "dgx-h100", "t4-x2"},
		{"without a label, the flag", "", "dgx-h100", "dgx-h100"},
		{"neither: what to do", "", "", "Label node n with gpu.nvidia.com/sim-profile=PROFILE, or give " +
			"--simulate-profile; profiles: a16-x4, a30-x2, dgx-a100, dgx-h100"},
		{"a profile that is not there", "t5", "", "t5"},
		{"a profile with a mistake names its file", "broken", "", filepath.Join(dir, "broken.yaml")},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			if row.label != "" {
				node.Labels = map[string]string{profileLabel: row.label}
			}
			sim := simulation{profile: row.flag, profilesDir: dir}
			profile, err := sim.nodeProfile(context.Background(), fake.NewClientset(node), "n")
			got := profile.Name
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// Nodes with one name of a rack are in one clique, and others in another.
func TestRackOfANode(t *testing.T) {
	cluster := func(profile, rack string) string {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
			Labels: map[string]string{profileLabel: profile, rackLabel: rack}}}
		p, err := (&simulation{}).nodeProfile(t.Context(), fake.NewClientset(node), "n")
		if err != nil {
			return err.Error()
		}
		f, _ := p.GPUs[3].Calls.GetGpuFabricInfo.Get()
		return f.ClusterUUID
	}
	a, again, b, none := cluster("gb200-nvl4", "a"), cluster("gb200-nvl4", "a"), cluster("gb200-nvl4", "b"),
		cluster("gb200-nvl4", "")
	if a != again || a == b || a == none || b == none || len(a) != len(none) {
		t.Errorf("got racks a %s and %s, b %s, none %s", a, again, b, none)
	}
	const want = "label gpu.nvidia.com/sim-rack=a of node n: profile dgx-h100: no GPU is in an NVLink fabric"
	if got := cluster("dgx-h100", "a"); !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The simulated GPUs of a plugin that starts while the API server is down are those that it had.
func TestStartWithoutAPIServer(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
		Labels: map[string]string{profileLabel: "t4-x2"}}})
	down := false
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return down, nil, errors.New("connection refused")
	})
	s := &simulation{dir: t.TempDir()}
	down = true
	if _, err := s.machine(t.Context(), client, "n"); !errors.Is(err, errNoAnswer) {
		t.Errorf("the first start: got %v, want %v", err, errNoAnswer)
	}
	down = false
	first, err := s.machine(t.Context(), client, "n")
	if err != nil {
		t.Fatal(err)
	}
	down = true
	again, err := s.machine(t.Context(), client, "n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.String(), first.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	down = false
	if _, err := s.machine(t.Context(), client, "other"); err == nil || errors.Is(err, errNoAnswer) {
		t.Errorf("a node that does not exist: got %v", err)
	}
}
