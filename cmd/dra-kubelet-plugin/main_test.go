// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

// The driver is installed while the plugin waits for it.
func TestDiscoverWaitsForTheDriver(t *testing.T) {
	profile, err := sim.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := sim.Open(t.TempDir(), profile)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	c := nvml.Config{
		Library: machine.NVML(),
		Sysfs:   filepath.Join(machine.DriverRoot(), "sys"),
		Driver:  nvml.DriverRoot{Host: "/opt/nvidia", Here: machine.DriverRoot()},
	}
	s := &scanner{config: c}
	_, _, err = s.discover()
	if !errors.Is(err, nvml.ErrNoDriver) || !strings.Contains(err.Error(), "/opt/nvidia") {
		t.Errorf("without a driver: got %v", err)
	}
	if err := machine.LayOut(sim.Programs{}); err != nil {
		t.Fatal(err)
	}
	node, broken, err := s.discover()
	if err != nil || len(broken) > 0 || len(node.Inventory) != 2 {
		t.Errorf("with a driver: got %d GPUs, %v, %v", len(node.Inventory), broken, err)
	}
}

func TestFlagsFromTheEnvironment(t *testing.T) {
	for _, row := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"a variable sets its flag", nil, map[string]string{"NODE_NAME": "n1"}, "n1 false"},
		{"the command line wins", []string{"--node-name=n2"}, map[string]string{"NODE_NAME": "n1", "SIMULATE": "true"}, "n2 true"},
		{"a bad value names the variable", nil, map[string]string{"SIMULATE": "maybe"}, "environment variable SIMULATE: "},
	} {
		t.Run(row.name, func(t *testing.T) {
			for name, value := range row.env {
				t.Setenv(name, value)
			}
			var o options
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			o.addFlags(flags)
			if err := flags.Parse(row.args); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := fromEnvironment(flags); err != nil {
				got = err.Error()
			} else {
				got = o.nodeName + map[bool]string{true: " true", false: " false"}[o.simulate]
			}
			if !strings.HasPrefix(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

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
		{"neither: what to do", "", "", "Label node n with gpu.nvidia.com/sim-profile=PROFILE, or give --simulate-profile; profiles: a30-x2, dgx-a100, dgx-h100"},
		{"a profile that is not there", "t5", "", "t5"},
		{"a profile with a mistake names its file", "broken", "", filepath.Join(dir, "broken.yaml")},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			if row.label != "" {
				node.Labels = map[string]string{profileLabel: row.label}
			}
			o := options{nodeName: "n", simulateProfile: row.flag, simulateProfilesDir: dir}
			profile, err := nodeProfile(context.Background(), fake.NewClientset(node), o)
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

func TestInstallHook(t *testing.T) {
	source, dir := filepath.Join(t.TempDir(), "nvidia-cdi-hook"), t.TempDir()
	if _, err := installHook(source, dir); err == nil || !strings.Contains(err.Error(), "--cdi-hook") {
		t.Errorf("without a program: got %v", err)
	}
	for _, content := range []string{"one", "one", "two"} {
		if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := installHook(source, dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("mode %v, %v, want 0755", info.Mode(), err)
		}
	}
}
