// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const driver = "gpu.nvidia.com"

// node fakes the kubelet's list of containers and the release of claims.
type node struct {
	podresources.UnimplementedPodResourcesListerServer
	running []string // UIDs of claims
	hangs   string   // the claim whose release hangs

	mu       sync.Mutex
	released []string // UIDs
	ended    int      // how often unused daemons were ended
}

func (n *node) EndUnusedDaemons(context.Context) error {
	n.ended++
	return nil
}

func (n *node) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse,
	error) {
	container := &podresources.ContainerResources{}
	for _, uid := range n.running {
		device := &podresources.CDIDevice{Name: "k8s.gpu.nvidia.com/claim=" + uid + "-gpu-1"}
		container.DynamicResources = append(container.DynamicResources, &podresources.DynamicResource{
			ClaimResources: []*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{device}}}})
	}
	return &podresources.ListPodResourcesResponse{
		PodResources: []*podresources.PodResources{{Containers: []*podresources.ContainerResources{container}}},
	}, nil
}

func (n *node) Release(ctx context.Context, claim sharing.Claim) error {
	if string(claim.UID) == n.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.released = append(n.released, string(claim.UID))
	return nil
}

func TestCleanup(t *testing.T) {
	allocated := func(name, uid, pool, device string) runtime.Object {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)}}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Pool: pool, Device: device}}}}
		return c
	}
	here := func(name, uid string) runtime.Object { return allocated(name, uid, "node", "gpu-1") }
	for _, row := range []struct {
		name     string
		objects  []runtime.Object
		device   string // of the record; empty: gpu-1
		running  []string
		cdi      string // claim with specs and without a record, that old
		age      time.Duration
		runs     int
		released string
	}{
		{name: "a claim in use stays", objects: []runtime.Object{here("a", "u")}, running: []string{"u"}, runs: 3},
		{name: "a claim whose containers have not started stays", objects: []runtime.Object{here("a", "u")}, runs: 3},
		{name: "a claim that is gone while its container runs stays", running: []string{"u"}, runs: 3},
		{name: "a claim that is gone with its containers is not released at once", runs: 1},
		{name: "but when it stays so", runs: 2, released: "u"},
		{name: "another claim of that name is not this one", objects: []runtime.Object{here("a", "u2")}, runs: 2,
			released: "u"},
		{name: "a claim whose devices were taken back is released",
			objects: []runtime.Object{&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
				Name: "a", UID: "u"}}}, runs: 2, released: "u"},
		{name: "so is one that lives on another node now",
			objects: []runtime.Object{allocated("a", "u", "other", "gpu-1")}, runs: 2, released: "u"},
		{name: "or on another GPU", objects: []runtime.Object{allocated("a", "u", "node", "gpu-2")}, runs: 2,
			released: "u"},
		{name: "a claim for the monitor device is in its own pool",
			objects: []runtime.Object{allocated("a", "u", "node/monitor", "monitor")}, device: "monitor", runs: 3},
		{name: "one of an older version is in the pool of the node",
			objects: []runtime.Object{allocated("a", "u", "node", "monitor")}, device: "monitor", runs: 3},
		{name: "one on another node is released",
			objects: []runtime.Object{allocated("a", "u", "other/monitor", "monitor")}, device: "monitor", runs: 2,
			released: "u"},
		{name: "no GPU is in the pool of the monitor device",
			objects: []runtime.Object{allocated("a", "u", "node/monitor", "gpu-1")}, runs: 2, released: "u"},
		{name: "old CDI specs without a record go", objects: []runtime.Object{here("a", "u")}, cdi: "o", age: time.Hour,
			runs: 1, released: "o"},
		{name: "so do those of a clock that was ahead", objects: []runtime.Object{here("a", "u")}, cdi: "o",
			age: -time.Hour, runs: 1, released: "o"},
		{name: "young ones may be on the way to a record", objects: []runtime.Object{here("a", "u")}, cdi: "o",
			age: time.Second, runs: 2},
		{name: "old ones with a record stay", objects: []runtime.Object{here("a", "u")}, cdi: "u", age: time.Hour,
			runs: 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := &node{running: row.running}
			s := newTestCleaner(t, n, row.objects...)
			if row.device != "" {
				rec, err := s.Records.Get("u")
				if err != nil {
					t.Fatal(err)
				}
				rec.Plan.Assignments[0].Device = row.device
				if err := s.Records.(*checkpoint.Records).Put(rec); err != nil {
					t.Fatal(err)
				}
			}
			if row.cdi != "" {
				writeSpec(t, s.cdi, row.cdi, row.age)
			}
			for range row.runs {
				if err := s.cleanUp(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(n.released, " "); got != row.released {
				t.Errorf("released %q, want %q", got, row.released)
			}
			if n.ended != row.runs {
				t.Errorf("unused daemons were ended %d times in %d runs", n.ended, row.runs)
			}
		})
	}
}

// By its name, the containers of a claim are found before it is released, also when a later claim has that name.
func TestCleanupWithALaterClaimOfTheSameName(t *testing.T) {
	later := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "later"}}
	later.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Pool: "node", Device: "gpu-2"}}}}
	n := &node{}
	s := newTestCleaner(t, n, later)
	if err := s.Records.(*checkpoint.Records).Put(checkpoint.PreparedClaim{
		Claim: sharing.Claim{Namespace: "ns", Name: "a", UID: "later"}, Phase: checkpoint.Prepared,
		Plan: sharing.Plan{Assignments: []sharing.Assignment{{Pool: "node", Device: "gpu-2"}}}}); err != nil {
		t.Fatal(err)
	}
	released := &claimsReleased{node: n}
	s.Releaser = released
	for range 2 {
		if err := s.cleanUp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []sharing.Claim{{Namespace: "ns", Name: "a", UID: "u"}}; !slices.Equal(released.claims, want) {
		t.Errorf("released %v, want %v", released.claims, want)
	}
}

// claimsReleased remembers the claims with their names.
type claimsReleased struct {
	*node
	claims []sharing.Claim
}

func (r *claimsReleased) Release(_ context.Context, claim sharing.Claim) error {
	r.claims = append(r.claims, claim)
	return nil
}

// A release that hangs does not block other claims.
func TestCleanupReleasesInParallel(t *testing.T) {
	n := &node{hangs: "u"}
	s := newTestCleaner(t, n)
	for i := range 20 {
		rec := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: fmt.Sprint("b", i),
			UID: types.UID(fmt.Sprint("u", i))},
			Phase: checkpoint.Prepared, Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-1"}}}}
		if err := s.Records.(*checkpoint.Records).Put(rec); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := s.cleanUp(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.cleanUp(ctx) }()
	for {
		n.mu.Lock()
		released := len(n.released)
		n.mu.Unlock()
		if released == 20 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of 20 claims released", released)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The period of a claim starts again after it was in use.
func TestCleanupPeriodStartsAgain(t *testing.T) {
	n := &node{}
	s := newTestCleaner(t, n)
	for _, running := range [][]string{nil, {"u"}, nil} {
		n.running = running
		if err := s.cleanUp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.released) > 0 {
		t.Errorf("released %v", n.released)
	}
}

// Nothing is released after an error of the kubelet or the API server.
func TestCleanupAfterErrors(t *testing.T) {
	n := &node{}
	s := newTestCleaner(t, n)
	s.Kubelet = filepath.Join(t.TempDir(), "nobody.sock")
	for range 3 {
		if err := s.cleanUp(t.Context()); err == nil || !strings.Contains(err.Error(), "ask the kubelet") {
			t.Errorf("got %v", err)
		}
	}
	if len(n.released) > 0 {
		t.Errorf("released %v", n.released)
	}
}

type testCleaner struct {
	*Cleaner
	cdi string
}

// newTestCleaner has one record, of the claim ns/a with UID u.
func newTestCleaner(t *testing.T, n *node, objects ...runtime.Object) testCleaner {
	t.Helper()
	dir, err := os.MkdirTemp("", "cleanup")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, n)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); _ = os.RemoveAll(dir) })

	records, err := checkpoint.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	rec := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "a", UID: "u"},
		Phase: checkpoint.Prepared,
		Plan:  sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-1"}}}}
	if err := records.Put(rec); err != nil {
		t.Fatal(err)
	}
	specs, err := cdi.NewSpecs(driver, filepath.Join(dir, "cdi"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Cleaner{Driver: driver, NodeName: "node", Client: fake.NewClientset(objects...),
		Records: records, Specs: specs, Kubelet: socket, Releaser: n}
	return testCleaner{s, filepath.Join(dir, "cdi")}
}

// What a plugin has left that was killed while it wrote a spec is removed.
func TestTemporarySpecs(t *testing.T) {
	s := newTestCleaner(t, &node{running: []string{"u"}})
	writeSpec(t, s.cdi, "u", 0)
	left, old := filepath.Join(s.cdi, "spec.1.tmp"), time.Now().Add(-time.Hour)
	if err := errors.Join(os.WriteFile(left, nil, 0o600), os.Chtimes(left, old, old)); err != nil {
		t.Fatal(err)
	}
	if err := s.cleanUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("got error %v, want the file to be gone", err)
	}
}

func writeSpec(t *testing.T, dir, uid string, age time.Duration) {
	t.Helper()
	specs, err := cdi.NewSpecs(driver, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := specs.WriteClaim(types.UID(uid), gpu.Access{},
		[]cdi.Device{{Name: "d", Access: gpu.Access{Env: []string{"A=1"}}}}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		when := time.Now().Add(-age)
		if err := os.Chtimes(f, when, when); err != nil {
			t.Fatal(err)
		}
	}
}
