// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

const lostTaint = " remote.gpu.nvidia.com/server-lost:NoExecute"

// TestRounds: whatever happened, and however often the controller was away, one round brings the servers, the pool and
// the claims up to date.
func TestRounds(t *testing.T) {
	const admitted = " SessionReady=True Ready=True server="
	const lost = " ServerLost=True SessionReady=False Ready=False\n"
	const refused = " SessionReady=False Ready=False\n"
	for _, row := range []struct{ name, script, want string }{
		{"a server that answers is published", "server a 1 0; round", "device a\n"},
		{"one that does not answer yet is not", "server a 1 0; silent a; round", ""},
		{"one with two GPUs is not", "server a 1 0 1; round", ""},
		{"a claim is admitted", "server a 1 0; round; claim c a; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"two tenants of one server", "server a 1 0; round; claim c a; claim d a; round",
			"device a\nserver a: [c d]\nclaim c on a:" + admitted + "1\nclaim d on a:" + admitted + "1\n"},
		{"a claim waits while its server is silent", "server a 1 0; round; silent a; claim c a; round", "device a\n"},
		{"a server whose container restarts is another device", "server a 1 0; claim c a; round; restart a; round",
			"device \ndevice a\nclaim c on :" + lost},
		{"a container without the GPU restarts", "server a 1 0; claim c a; round; restart a proxy; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"both restart", "server a 1 0; claim c a; round; restart a proxy; restart a; round",
			"device \ndevice a\nclaim c on :" + lost},
		{"a session ends with its claim", "server a 1 0; claim c a; round; delete c; round", "device a\n"},
		{"a session ends with its allocation", "server a 1 0; claim c a; round; deallocate c; round", "device a\n"},
		{"a claim is deleted while the controller is away",
			"server a 1 0; claim c a; round; delete c; leader; round", "device a\n"},
		{"a claim is allocated while the controller is away", "server a 1 0; round; claim c a; leader; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"it restarts while the controller is away",
			"server a 1 0; claim c a; round; restart a; silent a; leader; round", "device \nclaim c on :" + lost},
		{"and one that stays silent",
			"server a 1 0; claim c a; round; silent a; leader; round; wait 31s; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"a server is silent for less than 30 s", "server a 1 0; claim c a; round; silent a; wait 29s; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"a server is silent for longer", "server a 1 0; claim c a; round; silent a; wait 31s; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"it is lost at once for a new leader",
			"server a 1 0; claim c a; round; silent a; wait 31s; round; leader; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"a lost server answers again",
			"server a 1 0; claim c a; round; silent a; wait 31s; round; answers a; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"the only server is not reached", "server a 1 0; claim c a; round; cut a; wait 31s; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"no server is reached",
			"server a 1 0; server b 2 1; claim c a; round; cut a b; wait 31s; round; wait 31s; round",
			"device a\ndevice b\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"nor by the next leader",
			"server a 1 0; server b 2 1; claim c a; round; cut a b; wait 31s; round; leader; round; wait 31s; round",
			"device a\ndevice b\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"no server is reached, and the kubelet calls one not ready",
			"server a 1 0; server b 2 1; claim c a; round; cut a b; unready a; wait 31s; round",
			"device a" + lostTaint + "\ndevice b\nserver a: [c]\nclaim c on a:" + lost},
		{"one is reached again, the other has 30 s for that",
			"server a 1 0; server b 2 1; claim c a; round; cut a b; wait 31s; round; answers b; wait 29s; round",
			"device a\ndevice b\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"then it is lost",
			"server a 1 0; server b 2 1; claim c a; round; cut a b; wait 31s; round; answers b; wait 31s; round",
			"device a" + lostTaint + "\ndevice b\nserver a: [c]\nclaim c on a:" + lost},
		{"one of two is not reached", "server a 1 0; server b 2 1; claim c a; round; cut a; wait 31s; round",
			"device a" + lostTaint + "\ndevice b\nserver a: [c]\nclaim c on a:" + lost},
		{"the engines of all servers accept no connections",
			"server a 1 0; server b 2 1; claim c a; round; silent a; silent b; wait 31s; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"the other one has never answered",
			"server a 1 0; claim c a; round; server b 2 1; cut a b; wait 31s; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"a lost server stays lost while none is reached",
			"server a 1 0; server b 2 1; server d 3 2; claim c a; round; cut a; wait 31s; round; cut b d; wait 31s; " +
				"round",
			"device a" + lostTaint + "\ndevice b\ndevice d\nserver a: [c]\nclaim c on a:" + lost},
		{"a lost server without claims leaves the pool", "server a 1 0; round; silent a; wait 31s; round", ""},
		{"a server pod ends", "server a 1 0; claim c a; round; end a; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"a server pod ends while the controller is away", "server a 1 0; claim c a; round; end a; leader; round",
			"device a" + lostTaint + "\nserver a: [c]\nclaim c on a:" + lost},
		{"its device leaves the pool with the last claim",
			"server a 1 0; claim c a; round; end a; round; delete c; round",
			"server a: [c]\n"}, // the stand-in of an ended pod keeps its list
		{"a server pod without claims ends", "server a 1 0; round; end a; round", ""},
		{"the label of a server is edited", "server a 1 0; claim c a; round; label a orion; wait 31s; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"the label of a server is edited while the controller is away",
			"server a 1 0; claim c a; round; label a orion; leader; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"another claim after that", "server a 1 0; round; label a orion; wait 31s; round; claim c a; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"the annotation of a server is edited", "server a 1 0; claim c a; round; annotate a fast; wait 31s; round",
			"device a\nserver a: [c]\nclaim c on a:" + admitted + "1\n"},
		{"a server with another label is not published", "server a 1 0; label a orion; round", ""},
		{"nor one after a restart of its container",
			"server a 1 0; claim c a; round; label a orion; restart a; wait 31s; round",
			"device \nclaim c on :" + lost},
		{"another server takes over",
			"server a 1 0; claim c a; round; end a; delete c; server b 2 0; claim c b; round",
			"device b\nserver a: [c]\nserver b: [c]\nclaim c on b:" + admitted + "2\n"},
		{"a new pod of the same name is another device",
			"server a 1 0; claim c a; round; end a; restart a; server a 2 0; claim d a; round",
			"device \ndevice a\nserver a: [d]\nclaim c on :" + lost + "claim d on a:" + admitted + "2\n"},
		{"two GPUs over the network in one claim", "server a 1 0; server b 2 1; round; claim c a b; round",
			"device a\ndevice b\nclaim c on a:" + refused + "claim c on b:" + refused},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			for line := range strings.SplitSeq(row.script, ";") {
				w.do(line)
			}
			got := strings.ReplaceAll(w.state(), "device "+lostTaint, "device ")
			if got != row.want {
				t.Errorf("got\n%swant\n%s", got, row.want)
			}
			w.do("round")
			if again := strings.ReplaceAll(w.state(), "device "+lostTaint, "device "); again != got {
				t.Errorf("one more round changes the state to\n%sfrom\n%s", again, got)
			}
		})
	}
}

// Of two server pods with one claim, as replicas of a Deployment that names it, the first one serves its GPU.
func TestOneServerForAClaim(t *testing.T) {
	w := newWorld(t)
	w.do("server a 1 0")
	w.do("server b 2 0")
	pod, err := w.api.CoreV1().Pods(namespace).Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("a-gpu")
	if _, err := w.api.CoreV1().Pods(namespace).Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim, err := w.api.ResourceV1().ResourceClaims(namespace).Get(t.Context(), "a-gpu", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"0", "1", "2"} { // the first one is no server
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: user, UID: types.UID(user)})
	}
	if _, err := w.api.ResourceV1().ResourceClaims(namespace).UpdateStatus(t.Context(), claim,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.do("round")
	if len(w.pool) != 1 || w.pool[0].Name != w.devices["a"] {
		t.Errorf("got %d devices, want that of server a: %s", len(w.pool), w.state())
	}
	var list corev1.EventList
	if err := w.direct.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || !strings.Contains(list.Items[0].Message, "server pod 1 has the same claim") {
		t.Errorf("got events %v", list.Items)
	}
}

// TestEvents: what users cannot see in a status is in an event, once.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	for _, line := range []string{"server a 1 0", "server b 2 1 2", "server d 3 3", "server e 4 4", "claim c a",
		"round", "end a", "round", "annotate d fast", "wait 31s", "round", "round", "cut d e", "round", "round"} {
		w.do(line)
	}
	var list corev1.EventList
	if err := w.direct.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list.Items {
		got = append(got, e.Reason+" "+e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name+": "+
			strings.ReplaceAll(e.Message, w.devices["a"], "DEVICE"))
	}
	slices.Sort(got)
	want := []string{"ServerLost ml/c: the server of DEVICE is gone",
		"ServerRefused gpu-system/b: no GPU over the network: its claims have 2 devices of gpu.nvidia.com: want 1",
		"ServerRefused gpu-system/d: no GPU over the network: annotation gpu.nvidia.com/link-gbps: \"fast\": want a " +
			"positive number of Gbit/s; it stays published as it was",
		"ServersUnreachable /remote.gpu.nvidia.com: the controller reaches no server; devices of server pods that " +
			"are ready are not lost meanwhile"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSecrets: what is missing or wrong is made anew, and the authority stays.
func TestSecrets(t *testing.T) {
	w := newWorld(t)
	w.do("server a 1 0")
	w.do("round")
	api := w.api.CoreV1().Secrets(namespace)
	read := func(name string) *corev1.Secret {
		t.Helper()
		s, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "class" {
			t.Errorf("%s: got the owners %v, want the class", name, s.OwnerReferences)
		}
		return s
	}
	authority, first := read(AuthoritySecret), read("gpu-remote-server")
	if _, leaks := first.Data["ca.key"]; leaks || len(first.Data) != 3 {
		t.Errorf("servers get %d keys, want 3", len(first.Data))
	}
	w.do("wait 960h") // of 2160
	w.do("round")
	if same := read("gpu-remote-server"); string(same.Data["tls.crt"]) != string(first.Data["tls.crt"]) {
		t.Error("the certificate of servers is renewed too early")
	}
	w.do("wait 960h")
	w.do("round")
	if renewed := read("gpu-remote-server"); string(renewed.Data["tls.crt"]) == string(first.Data["tls.crt"]) {
		t.Error("the certificate of servers is not renewed")
	}
	if err := api.Delete(t.Context(), "gpu-remote-server", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.do("leader")
	w.do("round")
	if again := read("gpu-remote-server"); string(again.Data["ca.crt"]) != string(authority.Data["tls.crt"]) {
		t.Error("the new certificate of servers is of another authority")
	}
	if state := w.state(); state != "device a\n" {
		t.Errorf("got %q, want the device of a server that answers", state)
	}
}

// Whether a server has answered is judged when it was called, and not while the status of many claims is written.
func TestManyClaimsOfAServerThatAnswers(t *testing.T) {
	w := newWorld(t)
	w.do("server a 1 0")
	for i := range 400 {
		w.claim(fmt.Sprintf("c%04d", i), "a")
	}
	w.api.PrependReactor("*", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		w.clock = w.clock.Add(50 * time.Millisecond) // as a busy API server takes
		return false, nil, nil
	})
	w.do("round")
	if lost := strings.Count(w.state(), "ServerLost=True"); lost > 0 {
		t.Errorf("%d of 400 claims are told that a server is lost that answers", lost)
	}
}
