//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testRestarts restarts what runs the pods: first without an effect on the pods, then with a restart of the pods.
func (n node) testRestarts(t *testing.T) {
	ns, factory := n.namespace(t, "restarts"), n.simctl(t, "print")
	first := n.pod(t, ns, "first", "")
	n.running(t, first)
	// A share of another GPU: its MPS daemon survives restarts of the kubelet and the runtime, and starts again with
	// the machine.
	sharer := n.share(t, ns, "sharer", "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	n.running(t, sharer)
	var clients string
	eventually(t, soon, "a client of MPS", func() string {
		if clients = n.clients(t); clients == "" {
			return "none"
		}
		return ""
	})
	// Their output is compared after the power cut, so it must be complete.
	n.waitLog(t, first, ": allowed")
	n.waitLog(t, sharer, "granted")
	pods := []client.ObjectKey{first, sharer}
	for _, component := range []string{"containerd", "kubelet"} {
		t.Run("restart of "+component, func(t *testing.T) {
			var goOn []func()
			for _, pod := range pods {
				goOn = append(goOn, n.stillRuns(t, pod))
			}
			n.control(t, "restart", n.name+"/"+component)
			var next client.ObjectKey
			says := ": allowed"
			if component == "containerd" { // while a virtual machine runs, the kubelet is restarted
				next, says = n.machine(t, ns, "machine"), "no GPU device node in /dev"
			} else {
				next = n.pod(t, ns, "last", "")
			}
			n.running(t, next)
			n.waitLog(t, next, says)
			pods = append(pods, next)
			for _, check := range goOn {
				check()
			}
			if got := n.clients(t); got != clients {
				t.Errorf("the client of MPS: %s", is(got, clients))
			}
		})
	}
	t.Run("power cut", func(t *testing.T) { n.testPowerCut(t, pods) })
	n.remove(t, pods...)
	n.gone(t, pods...)
	n.clean(t)
	eventually(t, soon, "the GPUs to be as they were", func() string { return is(n.simctl(t, "print"), factory) })
}

func (n node) testPowerCut(t *testing.T, pods []client.ObjectKey) {
	before := map[client.ObjectKey]string{} // the GPU as each pod sees it
	for _, pod := range pods {
		before[pod] = n.device(t, pod) + "\n" + n.logged(t, pod)
	}
	specs := n.specs(t)
	boot := n.boot(t)
	n.cutPower(t)
	if got := n.boot(t); got == boot {
		t.Fatalf("boot id %s is the same after the crash", got)
	}
	for _, pod := range pods {
		eventually(t, soon, pod.Name+" to be restarted", func() string {
			status := n.running(t, pod).Status.ContainerStatuses[0]
			if status.RestartCount == 0 {
				return "not yet"
			}
			return ""
		})
		eventually(t, soon, pod.Name+" to have its GPU again", func() string {
			return is(n.device(t, pod)+"\n"+n.logged(t, pod), before[pod])
		})
		if got, want := n.record(t, pod).BootID, n.boot(t); got != want {
			t.Errorf("record of %s: got boot id %s, want %s", pod.Name, got, want)
		}
	}
	if got := n.specs(t); got != specs {
		t.Errorf("CDI specs after the crash: %s", is(got, specs))
	}
	if got, want := len(n.records(t)), len(pods); got != want {
		t.Errorf("got %d records, want %d", got, want)
	}
}

// cutPower crashes the node and boots it. The plugin of simulated GPUs sees the new boot ID, and they lose what they
// lose at a boot.
func (n node) cutPower(t *testing.T) {
	t.Helper()
	n.control(t, "crash", n.name)
	n.control(t, "start", n.name)
}

// boot returns the node's boot ID.
func (n node) boot(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(n.sh(t, "cat /proc/sys/kernel/random/boot_id"))
}
