// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// program is the process name of the plugin, and supervisor that of the MPS supervisor.
const (
	program    = "dra-kubelet-plugin-sim"
	supervisor = "mps-supervisor"
)

// process is a process of the chart's pods, seen from the host.
type process struct {
	pid int
	env map[string]string
}

// findProcess finds the process of the only pod with that label that runs and is not terminating.
func findProcess(ctx context.Context, client kubernetes.Interface, label, program string) (process, error) {
	all, err := findProcesses(ctx, client, label, program)
	if err != nil {
		return process{}, err
	}
	return all[0], nil
}

// findProcesses finds the processes of all such pods; there is at least one.
func findProcesses(ctx context.Context, client kubernetes.Interface, label, program string) ([]process, error) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, err
	}
	var all []process
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil ||
			len(pod.Status.ContainerStatuses) == 0 {
			continue
		}
		_, container, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		for _, pid := range pids() {
			if executable(pid) == program && inContainer(pid, container) {
				all = append(all, process{pid, environment(pid)})
			}
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf("%s does not run on this machine: test/cluster must have started the cluster here, and "+
		"the chart be installed", program)
}

// inContainer looks for the container's ID in the name of the control group.
func inContainer(pid int, container string) bool {
	groups, err := os.ReadFile(proc(pid, "cgroup"))
	return err == nil && container != "" && strings.Contains(string(groups), container)
}

func pids() []int {
	entries, _ := os.ReadDir("/proc")
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// executable returns the name of the program; empty if the process has exited.
func executable(pid int) string {
	target, err := os.Readlink(proc(pid, "exe"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

func environment(pid int) map[string]string {
	data, _ := os.ReadFile(proc(pid, "environ"))
	env := map[string]string{}
	for _, entry := range bytes.Split(data, []byte{0}) {
		if name, value, ok := strings.Cut(string(entry), "="); ok {
			env[name] = value
		}
	}
	return env
}

func proc(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// path returns the path on the host of a file of the process.
func (p process) path(inside string) string { return filepath.Join(proc(p.pid, "root"), inside) }

// dial connects to the socket on which the kubelet calls the plugin.
func (p process) dial() (drapb.DRAPluginClient, func(), error) {
	return dialPlugin(p.path(filepath.Join(pluginDir, "dra-"+p.env["POD_UID"]+".sock")))
}

func dialPlugin(socket string) (drapb.DRAPluginClient, func(), error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return drapb.NewDRAPluginClient(conn), func() { _ = conn.Close() }, nil
}

// client returns a client like the plugin's: with its service account, from its network namespace.
func (p process) client() (kubernetes.Interface, error) {
	const credentials = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(p.path(credentials + "token"))
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + net.JoinHostPort(p.env["KUBERNETES_SERVICE_HOST"],
			p.env["KUBERNETES_SERVICE_PORT"]),
		BearerToken:     string(token),
		TLSClientConfig: rest.TLSClientConfig{CAFile: p.path(credentials + "ca.crt")},
		Dial:            p.dialNetwork,
		QPS:             -1,
	})
}

// dialNetwork connects from the process's network namespace.
func (p process) dialNetwork(ctx context.Context, network, address string) (net.Conn, error) {
	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer here.Close()
	there, err := os.Open(proc(p.pid, "ns/net"))
	if err != nil {
		return nil, err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter the plugin's network namespace: %w", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread() // without it the thread would end with this goroutine
	}
	return conn, err
}

// cpu returns the processor time that the process has used so far.
func (p process) cpu() (time.Duration, error) {
	// The clock of another process, see clock_getcpuclockid(3); /proc only has hundredths of a second.
	const schedulerClock = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^p.pid<<3|schedulerClock), &t); err != nil {
		return 0, fmt.Errorf("processor time of %d: %w", p.pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// memory is the memory of a process in MiB.
type memory struct {
	rss  float64 // currently resident
	peak float64 // maximum of rss
	anon float64 // resident and not backed by a file
}

func (p process) memory() (memory, error) {
	data, err := os.ReadFile(proc(p.pid, "status"))
	if err != nil {
		return memory{}, err
	}
	var m memory
	values := map[string]*float64{"VmRSS": &m.rss, "VmHWM": &m.peak, "RssAnon": &m.anon}
	for line := range strings.Lines(string(data)) {
		name, text, _ := strings.Cut(line, ":")
		value, wanted := values[name]
		if !wanted {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 64)
		if err != nil {
			return memory{}, fmt.Errorf("read %s: %w", name, err)
		}
		*value = kib / 1024
	}
	return m, nil
}
