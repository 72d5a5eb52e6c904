// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const gib = 1 << 30

// lister serves the kubelet's list of containers.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	pods  []*podresources.PodResources
	asked atomic.Int32
}

func (l *lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse,
	error) {
	l.asked.Add(1)
	return &podresources.ListPodResourcesResponse{PodResources: l.pods}, nil
}

// node has all data sources of a collector.
type node struct {
	*Collector
	t       *testing.T
	dir     string
	kubelet *lister
	client  *fake.Clientset
	answers map[gpu.UUID]func() ([]gpu.Process, error)
	// unsampled are GPUs without samples of utilization.
	unsampled map[gpu.UUID]bool
}

// newNode returns a node with GPUs of 80 GiB: one, two, and rep, which is replicated 4 times.
func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "metrics") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	o := &node{t: t, dir: dir, kubelet: &lister{}, client: fake.NewClientset(),
		answers: map[gpu.UUID]func() ([]gpu.Process, error){}, unsampled: map[gpu.UUID]bool{}}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, o.kubelet)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); _ = os.RemoveAll(dir) })
	records, err := checkpoint.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	var devices []gpu.Device
	for i, name := range []string{"one", "two", "rep"} {
		devices = append(devices, gpu.Device{Name: name, Type: gpu.TypeGPU, UUID: gpu.UUID("GPU-" + name),
			Memory: 80 * gib, Index: i})
	}
	devices[2].Use = gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4, Isolation: gpu.IsolationNone}
	inVM := gpu.Device{Name: "vm", Type: gpu.TypeGPU, UUID: "GPU-vm", Memory: 80 * gib, VFIO: &gpu.VFIO{Bound: true}}
	forVM := inVM
	forVM.Name, forVM.Type = gpu.VFIOName("vm"), gpu.TypeVFIO
	inv := inventory.New(append(devices, inVM, forVM))
	o.Collector = NewCollector(CollectorConfig{Node: "node", Kubelet: socket, Records: records, Client: o.client,
		Proc:      filepath.Join(dir, "proc"),
		Inventory: func() inventory.Inventory { return inv },
		Processes: func(_ context.Context, d gpu.Device) (found gpu.Processes, err error) {
			if answer := o.answers[d.UUID]; answer != nil {
				found.All, err = answer()
			}
			found.Sampled = !o.unsampled[d.UUID]
			return found, err
		}})
	o.failures.Reset()
	return o
}

// claim records a claim. Each device is [REQUEST=]DEVICE[:SHARE], with a share like 5Gi/30 or 2x, or "admin".
func (o *node) claim(name string, devices ...string) {
	o.t.Helper()
	rec := checkpoint.PreparedClaim{Phase: checkpoint.Prepared, Claim: sharing.Claim{Namespace: "ns", Name: name,
		UID: types.UID("uid-of-" + name)}}
	for i, text := range devices {
		request, device, ok := strings.Cut(text, "=")
		if !ok {
			request, device = "gpu", text
		}
		a := sharing.Assignment{Request: request, Pool: "node"}
		var share string
		a.Device, share, _ = strings.Cut(device, ":")
		var memory uint64
		switch {
		case share == "admin":
			a.AdminAccess = true
		case strings.HasSuffix(share, "x"):
			a.Share = &sharing.Share{}
			o.scan(share, "%dx", &a.Share.Replicas)
		case share != "":
			a.Share = &sharing.Share{}
			o.scan(share, "%dGi/%d", &memory, &a.Share.Cores)
			a.Share.Memory = memory * gib
		}
		if a.Share != nil {
			a.ShareID = types.UID(fmt.Sprint("share", i))
		}
		a.CDI = []string{"k8s.gpu.nvidia.com/driver=common", o.cdi(rec.Claim, a)}
		rec.Plan.Assignments = append(rec.Plan.Assignments, a)
	}
	if err := o.Records.(*checkpoint.Records).Put(rec); err != nil {
		o.t.Fatal(err)
	}
}

func (o *node) cdi(claim sharing.Claim, a sharing.Assignment) string {
	return strings.TrimSuffix(fmt.Sprintf("k8s.gpu.nvidia.com/claim=%s-%s-%s", claim.UID, a.Device, a.ShareID), "-")
}

func (o *node) scan(text, format string, into ...any) {
	o.t.Helper()
	if _, err := fmt.Sscanf(text, format, into...); err != nil {
		o.t.Fatal(text, err)
	}
}

// pod runs a pod with the UID uid-of-<name>. Each container is NAME=CLAIM[/REQUEST][+CLAIM[/REQUEST]].
func (o *node) pod(name string, containers ...string) {
	o.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)}}
	listed := &podresources.PodResources{Namespace: "ns", Name: name}
	for _, text := range containers {
		container, uses, _ := strings.Cut(text, "=")
		spec := corev1.Container{Name: container}
		resources := &podresources.ContainerResources{Name: container}
		for _, use := range strings.Split(uses, "+") {
			claim, request, _ := strings.Cut(use, "/")
			spec.Resources.Claims = append(spec.Resources.Claims, corev1.ResourceClaim{Name: "my-" + claim,
				Request: request})
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "my-" + claim,
				ResourceClaimName: &claim})
			resources.DynamicResources = append(resources.DynamicResources, o.resource(claim))
		}
		pod.Spec.Containers = append(pod.Spec.Containers, spec)
		listed.Containers = append(listed.Containers, resources)
	}
	o.kubelet.pods = append(o.kubelet.pods, listed)
	if err := o.client.Tracker().Add(pod); err != nil {
		o.t.Fatal(err)
	}
}

// resource returns the kubelet's entry of a claim. For each device it repeats the earlier ones.
func (o *node) resource(claim string) *podresources.DynamicResource {
	dynamic := &podresources.DynamicResource{ClaimName: claim, ClaimNamespace: "ns"}
	rec, err := o.Records.(*checkpoint.Records).Get(types.UID("uid-of-" + claim))
	if errors.Is(err, checkpoint.ErrNotFound) {
		dynamic.ClaimResources =
			[]*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{{Name: "k8s.other/claim=" + claim}}}}
		return dynamic
	}
	if err != nil {
		o.t.Fatal(err)
	}
	var devices []*podresources.CDIDevice
	for _, a := range rec.Plan.Assignments {
		for _, name := range a.CDI {
			devices = append(devices, &podresources.CDIDevice{Name: name})
		}
		dynamic.ClaimResources = append(dynamic.ClaimResources, &podresources.ClaimResource{CdiDevices: devices})
	}
	return dynamic
}

// process starts a process, in a container or in none.
func (o *node) process(pid int, pod, container string) {
	o.t.Helper()
	text := "21 20 0:20 / / rw,relatime - overlay overlay rw\n"
	if pod != "" {
		text += "22 21 8:1 /lib/kubelet/pods/uid-of-" + pod + "/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n" +
			"23 21 8:1 /lib/kubelet/pods/uid-of-" + pod + "/containers/" + container +
			"/0a1b2c3d /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"
	}
	o.file(pid, text)
}

func (o *node) file(pid int, mountinfo string) {
	o.t.Helper()
	dir := filepath.Join(o.processes.config.Proc, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		o.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(mountinfo), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

// corruptRecord makes the record of a claim unreadable.
func (o *node) corruptRecord(claim string) {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, "state", "claims", "uid-of-"+claim+".json"), []byte("?"),
		0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *node) uses(id gpu.UUID, processes ...gpu.Process) {
	o.answers[id] = func() ([]gpu.Process, error) { return processes, nil }
}

// text returns the current metrics: memory in GiB and cores in percent as requested, then as used; "?" is unknown. Then
// the failures.
func (o *node) text() string {
	o.at = time.Time{}
	var lines []string
	for _, one := range o.current() {
		want, has := "-", "?"
		if r := one.requested; r != nil {
			want = fmt.Sprintf("%d/%d", r.memory/gib, r.cores)
		}
		if u := one.used; u != nil {
			has = strings.ReplaceAll(fmt.Sprintf("%d/%d", u.memory/max(1, min(u.memory, gib)), u.utilization), "-1",
				"?")
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s %s %s %s", one.namespace, one.pod, one.container, one.device, want,
			has))
	}
	return strings.Join(append(lines, o.failed()...), "\n")
}

// failed returns the sources that failed since the last call, and how often.
func (o *node) failed() []string {
	registry := prometheus.NewRegistry()
	registry.MustRegister(o.failures)
	families, err := registry.Gather()
	if err != nil {
		o.t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			lines = append(lines, fmt.Sprintf("%s failed", m.GetLabel()[0].GetValue()))
		}
	}
	o.failures.Reset()
	return lines
}

func TestUsage(t *testing.T) {
	boom := errors.New("boom")
	for _, row := range []struct {
		name string
		do   func(o *node)
		want string
	}{
		{"nobody has a GPU", func(o *node) { o.pod("p", "main=other") }, ""},
		{"a whole GPU", func(o *node) { o.claim("a", "one"); o.pod("p", "main=a") }, "ns/p main one 80/100 0/0"},
		{"two", func(o *node) { o.claim("a", "one", "two"); o.pod("p", "main=a") },
			"ns/p main one 80/100 0/0\nns/p main two 80/100 0/0"},
		{"fractions", func(o *node) {
			o.claim("a", "one:5Gi/30")
			o.claim("b", "one:6Gi/0")
			o.pod("p", "main=a")
			o.pod("q", "main=b")
		}, "ns/p main one 5/30 0/0\nns/q main one 6/0 0/0"},
		{"two fractions of a GPU in one container are one figure", func(o *node) {
			o.claim("a", "one:5Gi/30", "one:6Gi/10")
			o.pod("p", "main=a")
		}, "ns/p main one 11/40 0/0"},
		{"a replica is an equal part", func(o *node) { o.claim("a", "rep:2x"); o.pod("p", "main=a") },
			"ns/p main rep 40/50 0/0"},
		{"a replica of a GPU that has none any more", func(o *node) { o.claim("a", "one:1x"); o.pod("p", "main=a") },
			""},
		{"a GPU that is not known any more", func(o *node) { o.claim("a", "gone"); o.pod("p", "main=a") }, ""},
		{"containers that share a claim", func(o *node) { o.claim("a", "one"); o.pod("p", "main=a", "side=a") },
			"ns/p main one 80/100 0/0\nns/p side one 80/100 0/0"},
		{"containers that name requests", func(o *node) {
			o.claim("a", "x=one", "y/small=two")
			o.pod("p", "both=a", "first=a/x", "second=a/y", "named=a/x+a/y")
		}, "ns/p both one 80/100 0/0\nns/p both two 80/100 0/0\nns/p first one 80/100 0/0\nns/p named one 80/100 " +
			"0/0\nns/p named two 80/100 0/0\nns/p second two 80/100 0/0"},
		{"of which the API server knows nothing", func(o *node) {
			o.claim("a", "x=one", "y=two")
			o.claim("b", "rep:1x")
			o.pod("p", "main=a")
			o.pod("q", "main=b")
			o.client.PrependReactor("get", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
				return true, nil, boom
			})
		}, "ns/q main rep 20/25 0/0\npods failed"},
		{"who looks after GPUs has requested nothing", func(o *node) {
			o.claim("a", "one:admin")
			o.claim("b", "monitor:admin")
			o.pod("p", "main=a+b")
		}, ""},
		{"but uses what it uses", func(o *node) {
			o.claim("a", "monitor:admin")
			o.pod("p", "main=a")
			o.process(7, "p", "main")
			o.uses("GPU-two", gpu.Process{PID: 7, Memory: gib, Utilization: 1})
		}, "ns/p main two - 1/1"},
		{"processes", func(o *node) {
			o.claim("a", "one:5Gi/30")
			o.claim("b", "one:6Gi/0")
			o.pod("p", "main=a", "side=a")
			o.pod("q", "main=b")
			o.process(1, "p", "main")
			o.process(2, "p", "main")
			o.process(3, "p", "side")
			o.process(4, "q", "main")
			o.process(5, "", "")
			o.process(6, "stranger", "main")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: 2 * gib, Utilization: 10}, gpu.Process{PID: 2, Memory: gib,
				Utilization: 20},
				gpu.Process{PID: 3, Memory: gib}, gpu.Process{PID: 4, Memory: 4 * gib, Utilization: 70},
				gpu.Process{PID: 5, Memory: gib}, gpu.Process{PID: 6, Memory: gib}, gpu.Process{PID: 77, Memory: gib})
		}, "ns/p main one 5/30 3/30\nns/p side one 5/30 1/0\nns/q main one 6/0 4/70"},
		{"an init container", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "init")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: 2 * gib})
		}, "ns/p init one - 2/0\nns/p main one 80/100 0/0"},
		{"what is not told of one process is not known of its container", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a", "side=a")
			o.process(1, "p", "main")
			o.process(2, "p", "main")
			o.process(3, "p", "side")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: -1, Utilization: 5}, gpu.Process{PID: 2, Memory: gib,
				Utilization: -1}, gpu.Process{PID: 3, Memory: gib, Utilization: -1})
		}, "ns/p main one 80/100 ?/?\nns/p side one 80/100 1/?"},
		{"a GPU that cannot tell", func(o *node) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.answers["GPU-one"] = func() ([]gpu.Process, error) {
				return nil, fmt.Errorf("GPU-one: %w", gpu.ErrUnmeasured)
			}
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0"},
		{"a GPU that fails", func(o *node) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.answers["GPU-one"] = func() ([]gpu.Process, error) { return nil, boom }
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\nnvml failed"},
		{"processes of nobody knows whom", func(o *node) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
			o.client.PrependReactor("get", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
				return true, nil, boom
			})
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\npods failed"},
		{"a proc that cannot be read", func(o *node) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			if err := os.MkdirAll(filepath.Join(o.processes.config.Proc, "1", "mountinfo"), 0o755); err != nil {
				o.t.Fatal(err)
			}
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\nproc failed"},
		{"use is not measured", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.processes = nil
		}, "ns/p main one 80/100 ?"},
		{"a kubelet that does not answer", func(o *node) { o.Kubelet = "/nobody.sock" }, "kubelet failed"},
		{"a record that nobody can read", func(o *node) {
			o.claim("a", "one")
			o.claim("b", "two")
			o.pod("p", "main=a", "side=b")
			o.corruptRecord("b")
		}, "ns/p main one 80/100 0/0\nrecords failed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := newNode(t)
			row.do(o)
			if got := o.text(); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// claimTexts returns the use of claims, as the watcher of idle claims gets it.
func (o *node) claimTexts() string {
	all, ok := o.Claims()
	if !ok {
		return "no answer"
	}
	var lines []string
	for _, u := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s %g", u.Claim.Name, u.Device, u.Use, u.Part))
	}
	return strings.Join(lines, "\n")
}

func TestUseOfClaims(t *testing.T) {
	process := func(pid, peak int) gpu.Process { return gpu.Process{PID: pid, Peak: peak} }
	for _, row := range []struct {
		name string
		do   func(o *node)
		want string
	}{
		{"no claim", func(*node) {}, ""},
		{"no process", func(o *node) { o.claim("a", "one"); o.pod("p", "main=a") }, "a one idle 1"},
		{"a pod without a claim of this driver", func(o *node) { o.claim("a", "one") }, ""},
		{"a busy process", func(o *node) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.uses("GPU-one", process(1, 5))
		}, "a one used 1\na two idle 1"},
		{"a process that only holds memory", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
		}, "a one idle 1"},
		{"less than the threshold", func(o *node) {
			o.IdleBelow = 6
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.uses("GPU-one", process(1, 5))
		}, "a one idle 1"},
		{"an init container, which the kubelet does not list", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "init")
			o.uses("GPU-one", process(1, 5))
		}, "a one used 1"},
		{"a process of another pod", func(o *node) {
			o.claim("a", "one:5Gi/30")
			o.claim("b", "one:40Gi/0")
			o.pod("p", "main=a")
			o.pod("q", "main=b")
			o.process(1, "q", "main")
			o.uses("GPU-one", process(1, 5))
		}, "a one idle 0.0625\nb one used 0.5"},
		{"one of two pods of a claim", func(o *node) {
			o.claim("a", "rep:1x")
			o.pod("p", "main=a")
			o.pod("q", "main=a")
			o.process(1, "q", "main")
			o.uses("GPU-rep", process(1, 5))
		}, "a rep used 0.25"},
		{"a process that has ended", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.uses("GPU-one", gpu.Process{PID: 1, Peak: 5, Ended: true})
		}, "a one used 1"},
		{"one that may have been of either pod", func(o *node) {
			o.claim("a", "rep:1x")
			o.claim("b", "rep:1x")
			o.pod("p", "main=a")
			o.pod("q", "main=b")
			o.process(1, "q", "main")
			o.uses("GPU-rep", process(1, 5), gpu.Process{PID: 2, Peak: 5, Ended: true})
		}, "a rep unknown 0.25\nb rep used 0.25"},
		{"a process in a container inside a container", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "", "")
			o.process(2, "stranger", "main")
			o.uses("GPU-one", process(1, 5), process(2, 0))
		}, "a one used 1"},
		{"one of two processes is not measured", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.process(2, "p", "main")
			o.uses("GPU-one", process(1, 0), process(2, gpu.Unmeasured))
		}, "a one unknown 1"},
		{"and the other is busy", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.process(2, "p", "main")
			o.uses("GPU-one", process(1, 5), process(2, gpu.Unmeasured))
		}, "a one used 1"},
		{"a GPU without samples and processes: one may have ended", func(o *node) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.unsampled["GPU-one"] = true
		}, "a one unknown 1\na two idle 1"},
		{"a GPU that does not answer", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.answers["GPU-one"] = func() ([]gpu.Process, error) { return nil, errors.New("boom") }
		}, "a one unknown 1"},
		{"a GPU in a virtual machine: nothing measures it", func(o *node) {
			o.claim("a", "vm-vfio")
			o.pod("p", "main=a")
		}, "a vm-vfio unknown 1"},
		{"a GPU that is not known any more", func(o *node) { o.claim("a", "gone"); o.pod("p", "main=a") },
			"a gone unknown 0"},
		{"use is not measured", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.processes = nil
		}, "a one unknown 1"},
		{"who looks after GPUs holds none", func(o *node) { o.claim("a", "one:admin"); o.pod("p", "main=a") }, ""},
		{"a kubelet that does not answer", func(o *node) { o.Kubelet = "/nobody.sock" }, "no answer"},
		{"a record that nobody can read: its claim has a container", func(o *node) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.corruptRecord("a")
		}, "no answer"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := newNode(t)
			row.do(o)
			if got := o.claimTexts(); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// NVIDIA's driver may count what a client of MPS does for the server.
func TestUseOfMPSClients(t *testing.T) {
	for _, row := range []struct {
		used used
		want Use
	}{
		{used{}, Idle}, {used{peak: activity{processes: 1}}, Unknown},
		{used{peak: activity{processes: 1, percent: 1}}, Used},
	} {
		if got := row.used.use(true, 1); got != row.want {
			t.Errorf("%+v: got %s, want %s", row.used, got, row.want)
		}
	}
}

// Results are cached for a short time. A container that has ended has no metrics.
func TestUsageOfEndedContainers(t *testing.T) {
	o := newNode(t)
	o.claim("a", "one")
	o.pod("p", "main=a")
	o.process(1, "p", "main")
	o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
	if got, want := o.text(), "ns/p main one 80/100 1/0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for range 3 {
		o.current()
	}
	if got := o.kubelet.asked.Load(); got != 1 {
		t.Errorf("the kubelet was asked %d times, want once", got)
	}
	o.kubelet.pods = nil
	if got := o.text(); got != "" {
		t.Errorf("got %s, want nothing", got)
	}
	if len(o.pods.known) > 0 {
		t.Errorf("still known: %v", o.pods.known)
	}
}

// A pod is read once, even if processes of other pods use its GPU.
func TestUsageReadsPodOnce(t *testing.T) {
	o := newNode(t)
	o.claim("a", "one")
	o.pod("p", "main=a")
	o.process(1, "p", "main")
	o.process(2, "stranger", "main")
	o.uses("GPU-one", gpu.Process{PID: 2, Memory: gib}, gpu.Process{PID: 1, Memory: gib})
	o.text()
	before := len(o.client.Actions())
	if got, want := o.text(), "ns/p main one 80/100 1/0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := len(o.client.Actions()); got != before {
		t.Errorf("%d more requests", got-before)
	}
}

// A new pod with the name and the claim of an old one is another pod.
func TestUsageOfReplacedPod(t *testing.T) {
	o := newNode(t)
	o.claim("a", "one")
	o.pod("p", "main=a")
	o.process(1, "p", "main")
	o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
	o.text()
	pod, err := o.client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.UID = "uid-of-next"
	if err := o.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "ns"); err != nil {
		t.Fatal(err)
	}
	o.process(2, "next", "main")
	o.uses("GPU-one", gpu.Process{PID: 2, Memory: 2 * gib})
	if got, want := o.text(), "ns/p main one 80/100 2/0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A GPU that hangs loses only its own metrics, after the timeout.
func TestUsageOfHangingGPU(t *testing.T) {
	o := newNode(t)
	o.claim("a", "one", "two")
	o.pod("p", "main=a")
	list := o.processes.config.Processes
	o.processes.config.Processes = func(ctx context.Context, d gpu.Device) (gpu.Processes, error) {
		if d.Name == "one" {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > processTimeout {
				t.Errorf("it may take until %s, want %s at most", end, processTimeout)
			}
			<-ctx.Done()
			return gpu.Processes{}, ctx.Err()
		}
		return list(ctx, d)
	}
	const want = "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\nnvml failed"
	if got := o.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMetricNames(t *testing.T) {
	o := newNode(t)
	o.claim("a", "one:5Gi/30", "two")
	o.pod("p", "main=a")
	o.process(1, "p", "main")
	o.process(2, "p", "init")
	o.uses("GPU-one", gpu.Process{PID: 1, Memory: 3 * gib, Utilization: 25}, gpu.Process{PID: 2, Memory: gib,
		Utilization: -1})
	o.uses("GPU-two", gpu.Process{PID: 1, Memory: 2 * gib, Utilization: 50})
	const own = `gpu_dra_container_cores_requested_ratio{container=main,device=one,namespace=ns,pod=p,uuid=GPU-one} 0.3
gpu_dra_container_cores_requested_ratio{container=main,device=two,namespace=ns,pod=p,uuid=GPU-two} 1
gpu_dra_container_memory_requested_bytes{container=main,device=one,namespace=ns,pod=p,uuid=GPU-one} 5.36870912e+09
gpu_dra_container_memory_requested_bytes{container=main,device=two,namespace=ns,pod=p,uuid=GPU-two} 8.589934592e+10
gpu_dra_container_memory_used_bytes{container=init,device=one,namespace=ns,pod=p,uuid=GPU-one} 1.073741824e+09
gpu_dra_container_memory_used_bytes{container=main,device=one,namespace=ns,pod=p,uuid=GPU-one} 3.221225472e+09
gpu_dra_container_memory_used_bytes{container=main,device=two,namespace=ns,pod=p,uuid=GPU-two} 2.147483648e+09
gpu_dra_container_utilization_ratio{container=main,device=one,namespace=ns,pod=p,uuid=GPU-one} 0.25
gpu_dra_container_utilization_ratio{container=main,device=two,namespace=ns,pod=p,uuid=GPU-two} 0.5`
	const gpuManager = `container_gpu_memory_total{container_name=init,gpu_memory=gpu0,namespace=ns,node=node,pod_name=p} 1024
container_gpu_memory_total{container_name=init,gpu_memory=total,namespace=ns,node=node,pod_name=p} 1024
container_gpu_memory_total{container_name=main,gpu_memory=gpu0,namespace=ns,node=node,pod_name=p} 3072
container_gpu_memory_total{container_name=main,gpu_memory=gpu1,namespace=ns,node=node,pod_name=p} 2048
container_gpu_memory_total{container_name=main,gpu_memory=total,namespace=ns,node=node,pod_name=p} 5120
container_gpu_utilization{container_name=main,gpu=gpu0,namespace=ns,node=node,pod_name=p} 25
container_gpu_utilization{container_name=main,gpu=gpu1,namespace=ns,node=node,pod_name=p} 50
container_gpu_utilization{container_name=main,gpu=total,namespace=ns,node=node,pod_name=p} 75
container_request_gpu_memory{container_name=main,namespace=ns,node=node,pod_name=p,req_of_gpu_memory=total} 87040
container_request_gpu_utilization{container_name=main,namespace=ns,node=node,pod_name=p,req_of_gpu=total} 1.3`
	for _, row := range []struct {
		gpuManager bool
		want       string
	}{{false, own}, {true, gpuManager + "\n" + own}} {
		o.GPUManagerNames = row.gpuManager
		if got := gathered(t, o.Collector); got != row.want {
			t.Errorf("with gpu-manager's names %t: got\n%s\nwant\n%s", row.gpuManager, got, row.want)
		}
	}
}

// Two partitions of one GPU in a container are one series under the names of gpu-manager, which know only GPUs.
func TestGPUManagerNamesOfPartitions(t *testing.T) {
	of := func(device string, u used) usage {
		return usage{containerDevice: containerDevice{"ns", "p", "main", device}, used: &u}
	}
	got := gathered(t, prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		collectGPUManager(ch, "node", []usage{of("first", used{memory: gib, utilization: 10}),
			of("second", used{memory: 2 * gib, utilization: gpu.Unmeasured})})
	}))
	const want = `container_gpu_memory_total{container_name=main,gpu_memory=gpu0,namespace=ns,node=node,pod_name=p} 3072
container_gpu_memory_total{container_name=main,gpu_memory=total,namespace=ns,node=node,pod_name=p} 3072`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// gathered returns the series of a collector, sorted.
func gathered(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","),
				m.GetGauge().GetValue()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
