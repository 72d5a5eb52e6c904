//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// cudaClient loads NVIDIA's libcuda as a container finds it, by its name, and prints what cuInit returns.
const cudaClient = `
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : 0;
	if (!init) {
		printf("%s\n", dlerror());
		return 1;
	}
	printf("cuInit %d\n", init(0));
	fflush(stdout);
	return pause();
}
`

// mpsConnectionFailed is CUDA_ERROR_MPS_CONNECTION_FAILED: the library has found the daemon, which has no server,
// because there is no GPU.
const mpsConnectionFailed = "cuInit 805\n"

// nvidiaDir is where the node has roots of drivers and the CUDA program.
const nvidiaDir = "/var/lib/nvidia-test"

// testNVIDIA gives simulated GPUs the MPS programs and the CUDA library of NVIDIA's packages. A driver root is mounted
// over the node's, and replaced by one of another branch while claims are prepared, as when a driver container is
// replaced. The simulated plugin does not restart; one of real GPUs does, because a process can load one NVML library.
func (n node) testNVIDIA(t *testing.T) {
	packages, err := exec.CommandContext(t.Context(), "../../../hack/nvidia-packages.sh").Output()
	if err != nil {
		t.Skip("SKIPPED: NVIDIA's packages cannot be had here: ", err)
	}
	must(t, os.MkdirAll(n.disk(nvidiaDir), 0o755))
	source := filepath.Join(t.TempDir(), "client.c")
	must(t, os.WriteFile(source, []byte(cudaClient), 0o644))
	run(t, "gcc", "-o", n.disk(nvidiaDir+"/client"), source, "-ldl")

	ns := n.namespace(t, "nvidia")
	branches, err := nvidia.In(strings.TrimSpace(string(packages)))
	must(t, err)
	defer func() { // the tests that follow need the simulated driver
		n.unmountDriver(t)
		n.simctl(t, "reload", "--driver", "580.95.05")
	}()
	r535, r555 := branches[0], branches[len(branches)-1]
	n.installBranch(t, r535)
	n.installBranch(t, r555)
	plugin := n.plugin(t)
	n.mountDriver(t, r535)
	first := n.cudaShare(t, ns, "first")
	n.prints(t, first, mpsConnectionFailed)
	n.hasEvents(t, first, "MPSSingleUser: ", "MPSServerFailed: ")
	n.serves(t, first, r535)

	n.unmountDriver(t)
	n.mountDriver(t, r555)
	n.waitForDriverFiles(t, r555.Version, r535.Version)
	n.remove(t, first)
	n.gone(t, first)
	second := n.cudaShare(t, ns, "second")
	n.prints(t, second, mpsConnectionFailed)
	n.hasEvents(t, second, "MPSServerFailed: ")
	n.serves(t, second, r555)
	for _, e := range n.hasEvents(t, second) { // the daemon was started seconds ago
		if strings.HasPrefix(e, "MPSSingleUser: ") {
			t.Errorf("R555 knows several users at a time: got event %s", e)
		}
	}
	if now := n.plugin(t); now.UID != plugin.UID || now.Status.ContainerStatuses[0].RestartCount !=
		plugin.Status.ContainerStatuses[0].RestartCount {
		t.Error("the plugin was restarted")
	}
	n.remove(t, second)
	n.gone(t, second)
	n.clean(t)
}

// branchRoot is the driver root of the branch on the node.
func branchRoot(b nvidia.Branch) string { return nvidiaDir + "/" + b.Suite }

// installBranch creates a driver root with the MPS programs and the CUDA library of the branch.
func (n node) installBranch(t *testing.T, b nvidia.Branch) {
	t.Helper()
	n.simctl(t, "reload", "--driver", b.Version)
	n.sh(t, "cp -a "+simDir+"/root "+branchRoot(b))
	to := n.disk(branchRoot(b) + "/usr")
	install := func(file, dir string) { run(t, "cp", "-a", "--remove-destination", file, to+dir) }
	install(filepath.Join(b.Libraries(), "libcuda.so."+b.Version), "/lib/x86_64-linux-gnu/")
	install(b.MPSControl(), "/bin/")
	server := filepath.Join(b.Root, "usr/sbin/nvidia-cuda-mps-server")
	if _, err := os.Stat(server); err != nil {
		server = filepath.Join(b.Root, "usr/bin/nvidia-cuda-mps-server")
	}
	install(server, "/bin/")
}

// mountDriver mounts the root over the node's.
func (n node) mountDriver(t *testing.T, b nvidia.Branch) {
	t.Helper()
	n.sh(t, "mount --bind "+branchRoot(b)+" "+simDir+"/root")
}

// unmountDriver unmounts the root as a driver container does when it ends, although programs have its files open.
func (n node) unmountDriver(t *testing.T) {
	t.Helper()
	n.sh(t, "! mountpoint -q "+simDir+"/root || umount --lazy "+simDir+"/root")
}

// cudaShare creates a pod that runs the CUDA program with a share of a GPU.
func (n node) cudaShare(t *testing.T, namespace, name string) client.ObjectKey {
	t.Helper()
	pod := n.share(t, namespace, name, "3000Mi", runs("/client/client"), func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Image = strings.Replace(n.image, "gpu-dra-demo", "gpu-dra-driver", 1) // it has a C library
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "client", MountPath: "/client"})
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "client", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: nvidiaDir}}})
	})
	n.running(t, pod)
	return pod
}

// serves checks that the daemon of the pod's share runs the branch's program, has seen the client, and has the limit.
func (n node) serves(t *testing.T, pod client.ObjectKey, b nvidia.Branch) {
	t.Helper()
	daemons := n.record(t, pod).Plan.DaemonIDs()
	if len(daemons) != 1 {
		t.Fatalf("got daemons %v, want one", daemons)
	}
	daemon := pluginDir + "/mps/" + daemons[0]
	eventually(t, soon, "the client in the daemon's log", func() string {
		return n.sh(t, "grep -q 'NEW CLIENT' "+daemon+"/log/control.log || echo there is none")
	})
	control := "CUDA_MPS_PIPE_DIRECTORY=" + daemon + "/pipe " + simDir + "/root/usr/bin/nvidia-cuda-mps-control"
	if got := n.sh(t, "echo get_default_device_pinned_mem_limit 0 | "+control); got != "2G\n" {
		t.Errorf("memory limit of %s: %s", b.Version, is(got, "2G\n"))
	}
}

// prints waits until the pod's log is as wanted.
func (n node) prints(t *testing.T, pod client.ObjectKey, want string) {
	t.Helper()
	eventually(t, soon, "the output of "+pod.Name, func() string { return is(n.logged(t, pod), want) })
}

// hasEvents waits until the pod's claim has events with these beginnings, and returns all its events.
func (n node) hasEvents(t *testing.T, pod client.ObjectKey, beginnings ...string) (events []string) {
	t.Helper()
	claim := client.ObjectKeyFromObject(n.claim(t, pod))
	eventually(t, soon, "events of the claim", func() string {
		var err error
		events, err = n.Events(t.Context(), claim)
		must(t, err)
		for _, beginning := range beginnings {
			if !slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, beginning) }) {
				return is(strings.Join(events, "\n"), beginning)
			}
		}
		return ""
	})
	return events
}
