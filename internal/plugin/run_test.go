// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/kubelet"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

const driver = "gpu.nvidia.com"

type hardware struct {
	asked *atomic.Int32 // how often the toolkit was
}

func (h hardware) DriverAccess(context.Context) (gpu.Access, error) {
	h.asked.Add(1)
	return gpu.Access{Env: []string{"A=1"}}, nil
}

func (h hardware) Access(context.Context, gpu.Device) (gpu.Access, error) {
	h.asked.Add(1)
	return gpu.Access{Env: []string{"B=1"}}, nil
}

func (hardware) MemoryLimit(gpu.Device) (gpu.Access, error)                      { return gpu.Access{}, nil }
func (hardware) Set(context.Context, gpu.UUID, gpu.DesiredState) error           { return nil }
func (hardware) ComputeMode(context.Context, gpu.UUID) (gpu.ComputeMode, error)  { return "", nil }
func (hardware) CheckPlacement(context.Context, gpu.Placement) error             { return nil }
func (hardware) DestroyPartition(context.Context, gpu.Placement, gpu.UUID) error { return nil }

func (hardware) CreatePartition(context.Context, gpu.Placement, gpu.UUID) (gpu.UUID, error) {
	return "MIG-1", nil
}

// fakeKubelet calls a running plugin as the kubelet does.
type fakeKubelet struct {
	t         *testing.T
	dir       string
	installed atomic.Bool // whether the machine has its driver
	asked     atomic.Int32
	http      string
	proc      string // the proc file system
	client    *fake.Clientset
	observers []steps.Observer
	stop      func() // stops the plugin; run starts another one
}

func start(t *testing.T, objects ...runtime.Object) *fakeKubelet {
	t.Helper()
	// A socket's path must be short.
	dir, err := os.MkdirTemp("", "plugin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &fakeKubelet{t: t, dir: dir, http: freeAddress(t)}
	k.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}})
	var names atomic.Int32
	k.client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl) // the fake client would store the object of a dry run
		slice := create.Object.(*resourceapi.ResourceSlice)
		slice.Name = fmt.Sprint(slice.GenerateName, names.Add(1))
		return len(create.CreateOptions.DryRun) > 0, slice, nil
	})
	for _, c := range objects {
		if err := k.client.Tracker().Add(c); err != nil {
			t.Fatal(err)
		}
	}
	k.proc = t.TempDir() // without processes of containers
	if err := os.Mkdir(filepath.Join(k.proc, "self"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.proc, "self/mountinfo"), []byte("1 0 8:1 / / rw - ext4 / rw\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	k.run()
	return k
}

// run starts a plugin, which the end of the test stops.
func (k *fakeKubelet) run() {
	t, dir := k.t, k.dir
	t.Helper()
	before := inotify.Count(t)
	records, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	specs, err := cdi.NewSpecs(driver, filepath.Join(dir, "cdi"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- (&Plugin{
			Sockets: kubelet.Sockets{DriverName: driver, NodeName: "node", PluginDir: dir, RegistryDir: dir,
				CDIDir: filepath.Join(dir, "cdi"), Client: k.client},
			HTTPAddress: k.http, SweepPeriod: time.Hour, Proc: k.proc, Machine: machine{k}, Observers: k.observers,
			Preparer: claims.Preparer{BootID: "boot", Specs: specs, Records: records,
				Daemons: mps.Dir(filepath.Join(k.dir, "mps")), Hardware: hardware{}, Toolkit: hardware{&k.asked}},
		}).Run(ctx)
	}()
	k.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the plugin ended with %v", err)
		}
		k.eventually("inotify instances to be closed", func() error {
			if after := inotify.Count(t); after > before {
				return fmt.Errorf("%d are open, %d were before the plugin started", after, before)
			}
			return nil
		})
	})
	t.Cleanup(k.stop)
	k.eventually("sockets", func() error {
		_, err1 := os.Stat(filepath.Join(dir, driver+"-reg.sock"))
		_, err2 := os.Stat(filepath.Join(dir, "dra.sock"))
		return errors.Join(err1, err2)
	})
}

// machine are the GPUs of the machine, whose events are not watched.
type machine struct{ *fakeKubelet }

func (m machine) Discover(context.Context) (gpu.Discovery, error) {
	if !m.installed.Load() {
		return gpu.Discovery{}, errors.New("no driver at /nowhere")
	}
	device := gpu.Device{Name: "gpu-01-00-0", Type: gpu.TypeGPU, UUID: "GPU-1", NUMANode: gpu.NoNUMANode}
	return gpu.Discovery{Devices: []gpu.Device{device}, Answered: map[gpu.UUID]time.Time{"GPU-1": time.Now()}}, nil
}

func (machine) Users(context.Context, gpu.Device) ([]string, error)   { return nil, nil }
func (machine) Openers(context.Context, gpu.Device) ([]string, error) { return nil, nil }
func (machine) Processes(context.Context, gpu.Device) (gpu.Processes, error) {
	return gpu.Processes{}, nil
}
func (machine) DriverChanged() bool                    { return false }
func (machine) LibraryDir() string                     { return "" }
func (machine) Removed(gpu.Device) bool                { return false }
func (machine) Watch(context.Context, func(gpu.Event)) {}
func (machine) Recheck(gpu.UUID)                       {}
func (machine) Release(string)                         {}
func (machine) StopWatching(string)                    {}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (k *fakeKubelet) eventually(what string, check func() error) {
	k.t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, 5*time.Minute, true,
		func(context.Context) (bool, error) {
			last = check()
			return last == nil, nil
		})
	if err != nil {
		k.t.Fatalf("%s: %v", what, last)
	}
}

func (k *fakeKubelet) dial(socket string) *grpc.ClientConn {
	k.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (k *fakeKubelet) prepare(claim *resourceapi.ResourceClaim) string {
	k.t.Helper()
	answer, err := drapb.NewDRAPluginClient(k.dial("dra.sock")).NodePrepareResources(context.Background(),
		&drapb.NodePrepareResourcesRequest{
			Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}})
	if err != nil {
		return "error: " + err.Error()
	}
	one := answer.Claims[string(claim.UID)]
	if one.GetError() != "" {
		return "error: " + one.GetError()
	}
	var out []string
	for _, d := range one.GetDevices() {
		out = append(out, fmt.Sprintf("%v %s/%s %v", d.RequestNames, d.PoolName, d.DeviceName, d.CdiDeviceIds))
	}
	return strings.Join(out, "\n")
}

func (k *fakeKubelet) unprepare(ctx context.Context, uid string) error {
	k.t.Helper()
	answer, err := drapb.NewDRAPluginClient(k.dial("dra.sock")).NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "ns", Name: "c", Uid: uid}}})
	if err != nil {
		return err
	}
	if said := answer.Claims[uid].GetError(); said != "" {
		return errors.New(said)
	}
	return nil
}

// status returns status.devices of a claim as text.
func (k *fakeKubelet) status(claim string) string {
	c, err := k.client.ResourceV1().ResourceClaims("ns").Get(context.Background(), claim, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, d := range c.Status.Devices {
		line := d.Device
		for _, condition := range d.Conditions {
			line += fmt.Sprintf(" %s=%s %s", condition.Type, condition.Status, condition.Reason)
		}
		if d.Data != nil {
			line += " " + string(d.Data.Raw)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (k *fakeKubelet) readyz() string {
	answer, err := http.Get("http://" + k.http + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(string(body)))
}

func (k *fakeKubelet) published() string {
	list, err := k.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			name := s.Spec.Pool.Name + "/" + d.Name
			for _, taint := range d.Taints {
				name += ":" + string(taint.Effect)
			}
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The toolkit is asked of the driver and of each GPU before there is a claim, so that the first one does not wait.
func TestToolkitIsAskedBeforeTheFirstClaim(t *testing.T) {
	t.Parallel()
	k := start(t)
	k.installed.Store(true)
	k.eventually("the toolkit to be asked", func() error {
		if got := k.asked.Load(); got < 2 {
			return fmt.Errorf("it was asked %d times, want 2", got)
		}
		return nil
	})
}

// Before NVIDIA's driver is installed, claims can be released but not prepared, and the error says why. After the
// installation, the plugin recovers by itself.
func TestDriverInstalledLate(t *testing.T) {
	t.Parallel()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r/sub", Driver: driver, Pool: "node",
			Device: "gpu-01-00-0"}}}}
	k := start(t, claim)

	k.eventually("the reason on /readyz", func() error {
		if got, want := k.readyz(), "503 waiting: no driver at /nowhere"; got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	if got, want := k.prepare(claim), "error: not ready: no driver at /nowhere"; got != want {
		t.Errorf("prepare without a driver: got %q, want %q", got, want)
	}
	if err := k.unprepare(t.Context(), "u"); err != nil {
		t.Errorf("unprepare without a driver: %v", err)
	}
	k.eventually("the reason in the claim's status", func() error {
		if got, want := k.status("c"), "gpu-01-00-0 Ready=False PrepareFailed"; got != want {
			return fmt.Errorf("got  %s\nwant %s", got, want)
		}
		return nil
	})
	if got := k.published(); got != "" {
		t.Errorf("published without a driver: %s", got)
	}

	k.installed.Store(true)
	k.eventually("devices", func() error {
		if got, want := k.published(), "node/gpu-01-00-0 node/monitor/monitor"; got != want {
			return fmt.Errorf("published %q, want %q", got, want)
		}
		return nil
	})
	want := "[r] node/gpu-01-00-0 [k8s.gpu.nvidia.com/claim=u-gpu-01-00-0 k8s.gpu.nvidia.com/driver=common " +
		"gpu.nvidia.com/metadata=u_r]"
	if got := k.prepare(claim); got != want {
		t.Errorf("prepare:\ngot  %s\nwant %s", got, want)
	}
	k.eventually("the claim's status", func() error {
		if got, want := k.status("c"),
			`gpu-01-00-0 Ready=True Prepared {"cdiDevices":["k8s.gpu.nvidia.com/driver=common","k8s.gpu.nvidia.com/claim=u-gpu-01-00-0"],"uuid":"GPU-1"}`; got != want {
			return fmt.Errorf("got  %s\nwant %s", got, want)
		}
		return nil
	})
	if got, want := k.readyz(), "503 waiting for the kubelet to register the plugin"; got != want {
		t.Errorf("before registration: got %q, want %q", got, want)
	}
	if _, err := registerapi.NewRegistrationClient(k.dial(driver+"-reg.sock")).NotifyRegistrationStatus(
		context.Background(),
		&registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	if got, want := k.readyz(), "200 ok"; got != want {
		t.Errorf("in the end: got %q, want %q", got, want)
	}
	if err := k.unprepare(t.Context(), "u"); err != nil {
		t.Errorf("unprepare: %v", err)
	}
	k.eventually("metrics", func() error {
		return k.hasMetrics(
			`gpu_dra_operations_total{operation="prepare",result="error"} 1`,
			`gpu_dra_operations_total{operation="prepare",result="success"} 1`,
			`gpu_dra_operations_total{operation="unprepare",result="success"} 2`,
			`gpu_dra_operation_duration_seconds_count{operation="prepare"} 2`,
			`gpu_dra_operations_in_flight{operation="prepare"} 0`,
			`gpu_dra_step_duration_seconds_count{step="write_record"} 1`,
			`gpu_dra_lock_wait_seconds_count [34]`, // 4: the plugin has looked after the prepared claim
			`gpu_dra_devices{state="published"} 2`,
			`gpu_dra_devices{state="tainted"} 0`,
			`gpu_dra_claims{phase="Prepared"} 0`,
		)
	})
}

// TestMetadataIsRequired: a claim is not prepared while its device metadata cannot be written.
func TestMetadataIsRequired(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "node",
			Device: "gpu-01-00-0"}}}}
	k := start(t, claim)
	k.installed.Store(true)
	metadata := filepath.Join(k.dir, metadataDir)
	if err := errors.Join(os.RemoveAll(metadata), os.WriteFile(metadata, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	k.eventually("the error of prepare", func() error {
		if got := k.prepare(claim); !strings.HasPrefix(got, "error: write the device metadata of claim u: mkdir ") {
			return errors.New(got)
		}
		return nil
	})
	if err := os.Remove(metadata); err != nil {
		t.Fatal(err)
	}
	if got := k.prepare(claim); !strings.Contains(got, "gpu.nvidia.com/metadata=u_r]") {
		t.Errorf("prepare when there is one again: got %s", got)
	}
}

// TestMetadataOfALaterClaim: a claim that is released takes no metadata of a prepared one with the same name.
func TestMetadataOfALaterClaim(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "later"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "node",
			Device: "gpu-01-00-0"}}}}
	k := start(t, claim)
	k.installed.Store(true)
	k.eventually("prepare", func() error {
		if got := k.prepare(claim); !strings.Contains(got, "gpu.nvidia.com/metadata=later_r]") {
			return errors.New(got)
		}
		return nil
	})
	for _, row := range []struct {
		release string
		want    error
	}{{"earlier", nil}, {"later", fs.ErrNotExist}, {"later", fs.ErrNotExist}} {
		if err := k.unprepare(t.Context(), row.release); err != nil {
			t.Errorf("%s is released: %v", row.release, err)
		}
		_, err := os.Stat(filepath.Join(k.dir, metadataDir, "ns_c/r/metadata.json"))
		if !errors.Is(err, row.want) {
			t.Errorf("%s is released: got error %v of the metadata, want %v", row.release, err, row.want)
		}
	}
}

// TestKilledWhileReleasing: the plugin is killed when it has removed the metadata of a claim with which a container
// still runs. The next plugin waits for that container, and writes the metadata again if the claim is prepared again.
func TestKilledWhileReleasing(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "node",
			Device: "gpu-01-00-0"}}}}
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("the pod starts again: %t", again), func(t *testing.T) {
			k := start(t, claim)
			k.installed.Store(true)
			k.stop()
			var killed atomic.Bool
			k.observers = []steps.Observer{func(ctx context.Context, name string,
				do func(context.Context) error) error {
				if killed.Load() && name == steps.FindUsers {
					return errors.Join(do(ctx), errors.New("killed"))
				}
				return do(ctx)
			}}
			k.run()
			prepare := func() {
				t.Helper()
				k.eventually("prepare", func() error {
					if got := k.prepare(claim); !strings.Contains(got, "gpu.nvidia.com/metadata=u_r]") {
						return errors.New(got)
					}
					return nil
				})
			}
			prepare()
			file := filepath.Join(k.dir, metadataDir, "ns_c/r/metadata.json")
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			mount, err := os.Open(file) // holds its directory entry, as the mount of the container does
			if err != nil {
				t.Fatal(err)
			}
			defer mount.Close()
			killed.Store(true)
			if err := k.unprepare(t.Context(), "u"); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("killed: got error %v", err)
			}
			k.stop()
			killed.Store(false)
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("got error %v of the metadata, want %v", err, fs.ErrNotExist)
			}
			process := filepath.Join(k.proc, "7")
			err = os.Mkdir(process, 0o755)
			for name, text := range map[string]string{"cgroup": "0::/kubepods.slice/kubepods-pod0f.slice\n",
				"mountinfo": "1 0 8:1 " + file + "//deleted /x rw - ext4 / rw\n"} {
				err = errors.Join(err, os.WriteFile(filepath.Join(process, name), []byte(text), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}

			k.run()
			if again {
				prepare()
				if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
					t.Errorf("prepared again: got metadata %q, error %v, want %q", after, err, before)
				}
			}
			short, cancel := context.WithTimeout(t.Context(), 5*time.Second) // of which a call waits the first
			defer cancel()
			if err := k.unprepare(short, "u"); err == nil {
				t.Error("released while a container runs")
			}
			if err := os.RemoveAll(process); err != nil {
				t.Fatal(err)
			}
			if err := k.unprepare(t.Context(), "u"); err != nil {
				t.Errorf("not released when it has ended: %v", err)
			}
			left, _ := filepath.Glob(filepath.Join(k.dir, metadataDir, "*"))
			specs, _ := filepath.Glob(filepath.Join(k.dir, "cdi", "*_u*"))
			records, _ := filepath.Glob(filepath.Join(k.dir, "claims", "*"))
			if left = slices.Concat(left, specs, records); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// hasMetrics fails unless each regular expression matches a line of the metrics.
func (k *fakeKubelet) hasMetrics(want ...string) error {
	answer, err := http.Get("http://" + k.http + "/metrics")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var missing []error
	for _, line := range want {
		if !regexp.MustCompile("(?m)^" + line + "$").Match(body) {
			missing = append(missing, fmt.Errorf("no line %s", line))
		}
	}
	for _, found := range regexp.MustCompile(`step="(\w*)"`).FindAllStringSubmatch(string(body), -1) {
		if steps.Meanings[found[1]] == "" && found[1] != "divide_gpu" && found[1] != "merge_partitions" {
			missing = append(missing, fmt.Errorf("step %s is not described in Steps", found[1]))
		}
	}
	return errors.Join(missing...)
}
