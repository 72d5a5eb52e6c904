//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// sweepWithin is how long a forgotten claim may stay: two periods of grace, one until it is seen first, one until it is seen last,
// and time to work.
const sweepWithin = 4*sweepPeriod + 10*time.Second

// testSweep lets a kubelet forget a claim: its state is wiped while the pod is deleted by force, as when a node is restored from
// an image. A claim that is in use stays, although the kubelet has forgotten it too.
func (n node) testSweep(t *testing.T) {
	ns := n.namespace(t, "sweep")
	lost, living := n.pod(t, ns, "lost", ""), n.pod(t, ns, "living", "")
	n.running(t, lost)
	container := n.running(t, living).Status.ContainerStatuses[0].ContainerID
	lostClaim, lostPod := n.claim(t, lost), n.get(t, lost)
	want := n.record(t, living)
	uuid := n.uuid(t, n.device(t, lost))

	n.control(t, "stop", n.name+"/kubelet")
	n.force(t, lost)
	eventually(t, soon, "the claim to be gone from the API", func() string {
		claim := lostClaim.DeepCopy()
		if err := n.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is there: %v", err)
		}
		return ""
	})
	n.sh(t, "rm /var/lib/kubelet/dra_manager_state")
	n.sh(t, fmt.Sprintf("ctr=/run/gpu-dra-cluster/bin/containerd/ctr; for c in $($ctr -n k8s.io containers ls -q 'labels.\"io.kubernetes.pod.uid\"==%s'); do $ctr -n k8s.io task rm -f $c; $ctr -n k8s.io containers rm $c; done >/dev/null 2>&1; true", lostPod.UID))
	stray := "/run/cdi/k8s." + driver + "-claim_11111111-2222-3333-4444-555555555555.json" // no record says whose it is
	n.sh(t, "cp /run/cdi/k8s."+driver+"-claim_"+string(want.Claim.UID)+".json "+stray+" && sed -i s/"+string(want.Claim.UID)+"/11111111-2222-3333-4444-555555555555/g "+stray+" && touch -d '1 hour ago' "+stray)
	n.control(t, "start", n.name+"/kubelet")
	n.podResources(t) // until it answers, nothing is swept

	eventually(t, sweepWithin, "the forgotten claim to be released", func() string {
		records := n.records(t)
		if len(records) != 1 || records[0].Claim.UID != want.Claim.UID {
			return fmt.Sprintf("got records %v", records)
		}
		return ""
	})
	eventually(t, sweepWithin, "only the specs of the living claim to be left", func() string {
		return is(n.specs(t), fmt.Sprintf("%s_metadata_%s_gpu.json\nk8s.%[1]s-claim_%[2]s.json\n", driver, want.Claim.UID))
	})
	status := n.running(t, living).Status.ContainerStatuses[0]
	if status.ContainerID != container || status.RestartCount != 0 {
		t.Errorf("the living pod: got container %s after %d restarts, want %s to go on", status.ContainerID, status.RestartCount, container)
	}
	// Another pod can have the GPU that was lost.
	n.running(t, n.pod(t, ns, "next", exactly(uuid)))
}

// testForgottenButRunning looks at what the sweep relies on. What was seen with kubelet v1.37.1: a pod deleted by force is missing
// from the list of pod resources from the first moment on, although its containers run until the kubelet has ended them, which is
// two seconds later as a rule, and as much later as the runtime takes. So the list alone does not say that nobody uses the GPU. The
// kubelet's own dra_manager_state has the claim until Unprepare has succeeded.
func (n node) testForgottenButRunning(t *testing.T) {
	ns := n.namespace(t, "forgotten")
	pod := n.pod(t, ns, "stubborn", "", shell(holdLock))
	n.running(t, pod)
	claim := n.claim(t, pod)
	if got := n.podResources(t); !got[claim.Name] {
		t.Errorf("claims of running containers: got %v, want %s among them", got, claim.Name)
	}
	n.control(t, "stop", n.name+"/containerd") // its containers run on, and nobody can end them
	n.force(t, pod)
	eventually(t, soon, "the pod to be missing from the list", func() string {
		if n.podResources(t)[claim.Name] {
			return "it is there"
		}
		return ""
	})
	if got := n.sh(t, "flock --nonblock /var/lib/handover.lock echo free || echo held"); got != "held\n" {
		t.Errorf("the container does not run any more: its lock is %s", got)
	}
	n.sh(t, "grep -q "+claim.Name+" /var/lib/kubelet/dra_manager_state")
	n.control(t, "start", n.name+"/containerd")
	n.clean(t)
}

// podResources are the names of the claims that the kubelet says its containers have.
func (n node) podResources(t *testing.T) map[string]bool {
	t.Helper()
	conn := n.dial(t, "/var/lib/kubelet/pod-resources", "kubelet.sock")
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	must(t, err)
	claims := map[string]bool{}
	for _, pod := range list.PodResources {
		for _, container := range pod.Containers {
			for _, claim := range container.DynamicResources {
				claims[claim.ClaimName] = true
			}
		}
	}
	return claims
}

// dial connects to a socket on the node. The path of one has 107 characters at most, so it goes by a short link.
func (n node) dial(t *testing.T, dir, socket string) *grpc.ClientConn {
	t.Helper()
	short, err := os.MkdirTemp("", "s")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	must(t, os.Symlink(n.disk(dir), filepath.Join(short, "d")))
	conn, err := grpc.NewClient("unix://"+filepath.Join(short, "d", socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	return conn
}
