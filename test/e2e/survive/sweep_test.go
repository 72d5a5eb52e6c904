//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testSweep makes a kubelet forget a claim: its state is wiped while the pod is force-deleted, as when a node is
// restored from an image. A claim in use stays, although the kubelet has forgotten it too.
func (n node) testSweep(t *testing.T) {
	ns := n.namespace(t, "sweep")
	lost, living := n.pod(t, ns, "lost", ""), n.pod(t, ns, "living", "")
	n.running(t, lost)
	container := n.running(t, living).Status.ContainerStatuses[0].ContainerID
	lostClaim, lostPod := n.claim(t, lost), n.get(t, lost)
	want := n.record(t, living)
	uuid := n.uuid(t, n.device(t, lost))

	n.control(t, "stop", n.name+"/kubelet")
	n.wipeKubeletState(t, lost, lostPod.UID, lostClaim)
	stray := "/run/cdi/k8s." + driver + "-claim_11111111-2222-3333-4444-555555555555.json" // without a record
	n.sh(t, "cp /run/cdi/k8s."+driver+"-claim_"+string(want.Claim.UID)+".json "+stray+" && sed -i s/"+
		string(want.Claim.UID)+"/11111111-2222-3333-4444-555555555555/g "+stray+" && touch -d '1 hour ago' "+stray)
	n.control(t, "start", n.name+"/kubelet")
	n.podResources(t) // until it answers, nothing is swept

	eventually(t, soon, "the forgotten claim to be released", func() string {
		records := n.records(t)
		if len(records) != 1 || records[0].Claim.UID != want.Claim.UID {
			return fmt.Sprintf("got records %v", records)
		}
		return ""
	})
	eventually(t, soon, "only the specs of the living claim to be left", func() string {
		return is(n.specs(t), fmt.Sprintf("%s_metadata_%s_gpu.json\nk8s.%[1]s-claim_%[2]s.json\n", driver,
			want.Claim.UID))
	})
	status := n.running(t, living).Status.ContainerStatuses[0]
	if status.ContainerID != container || status.RestartCount != 0 {
		t.Errorf("the living pod: got container %s after %d restarts, want %s to go on", status.ContainerID,
			status.RestartCount, container)
	}
	// Another pod can get the GPU that was leaked.
	n.running(t, n.pod(t, ns, "next", exactly(uuid)))
}

// wipeKubeletState force-deletes a pod, its containers and the kubelet's state about claims. The kubelet is stopped.
func (n node) wipeKubeletState(t *testing.T, pod client.ObjectKey, uid types.UID,
	claims ...*resourceapi.ResourceClaim,
) {
	t.Helper()
	n.force(t, pod)
	for _, claim := range claims {
		eventually(t, soon, "the claim to be gone from the API", func() string {
			claim := claim.DeepCopy()
			if err := n.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("it is there: %v", err)
			}
			return ""
		})
	}
	n.sh(t, "rm /var/lib/kubelet/dra_manager_state")
	n.sh(t, fmt.Sprintf("ctr=/run/gpu-dra-cluster/bin/containerd/ctr; for c in $($ctr -n k8s.io containers ls -q "+
		"'labels.\"io.kubernetes.pod.uid\"==%s'); do $ctr -n k8s.io task rm -f $c; $ctr -n k8s.io containers rm $c; "+
		"done >/dev/null 2>&1; true", uid))
}

// testManyForgotten makes a kubelet forget 20 claims, the first on a hanging GPU. The others are released in the usual
// time, and the first when the GPU responds again.
func (n node) testManyForgotten(t *testing.T) {
	const shares = 19
	ns := n.namespace(t, "many")
	whole := n.gpus(t)
	gpu, _, _ := strings.Cut(whole, "\n")
	uuid := n.uuid(t, gpu)
	// The template of the shares is created with its own pod.
	n.running(t, n.share(t, ns, "share", "1Gi"))
	n.remove(t, client.ObjectKey{Namespace: ns, Name: "share"})
	n.gone(t, client.ObjectKey{Namespace: ns, Name: "share"})
	pod := n.podFor(t, ns, "many", resourceapi.ExactDeviceRequest{DeviceClassName: driver,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: exactly(uuid)}}},
	}, func(p *corev1.Pod) {
		template := "share"
		for i := range shares {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{
				Name: fmt.Sprintf("share-%d", i), ResourceClaimTemplateName: &template})
		}
	})
	n.running(t, pod)
	if got := len(n.records(t)); got != shares+1 {
		t.Fatalf("got %d records, want %d", got, shares+1)
	}
	podUID := n.get(t, pod).UID
	n.simctl(t, "slow", gpu, "all", "1h")
	n.control(t, "stop", n.name+"/kubelet")
	n.wipeKubeletState(t, pod, podUID)
	n.control(t, "start", n.name+"/kubelet")
	n.podResources(t) // until it answers, nothing is swept
	eventually(t, soon, "the shares to be released", func() string {
		records := n.records(t)
		if len(records) > 1 || len(records) == 1 && records[0].Plan.Devices()[0] != gpu {
			return fmt.Sprintf("got %d records, want that of %s at most", len(records), gpu)
		}
		return ""
	})
	n.simctl(t, "heal", gpu)
	n.clean(t)
	eventually(t, soon, "the GPU to be back", func() string { return is(n.gpus(t), whole) })
}

// holdVariable is the environment variable for the duration of stops in tests, such as 10m.
const holdVariable = "SURVIVE_HOLD"

// holdDuration returns the value of holdVariable, or the default.
func holdDuration(t *testing.T, byDefault time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(holdVariable)
	if text == "" {
		return byDefault
	}
	hold, err := time.ParseDuration(text)
	must(t, err)
	return hold
}

// testForgottenButRunning force-deletes a pod while the runtime is stopped, so that its container keeps running. With
// kubelet v1.37.1, the pod immediately disappears from the list of pod resources, and within a minute the kubelet
// unprepares its claim. The claim keeps its GPU until the container has ended.
func (n node) testForgottenButRunning(t *testing.T) {
	hold := holdDuration(t, 100*time.Second) // dozens of sweeps find the claim forgotten
	ns := n.namespace(t, "forgotten")
	pod := n.pod(t, ns, "stubborn", "")
	n.running(t, pod)
	claim := n.claim(t, pod)
	if got := n.podResources(t); !got[claim.Name] {
		t.Errorf("claims of running containers: got %v, want %s among them", got, claim.Name)
	}
	before := n.left(t)
	n.control(t, "stop", n.name+"/containerd")
	stopped := true
	start := func() {
		if stopped {
			stopped = false
			n.control(t, "start", n.name+"/containerd")
		}
	}
	defer start()
	n.force(t, pod)
	eventually(t, soon, "the pod to be missing from the list", func() string {
		if n.podResources(t)[claim.Name] {
			return "it is there"
		}
		return ""
	})
	eventually(t, soon, "an event of the node that names the container", func() string {
		events := n.nodeEvents(t)
		want := "claim " + ns + "/" + claim.Name + " is not released: container main of pod "
		for _, e := range events {
			if strings.HasPrefix(e, "ReleaseFailed: ") && strings.Contains(e, want) {
				return ""
			}
		}
		return is(strings.Join(events, "\n"), want)
	})
	for end := time.Now().Add(hold); time.Now().Before(end); time.Sleep(5 * time.Second) {
		// Each try to release the claim takes the metadata away for as long as it looks at all processes.
		eventually(t, soon, "the metadata to be there", func() string {
			now := n.left(t)
			if now == before {
				return ""
			}
			if withoutMetadata(now) != withoutMetadata(before) {
				t.Fatalf("%s before the container may end: %s", time.Until(end).Round(time.Second), is(now, before))
			}
			return is(now, before)
		})
	}
	if got := n.sh(t, "pgrep --full --count '[g]pu-demo show --stay'"); got != "1\n" {
		t.Errorf("processes of the container: got %s, want 1", got)
	}
	start()
	n.clean(t)
}

// withoutMetadata drops the files with device metadata from what node.left returns.
func withoutMetadata(left string) (rest string) {
	for line := range strings.Lines(left) {
		if !strings.HasPrefix(line, "dra-device-metadata/") {
			rest += line
		}
	}
	return rest
}

// nodeEvents returns the events of the node, oldest first.
func (n node) nodeEvents(t *testing.T) []string {
	t.Helper()
	events, err := n.Events(t.Context(), client.ObjectKey{Namespace: "default", Name: n.name})
	must(t, err)
	return events
}

// podResources returns the names of the claims that the kubelet reports for its containers.
func (n node) podResources(t *testing.T) map[string]bool {
	t.Helper()
	conn := n.dial(t, "/var/lib/kubelet/pod-resources", "kubelet.sock")
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(t.Context(),
		&podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
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

// dial connects to a socket on the node, through a short link because the path of a socket is limited to 107
// characters.
func (n node) dial(t *testing.T, dir, socket string) *grpc.ClientConn {
	t.Helper()
	short, err := os.MkdirTemp("", "s")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	must(t, os.Symlink(n.disk(dir), filepath.Join(short, "d")))
	conn, err := grpc.NewClient("unix://"+filepath.Join(short, "d", socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	return conn
}
