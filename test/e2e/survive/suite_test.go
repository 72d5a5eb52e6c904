//go:build e2e

// SPDX-License-Identifier: Apache-2.0

// Package survive breaks a cluster, its nodes and the driver in every way that test/cluster and simctl offer, and
// checks that pods, claims and GPUs recover. It starts its own clusters, so it needs root, and the images of `make
// image`; `make test-survive` does both.
package survive

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

var (
	program = flag.String("cluster-program", "", "the built test/cluster (empty: it is built)")
	images  = flag.String("images", "../../../_output/images.tar", "archive with the driver's images")
	prefix  = flag.String("clusters", "survive-", "prefix of the names of clusters")
	keep    = flag.Bool("keep", false, "use clusters that run, and leave them running")
)

const (
	driver    = "gpu.nvidia.com"
	release   = "gpu-dra-driver" // of helm, and its namespace
	chart     = "../../../deployments/helm/gpu-dra-driver"
	pluginDir = "/var/lib/kubelet/plugins/" + driver
	simDir    = "/var/lib/gpu-dra-driver/sim"

	// soon is the patience with anything that the cluster does by itself: how long nothing may be new.
	soon = kube.Patience
	// sweepPeriod is the configured period: a claim is released two periods after the kubelet has forgotten it.
	sweepPeriod = 2 * time.Second
)

// suite is a cluster with the driver installed.
type suite struct {
	*kube.Cluster
	name       string
	profiles   []string // of the nodes, in the order of their names
	kubeconfig string
	image      string // of pods
}

// TestNodes has tests of single nodes. Those of different nodes run in parallel.
//
// No more tests that start clusters can be parallel: the kernel's default limit of inotify instances allows eight nodes
// of two clusters.
func TestNodes(t *testing.T) {
	t.Parallel()
	s := start(t, "nodes", []string{"l40s-x4", "l40s-x4", "dgx-h100", "l40s-x4", "dgx-h100"})
	run(t, s.tool(t, "kubectl"), "--kubeconfig", s.kubeconfig, "label", "node", "node-2",
		"gpu.nvidia.com/node-config=hook")
	s.install(t)
	t.Run("one node", func(t *testing.T) {
		t.Run("node-1", func(t *testing.T) {
			t.Parallel()
			n := s.node("node-1")
			t.Run("pods survive restarts of the kubelet and the runtime, and restart with the machine", n.testRestarts)
			t.Run("only claims that the kubelet has forgotten are released", n.testSweep)
			t.Run("the plugin is killed while it resets hardware", n.testKilledReleasingShares)
		})
		t.Run("node-2", func(t *testing.T) {
			t.Parallel()
			n := s.node("node-2")
			t.Run("a force-deleted pod's GPU goes to the next pod, never to both", n.testHandover)
			t.Run("GPUs are added and removed while the plugin runs", n.testRescan)
			t.Run("a container with a share loads the administrator's library", n.testHook)
			t.Run("pod resources of a force-deleted pod", n.testForgottenButRunning)
		})
		t.Run("node-3", func(t *testing.T) {
			t.Parallel()
			n := s.node("node-3")
			t.Run("the plugin is killed at each step", n.testKilled)
			t.Run("the plugin is killed while it creates and removes partitions", n.testKilledPartitioning)
			t.Run("partitions are created again after a power cut", n.testPowerCutPartitions)
		})
		t.Run("node-4", func(t *testing.T) {
			t.Parallel()
			n := s.node("node-4")
			t.Run("the plugin is killed while it sets up hardware", n.testKilledPreparingShares)
			t.Run("NVIDIA's programs serve shares, and the driver is replaced", n.testNVIDIA)
		})
		t.Run("node-5", func(t *testing.T) {
			t.Parallel()
			n := s.node("node-5")
			t.Run("NVML calls of one GPU hang", n.testHangingGPU)
			t.Run("the switch of a MIG mode hangs", n.testHangingSwitch)
			t.Run("the driver is updated under prepared claims", n.testDriverReloaded)
			t.Run("a GPU is reset under a share", n.testResetUnderShare)
			t.Run("the publisher's lock is not available", n.testNoPublisherLock)
			t.Run("the kubelet forgets 20 claims, the first on a hanging GPU", n.testManyForgotten)
		})
	})
	t.Run("claims are prepared and released while the API server is down", s.node("node-5").testAPIServerAway)
	t.Run("uninstalling the driver leaves nothing", s.testUninstall)
}

// TestInstallation replaces, stops and removes what the chart installs, one after the other.
func TestInstallation(t *testing.T) {
	t.Parallel()
	s := start(t, "installation", []string{"l40s-x4", "l40s-x4", "dgx-h100"})
	old := s.installRelease(t)
	t.Run("an upgrade has no gap", func(t *testing.T) { s.testUpgrade(t, old) })
	t.Run("the plugin is updated while a GPU hangs", s.node("node-3").testUpdateWhileGPUHangs)
	t.Run("an older version takes over prepared claims", s.testDowngrade)
	t.Run("a pod that survives the driver ends when the driver is back", s.testUninstalledEarly)
	t.Run("claims are created while the controller hangs", s.testControllerHangs)
	t.Run("the controller is killed while a pod gets the GPU of another one", s.node("node-1").testKilledPreempting)
	t.Run("uninstalling the driver leaves nothing", s.testUninstall)
	t.Run("the commands of the start pages install the driver, or say what is missing", s.testInstallScript)
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "survive-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *program == "" {
		*program = filepath.Join(dir, "cluster")
		if output, err := exec.Command("go", "build", "-C", "../../cluster", "-o", *program,
			".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build test/cluster: %v\n%s", err, output)
			os.Exit(1)
		}
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// start starts a cluster with a node of each profile, and loads the images. It is removed at the end of the test.
func start(t *testing.T, name string, profiles []string, flags ...string) *suite {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this starts clusters: run it as root")
	}
	version, err := os.ReadFile("../../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{name: *prefix + name, profiles: profiles,
		image: "localhost/gpu-dra-demo:" + strings.TrimSpace(string(version))}
	if !*keep {
		s.control(t, "down")
		t.Cleanup(func() { s.control(t, "down") })
	}
	up := append([]string{"--nodes", fmt.Sprint(len(profiles))}, flags...)
	for i, profile := range profiles {
		up = append(up, "--profile", nodeName(i)+"="+profile)
	}
	s.control(t, "up", up...)
	s.kubeconfig = strings.TrimSpace(s.control(t, "kubeconfig"))
	s.control(t, "load", *images)
	s.Cluster, err = kube.Connect(s.kubeconfig)
	must(t, err)
	t.Cleanup(func() { s.KeepLogsOf(t) })
	return s
}

// control runs a command of test/cluster.
func (s *suite) control(t *testing.T, command string, args ...string) string {
	t.Helper()
	return run(t, *program, append([]string{command, "--name", s.name}, args...)...)
}

// install installs or upgrades the driver, and returns when every node is updated.
func (s *suite) install(t *testing.T, settings ...string) {
	t.Helper()
	var args []string
	for _, setting := range settings {
		args = append(args, "--set", setting)
	}
	s.upgrade(t, args...)
}

// upgrade is install with arguments for helm.
func (s *suite) upgrade(t *testing.T, more ...string) {
	t.Helper()
	s.upgradeTo(t, chart, more...)
}

// upgradeTo is upgrade with any chart.
func (s *suite) upgradeTo(t *testing.T, chart string, more ...string) {
	t.Helper()
	args := []string{"upgrade", "--install", release, chart, "--kubeconfig", s.kubeconfig, "--namespace", release,
		"--create-namespace",
		"--set", "simulate.enabled=true", "--set", "virtualMachines.enabled=true",
		// Without the controller, because crashing nodes would take its replicas with them; the nodes do not need it.
		"--set", "controller.enabled=false", "--set", "kubeletPlugin.sweepPeriod=" + sweepPeriod.String(), "--set-json",
		hookConfig}
	run(t, s.tool(t, "helm"), append(args, more...)...)
	must(t, s.WaitRollout(t.Context(), soon, release))
}

func (s *suite) uninstall(t *testing.T) {
	t.Helper()
	run(t, s.tool(t, "helm"), "uninstall", release, "--kubeconfig", s.kubeconfig, "--namespace", release, "--wait",
		"--timeout", "1h")
}

func (s *suite) tool(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(strings.TrimSpace(s.control(t, "tools")), name)
}

// run runs a program and returns its output.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stdout.String(),
			stderr.String())
	}
	return stdout.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until look returns an empty string, see kube.Until. The last problem is the reason in the failure.
func eventually(t *testing.T, patience time.Duration, what string, look func() (problem string)) {
	t.Helper()
	must(t, kube.Until(t.Context(), patience, what, func(context.Context) (bool, string, error) {
		problem := look()
		return problem == "", problem, nil
	}))
}

// is returns an empty string if got is the wanted value.
func is(got, want string) string {
	if got == want {
		return ""
	}
	return fmt.Sprintf("got\n%s\nwant\n%s", got, want)
}
