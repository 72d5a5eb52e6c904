//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const lostTaint = " gpu.nvidia.com/gpu-lost:NoSchedule"

// testHangingGPU makes every NVML call of one GPU hang, while the plugin runs and when it starts. The other GPUs are
// published, prepared and released. The claim of the hanging GPU can be released.
func (n node) testHangingGPU(t *testing.T) {
	ns := n.namespace(t, "hanging")
	whole := n.gpus(t)
	all := strings.Split(whole, "\n")
	hanging, others := all[0], all[1:]
	holder := n.pod(t, ns, "holder", exactly(n.uuid(t, hanging)))
	n.running(t, holder)

	n.simctl(t, "slow", hanging, "all", "1h")
	eventually(t, soon, "the GPU that hangs to be tainted", func() string {
		return is(n.gpus(t), strings.Join(replace(all, hanging, hanging+lostTaint), "\n"))
	})
	pods := n.podOnEachGPU(t, ns, "running", others)
	n.remove(t, holder)
	n.gone(t, holder)

	plugin := client.ObjectKeyFromObject(n.plugin(t))
	n.remove(t, plugin)
	n.gone(t, plugin)
	n.plugin(t)
	n.remove(t, pods...)
	n.gone(t, pods...)
	pods = n.podOnEachGPU(t, ns, "started", others)
	n.remove(t, pods...)
	n.gone(t, pods...)
	n.clean(t)

	n.simctl(t, "heal", hanging)
	eventually(t, soon, "the GPU to be back", func() string { return is(n.gpus(t), whole) })

	// One call hangs and then returns.
	n.simctl(t, "slow", hanging, "all", "1h", "--times", "1")
	eventually(t, soon, "the GPU of the call that hangs to be tainted", func() string {
		return is(n.gpus(t), strings.Join(replace(all, hanging, hanging+lostTaint), "\n"))
	})
	n.simctl(t, "heal", hanging)
	eventually(t, soon, "the GPU to be back by itself", func() string { return is(n.gpus(t), whole) })
	pod := n.pod(t, ns, "last", exactly(n.uuid(t, hanging)))
	n.running(t, pod)
}

// testUpdateWhileGPUHangs updates the plugin while the NVML calls of one GPU hang. Pods with the other GPUs start and
// end without a failure.
func (n node) testUpdateWhileGPUHangs(t *testing.T) {
	ns := n.namespace(t, "hanging-update")
	whole := n.gpus(t)
	all := strings.Split(whole, "\n")
	n.simctl(t, "slow", all[0], "all", "1h")
	eventually(t, soon, "the GPU that hangs to be tainted", func() string {
		return is(n.gpus(t), strings.Join(replace(all, all[0], all[0]+lostTaint), "\n"))
	})
	before := n.plugin(t).Name
	ctx, stop := context.WithCancel(t.Context())
	pods := shortPods{name: "short"}
	done := make(chan struct{})
	go func() { defer close(done); pods.run(ctx, t, n, ns) }()
	n.install(t, "kubeletPlugin.logVerbosity=3")
	if n.plugin(t).Name == before {
		t.Error("the plugin was not updated")
	}
	stop()
	<-done
	if pods.err != nil || pods.count == 0 {
		t.Errorf("got %d pods meanwhile, and %v", pods.count, pods.err)
	}
	n.simctl(t, "heal", all[0])
	eventually(t, soon, "the GPU to be back", func() string { return is(n.gpus(t), whole) })
	n.install(t)
	n.plugin(t)
}

// podOnEachGPU creates a pod for each GPU and returns when all run. No claim may need a second Prepare.
func (n node) podOnEachGPU(t *testing.T, namespace, prefix string, gpus []string) []client.ObjectKey {
	t.Helper()
	var pods []client.ObjectKey
	for i, gpu := range gpus {
		pods = append(pods, n.pod(t, namespace, fmt.Sprintf("%s-%d", prefix, i), exactly(n.uuid(t, gpu))))
	}
	for _, pod := range pods {
		n.running(t, pod)
		events, err := n.Events(t.Context(), pod)
		must(t, err)
		if slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "FailedPrepare") }) {
			t.Errorf("%s: got events\n%s\nwant no failure", pod.Name, strings.Join(events, "\n"))
		}
	}
	return pods
}

// testHangingSwitch makes the switch of a GPU's MIG mode hang. Whole GPUs and partitions of other GPUs are prepared
// meanwhile, and the waiting claim is prepared when the switch returns.
func (n node) testHangingSwitch(t *testing.T) {
	ns := n.namespace(t, "hanging-switch")
	factory, gpus := n.simctl(t, "print"), strings.Split(n.gpus(t), "\n")
	n.simctl(t, "slow", gpus[0], "SetMigMode", "1h")
	waiting := n.partition(t, ns, "waiting", gpus[0])
	eventually(t, soon, "the plugin to switch the MIG mode", func() string { return n.inFlight(t, "prepare") })

	other := n.partition(t, ns, "other", gpus[1])
	whole := n.podOnEachGPU(t, ns, "whole", gpus[2:4])
	n.running(t, other)
	n.made(t, other)
	n.remove(t, append(whole, other)...)
	n.gone(t, append(whole, other)...)

	n.simctl(t, "heal", gpus[0])
	n.tryAgain(t, waiting)
	n.running(t, waiting)
	n.made(t, waiting)
	n.remove(t, waiting)
	n.gone(t, waiting)
	n.clean(t)
	eventually(t, soon, "the GPUs to be as they were", func() string { return is(n.simctl(t, "print"), factory) })
}

// testDriverReloaded updates NVIDIA's driver while claims are prepared: two GPUs swap their minor numbers, and all GPUs
// lose the compute mode that shares need. A restarted container gets the new driver's files and its own GPU.
func (n node) testDriverReloaded(t *testing.T) {
	ns := n.namespace(t, "reloaded")
	gpus := strings.Split(n.gpus(t), "\n")
	const version, before = "590.44.01", "580.95.05"
	uuid := n.uuid(t, gpus[0])
	again := n.pod(t, ns, "again", exactly(uuid), runs("gpu-demo", "show"))
	prints := func(want string) {
		t.Helper()
		eventually(t, soon, "a container with "+want, func() string {
			output, err := n.Log(t.Context(), again)
			if err != nil {
				return err.Error() // such as while the first container is created
			}
			return is(output, want)
		})
	}
	nodes := func(minor string) string {
		return "GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + uuid + ")\n/dev/nvidia" + minor + ": allowed\n"
	}
	prints(nodes("0"))
	// Not before: it may get any GPU, also that of the other pod.
	share := n.share(t, ns, "share", "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	n.running(t, share)
	shared := n.device(t, share)
	if got := n.driverFiles(t); !strings.Contains(got, before) {
		t.Errorf("got mounts %s, want those of driver %s", got, before)
	}

	n.simctl(t, "reload", "--driver", version, "--swap-minors", gpus[0]+","+gpus[1])
	prints(nodes("1"))
	n.waitForDriverFiles(t, version, before)
	eventually(t, soon, "the compute mode of the shared GPU", func() string {
		return n.lacks(t, shared, "Exclusive_Process")
	})
	n.remove(t, again, share)
	n.gone(t, again, share)
	n.clean(t)

	// The control program of this branch does not know the flag for several users.
	n.simctl(t, "reload", "--driver", "550.163.01", "--swap-minors", gpus[0]+","+gpus[1])
	share = n.share(t, ns, "single-user", "1Gi")
	n.running(t, share)
	n.hasEvents(t, share, "MPSSingleUser: ")
	n.remove(t, share)
	n.gone(t, share)
	n.clean(t)
	n.simctl(t, "reload", "--driver", before)
}

// driverFiles returns the driver's libraries that the CDI specs mount.
func (n node) driverFiles(t *testing.T) string {
	t.Helper()
	return n.sh(t, `grep -rhoE 'libnvidia-ml[.]so[.][0-9.]*[0-9]' /run/cdi | sort -u`)
}

// waitForDriverFiles waits until the CDI specs mount libraries of the version, and none of the one before.
func (n node) waitForDriverFiles(t *testing.T, version, before string) {
	t.Helper()
	eventually(t, soon, "the files of the new driver", func() string {
		if got := n.driverFiles(t); !strings.Contains(got, version) || strings.Contains(got, before) {
			return is(got, version)
		}
		return ""
	})
}

// lacks returns an empty string if the GPU's line in the output of simctl has the word.
func (n node) lacks(t *testing.T, gpu, word string) string {
	t.Helper()
	for line := range strings.Lines(n.simctl(t, "print")) {
		if strings.Contains(line, gpu) {
			if strings.Contains(line, word) {
				return ""
			}
			return is(line, word)
		}
	}
	return "no line of " + gpu
}

// testResetUnderShare resets a GPU while a container has a share of it: its MPS daemon dies, and its compute mode is
// the default of a boot. The next share is enforced like the first.
func (n node) testResetUnderShare(t *testing.T) {
	ns := n.namespace(t, "reset")
	first := n.share(t, ns, "first", "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	n.running(t, first)
	shared := n.device(t, first)
	n.simctl(t, "mps", shared, "dead")
	n.simctl(t, "set", shared, "compute-mode=DEFAULT") // which the plugin may repair at once
	n.simctl(t, "mps", shared, "heal")
	eventually(t, soon, "the compute mode to be set again",
		func() string { return n.lacks(t, shared, "Exclusive_Process") })
	second := n.share(t, ns, "second", "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	n.running(t, second)
	want := "granted 1024MiB of " + n.uuid(t, n.device(t, second))
	eventually(t, soon, "the second to have its memory", func() string {
		if got := n.logged(t, second); !strings.Contains(got, want) {
			return is(got, want)
		}
		return ""
	})
	n.remove(t, first, second)
	n.gone(t, first, second)
	n.clean(t)
}

// testNoPublisherLock blocks the publisher's lock: the plugin is not ready and reports why, prepared claims can be
// released, and it publishes when the lock is free.
func (n node) testNoPublisherLock(t *testing.T) {
	ns := n.namespace(t, "no-lock")
	whole := n.gpus(t)
	pod := n.pod(t, ns, "prepared", "")
	n.running(t, pod)
	lock := pluginDir + "/publisher.lock"
	n.sh(t, "rm "+lock+" && mkdir "+lock)
	plugin := client.ObjectKeyFromObject(n.plugin(t))
	n.remove(t, plugin)
	n.gone(t, plugin)
	eventually(t, soon, "the plugin to say that it cannot publish", func() string {
		pods, err := n.Pods(t.Context(), release, kube.PluginLabels)
		must(t, err)
		for i := range pods {
			p := &pods[i]
			if p.Spec.NodeName != n.name || p.DeletionTimestamp != nil {
				continue
			}
			if ready(p) {
				return "it is ready"
			}
			if got, err := n.Log(t.Context(), client.ObjectKeyFromObject(p)); err != nil ||
				!strings.Contains(got, "Devices cannot be published") {
				return fmt.Sprintf("%v: %s", err, got)
			}
			return ""
		}
		return "there is no plugin"
	})
	n.remove(t, pod)
	n.gone(t, pod)
	n.clean(t)
	n.sh(t, "rmdir "+lock)
	n.plugin(t)
	eventually(t, soon, "the devices to be published", func() string { return is(n.gpus(t), whole) })
}
