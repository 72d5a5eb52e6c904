// SPDX-License-Identifier: Apache-2.0

package plugin

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

// lister is the kubelet's list of containers.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	pods  []*podresources.PodResources
	asked atomic.Int32
}

func (l *lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	l.asked.Add(1)
	return &podresources.ListPodResourcesResponse{PodResources: l.pods}, nil
}

// office is everything that figures ask.
type office struct {
	*figures
	t         *testing.T
	dir       string
	kubelet   *lister
	client    *fake.Clientset
	processes map[gpu.UUID]func() ([]gpu.Process, error)
}

// newOffice has GPUs of 80 GiB: one, two, and rep, which is replicated 4 times.
func newOffice(t *testing.T) *office {
	t.Helper()
	dir, err := os.MkdirTemp("", "figures") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	o := &office{t: t, dir: dir, kubelet: &lister{}, client: fake.NewClientset(), processes: map[gpu.UUID]func() ([]gpu.Process, error){}}
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
		devices = append(devices, gpu.Device{Name: name, Type: gpu.TypeGPU, UUID: gpu.UUID("GPU-" + name), Memory: 80 * gib, Index: i})
	}
	devices[2].Use = gpu.Use{Sharing: gpu.Replicated, Replicas: 4, Isolation: gpu.IsolationNone}
	inv := inventory.New(devices)
	config := Config{NodeName: "node", PodResources: socket, Records: records, Client: o.client, Proc: filepath.Join(dir, "proc"),
		Processes: func(d gpu.Device) ([]gpu.Process, error) {
			if answer := o.processes[d.UUID]; answer != nil {
				return answer()
			}
			return nil, nil
		}}
	o.figures = newFigures(config, func() inventory.Inventory { return inv }, newMetrics(records))
	o.failures.Reset()
	return o
}

// claim records a claim. Each device is [REQUEST=]DEVICE[:SHARE], with a share like 5Gi/30 or 2x, or "admin".
func (o *office) claim(name string, devices ...string) {
	o.t.Helper()
	rec := checkpoint.Record{Phase: checkpoint.Prepared, Claim: sharing.Claim{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)}}
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
		rec.Plan.Assignments = append(rec.Plan.Assignments, a)
		rec.Grants = append(rec.Grants, checkpoint.Grant{Request: request, Pool: "node", Device: a.Device, ShareID: a.ShareID,
			CDI: []string{"k8s.gpu.nvidia.com/driver=common", o.cdi(rec.Claim, a)}})
	}
	if err := o.records.(*checkpoint.Records).Put(rec); err != nil {
		o.t.Fatal(err)
	}
}

func (o *office) cdi(claim sharing.Claim, a sharing.Assignment) string {
	return strings.TrimSuffix(fmt.Sprintf("k8s.gpu.nvidia.com/claim=%s-%s-%s", claim.UID, a.Device, a.ShareID), "-")
}

func (o *office) scan(text, format string, into ...any) {
	o.t.Helper()
	if _, err := fmt.Sscanf(text, format, into...); err != nil {
		o.t.Fatal(text, err)
	}
}

// pod runs a pod with the UID uid-of-<name>. Each container is NAME=CLAIM[/REQUEST][+CLAIM[/REQUEST]].
func (o *office) pod(name string, containers ...string) {
	o.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)}}
	listed := &podresources.PodResources{Namespace: "ns", Name: name}
	for _, text := range containers {
		container, uses, _ := strings.Cut(text, "=")
		spec := corev1.Container{Name: container}
		resources := &podresources.ContainerResources{Name: container}
		for _, use := range strings.Split(uses, "+") {
			claim, request, _ := strings.Cut(use, "/")
			spec.Resources.Claims = append(spec.Resources.Claims, corev1.ResourceClaim{Name: "my-" + claim, Request: request})
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "my-" + claim, ResourceClaimName: &claim})
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

// resource is what the kubelet says of a claim: for each device it repeats those before.
func (o *office) resource(claim string) *podresources.DynamicResource {
	dynamic := &podresources.DynamicResource{ClaimName: claim, ClaimNamespace: "ns"}
	rec, err := o.records.(*checkpoint.Records).Get(types.UID("uid-of-" + claim))
	if errors.Is(err, checkpoint.ErrNotFound) {
		dynamic.ClaimResources = []*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{{Name: "k8s.other/claim=" + claim}}}}
		return dynamic
	}
	if err != nil {
		o.t.Fatal(err)
	}
	var devices []*podresources.CDIDevice
	for _, g := range rec.Grants {
		for _, name := range g.CDI {
			devices = append(devices, &podresources.CDIDevice{Name: name})
		}
		dynamic.ClaimResources = append(dynamic.ClaimResources, &podresources.ClaimResource{CdiDevices: devices})
	}
	return dynamic
}

// process runs a process of a container, or of none.
func (o *office) process(pid int, pod, container string) {
	o.t.Helper()
	text := "21 20 0:20 / / rw,relatime - overlay overlay rw\n"
	if pod != "" {
		text += "22 21 8:1 /lib/kubelet/pods/uid-of-" + pod + "/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n" +
			"23 21 8:1 /lib/kubelet/pods/uid-of-" + pod + "/containers/" + container + "/0a1b2c3d /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"
	}
	o.file(pid, text)
}

func (o *office) file(pid int, mountinfo string) {
	o.t.Helper()
	dir := filepath.Join(o.usage.proc, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		o.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(mountinfo), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

// spoil makes the record of a claim unreadable.
func (o *office) spoil(claim string) {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, "state", "claims", "uid-of-"+claim+".json"), []byte("?"), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *office) uses(id gpu.UUID, processes ...gpu.Process) {
	o.processes[id] = func() ([]gpu.Process, error) { return processes, nil }
}

// text is the figures of now: memory in GiB and cores in percent as requested, then as used; "?" is unknown. Then the failures.
func (o *office) text() string {
	o.at = time.Time{}
	var lines []string
	for _, one := range o.current() {
		want, has := "-", "?"
		if r := one.requested; r != nil {
			want = fmt.Sprintf("%d/%d", r.memory/gib, r.cores)
		}
		if u := one.used; u != nil {
			has = strings.ReplaceAll(fmt.Sprintf("%d/%d", u.memory/max(1, min(u.memory, gib)), u.utilization), "-1", "?")
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s %s %s %s", one.namespace, one.pod, one.container, one.device, want, has))
	}
	return strings.Join(append(lines, o.failed()...), "\n")
}

// failed are the sources that failed, and how often since the last time.
func (o *office) failed() []string {
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

func TestFigures(t *testing.T) {
	boom := errors.New("boom")
	for _, row := range []struct {
		name string
		do   func(o *office)
		want string
	}{
		{"nobody has a GPU", func(o *office) { o.pod("p", "main=other") }, ""},
		{"a whole GPU", func(o *office) { o.claim("a", "one"); o.pod("p", "main=a") }, "ns/p main one 80/100 0/0"},
		{"two", func(o *office) { o.claim("a", "one", "two"); o.pod("p", "main=a") }, "ns/p main one 80/100 0/0\nns/p main two 80/100 0/0"},
		{"fractions", func(o *office) {
			o.claim("a", "one:5Gi/30")
			o.claim("b", "one:6Gi/0")
			o.pod("p", "main=a")
			o.pod("q", "main=b")
		}, "ns/p main one 5/30 0/0\nns/q main one 6/0 0/0"},
		{"two fractions of a GPU in one container are one figure", func(o *office) {
			o.claim("a", "one:5Gi/30", "one:6Gi/10")
			o.pod("p", "main=a")
		}, "ns/p main one 11/40 0/0"},
		{"a replica is an equal part", func(o *office) { o.claim("a", "rep:2x"); o.pod("p", "main=a") }, "ns/p main rep 40/50 0/0"},
		{"a replica of a GPU that has none any more", func(o *office) { o.claim("a", "one:1x"); o.pod("p", "main=a") }, ""},
		{"a GPU that is not known any more", func(o *office) { o.claim("a", "gone"); o.pod("p", "main=a") }, ""},
		{"containers that share a claim", func(o *office) { o.claim("a", "one"); o.pod("p", "main=a", "side=a") },
			"ns/p main one 80/100 0/0\nns/p side one 80/100 0/0"},
		{"containers that name requests", func(o *office) {
			o.claim("a", "x=one", "y/small=two")
			o.pod("p", "both=a", "first=a/x", "second=a/y", "named=a/x+a/y")
		}, "ns/p both one 80/100 0/0\nns/p both two 80/100 0/0\nns/p first one 80/100 0/0\nns/p named one 80/100 0/0\nns/p named two 80/100 0/0\nns/p second two 80/100 0/0"},
		{"of which the API server knows nothing", func(o *office) {
			o.claim("a", "x=one", "y=two")
			o.claim("b", "rep:1x")
			o.pod("p", "main=a")
			o.pod("q", "main=b")
			o.client.PrependReactor("get", "pods", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, boom })
		}, "ns/q main rep 20/25 0/0\npods failed"},
		{"who looks after GPUs has requested nothing", func(o *office) {
			o.claim("a", "one:admin")
			o.claim("b", "monitor:admin")
			o.pod("p", "main=a+b")
		}, ""},
		{"but uses what it uses", func(o *office) {
			o.claim("a", "monitor:admin")
			o.pod("p", "main=a")
			o.process(7, "p", "main")
			o.uses("GPU-two", gpu.Process{PID: 7, Memory: gib, Utilization: 1})
		}, "ns/p main two - 1/1"},
		{"processes", func(o *office) {
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
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: 2 * gib, Utilization: 10}, gpu.Process{PID: 2, Memory: gib, Utilization: 20},
				gpu.Process{PID: 3, Memory: gib}, gpu.Process{PID: 4, Memory: 4 * gib, Utilization: 70},
				gpu.Process{PID: 5, Memory: gib}, gpu.Process{PID: 6, Memory: gib}, gpu.Process{PID: 77, Memory: gib})
		}, "ns/p main one 5/30 3/30\nns/p side one 5/30 1/0\nns/q main one 6/0 4/70"},
		{"an init container", func(o *office) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.process(1, "p", "init")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: 2 * gib})
		}, "ns/p init one - 2/0\nns/p main one 80/100 0/0"},
		{"what is not told of one process is not known of its container", func(o *office) {
			o.claim("a", "one")
			o.pod("p", "main=a", "side=a")
			o.process(1, "p", "main")
			o.process(2, "p", "main")
			o.process(3, "p", "side")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: -1, Utilization: 5}, gpu.Process{PID: 2, Memory: gib, Utilization: -1}, gpu.Process{PID: 3, Memory: gib, Utilization: -1})
		}, "ns/p main one 80/100 ?/?\nns/p side one 80/100 1/?"},
		{"a GPU that cannot tell", func(o *office) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.processes["GPU-one"] = func() ([]gpu.Process, error) { return nil, fmt.Errorf("GPU-one: %w", gpu.ErrUnmeasured) }
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0"},
		{"a GPU that fails", func(o *office) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.processes["GPU-one"] = func() ([]gpu.Process, error) { return nil, boom }
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\nnvml failed"},
		{"processes of nobody knows whom", func(o *office) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			o.process(1, "p", "main")
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
			o.client.PrependReactor("get", "pods", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, boom })
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\npods failed"},
		{"a proc that cannot be read", func(o *office) {
			o.claim("a", "one", "two")
			o.pod("p", "main=a")
			if err := os.MkdirAll(filepath.Join(o.usage.proc, "1", "mountinfo"), 0o755); err != nil {
				o.t.Fatal(err)
			}
			o.uses("GPU-one", gpu.Process{PID: 1, Memory: gib})
		}, "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\nproc failed"},
		{"use is not measured", func(o *office) {
			o.claim("a", "one")
			o.pod("p", "main=a")
			o.usage = nil
		}, "ns/p main one 80/100 ?"},
		{"a kubelet that does not answer", func(o *office) { o.figures.kubelet = "/nobody.sock" }, "kubelet failed"},
		{"a record that nobody can read", func(o *office) {
			o.claim("a", "one")
			o.claim("b", "two")
			o.pod("p", "main=a", "side=b")
			o.spoil("b")
		}, "ns/p main one 80/100 0/0\nrecords failed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := newOffice(t)
			row.do(o)
			if got := o.text(); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// A scrape soon after another costs nothing, and a container that has ended has no figures.
func TestFiguresOfEndedContainersVanish(t *testing.T) {
	o := newOffice(t)
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

// A pod is asked about once, also when processes of others use its GPU.
func TestFiguresAskAboutAPodOnce(t *testing.T) {
	o := newOffice(t)
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

// A pod with the name and the claim of the one before is another one.
func TestFiguresOfAPodThatWasReplaced(t *testing.T) {
	o := newOffice(t)
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

// A GPU that hangs takes its own figures only, is waited for once, and is asked again when it has answered.
func TestFiguresOfAGPUThatHangs(t *testing.T) {
	o := newOffice(t)
	o.claim("a", "one", "two")
	o.pod("p", "main=a")
	answer, answered := make(chan struct{}), make(chan struct{})
	o.processes["GPU-one"] = func() ([]gpu.Process, error) {
		<-answer
		defer close(answered)
		return nil, nil
	}
	const hangs = "ns/p main one 80/100 ?\nns/p main two 80/100 0/0\nnvml failed"
	for _, atMost := range []time.Duration{2 * usageTimeout, usageTimeout / 2} {
		begin := time.Now()
		if got := o.text(); !strings.HasPrefix(got, hangs) {
			t.Errorf("got\n%s\nwant\n%s", got, hangs)
		}
		if took := time.Since(begin); took > atMost {
			t.Errorf("took %s", took)
		}
	}
	close(answer)
	<-answered
	o.uses("GPU-one")
	for deadline := time.Now().Add(5 * time.Second); ; {
		got, want := o.text(), "ns/p main one 80/100 0/0\nns/p main two 80/100 0/0"
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	}
}

func TestFigureNames(t *testing.T) {
	o := newOffice(t)
	o.claim("a", "one:5Gi/30", "two")
	o.pod("p", "main=a")
	o.process(1, "p", "main")
	o.process(2, "p", "init")
	o.uses("GPU-one", gpu.Process{PID: 1, Memory: 3 * gib, Utilization: 25}, gpu.Process{PID: 2, Memory: gib, Utilization: -1})
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
		o.gpuManagerNames = row.gpuManager
		if got := gathered(t, o.figures); got != row.want {
			t.Errorf("with gpu-manager's names %t: got\n%s\nwant\n%s", row.gpuManager, got, row.want)
		}
	}
}

// gathered are the series of a collector, in order.
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
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), m.GetGauge().GetValue()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestContainerOf(t *testing.T) {
	o := newOffice(t)
	const line = "1 2 8:1 %s /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"
	for i, row := range []struct{ name, root, want string }{
		{"the usual place", "/var/lib/kubelet/pods/0f/containers/main/1a2b", "0f main true"},
		{"a file system of the kubelet's own", "/pods/0f/containers/main/1a2b", "0f main true"},
		{"somebody has removed it", "/pods/0f/containers/main/1a2b//deleted", "0f main true"},
		{"another file of the pod", "/var/lib/kubelet/pods/0f/etc-hosts", "  false"},
		{"a volume that looks like it", "/var/lib/kubelet/pods/0f/volumes/containers/main/1a2b", "  false"},
		{"a directory above", "/var/lib/kubelet/pods/0f/containers/main", "  false"},
		{"a program's own", "/srv/mypods/0f/containers/main/1a2b", "  false"},
	} {
		o.file(i, "9 1 0:20 / / rw - overlay overlay rw\n"+fmt.Sprintf(line, row.root))
		pod, container, ok, err := o.usage.containerOf(i)
		if got := fmt.Sprint(pod, " ", container, " ", ok); got != row.want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", row.name, got, err, row.want)
		}
	}
}
