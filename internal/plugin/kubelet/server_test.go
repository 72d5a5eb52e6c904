// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// A claim that cannot be prepared does not fail the other claims of the call.
func TestPrepareFailsPerClaim(t *testing.T) {
	s := &Server{
		Preparer: preparer{}, Metrics: report.NewMetrics(nil), Node: &gpus{},
		Reporter: report.NewReporter(t.Context(), report.ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
			Client: fake.NewClientset()}),
	}
	good := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "good"}}
	bad := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "bad"}}
	answer, err := s.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{bad, good})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer) != 2 || !errors.Is(answer["bad"].Err, errBad) || answer["good"].Err != nil ||
		len(answer["good"].Devices) != 1 {
		t.Errorf("got %+v", answer)
	}
}

// A claim whose metadata no directory can have is refused before anything changes.
func TestLongName(t *testing.T) {
	s := &Server{Preparer: preparer{}, Metrics: report.NewMetrics(nil), Node: &gpus{}}
	for length, refused := range map[int]bool{maxClaimName - 63: false, maxClaimName - 62: true} {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "good",
			Namespace: strings.Repeat("n", 63), Name: strings.Repeat("c", length)}}
		_, err := s.prepare(t.Context(), claim)
		if (err != nil) != refused ||
			refused && !strings.Contains(err.Error(), "have 255 characters, and at most 254") {
			t.Errorf("a name of %d characters: got %v", length, err)
		}
		err = os.Mkdir(filepath.Join(t.TempDir(), claim.Namespace+"_"+claim.Name), 0o755)
		if (err != nil) != refused {
			t.Errorf("its directory: got %v", err)
		}
	}
}

// A pod ends although settings of its GPUs cannot be restored yet. Other errors keep it.
func TestUnprepareFailsPerClaim(t *testing.T) {
	s := &Server{Preparer: preparer{}, Metrics: report.NewMetrics(nil), Node: &gpus{},
		Reporter: report.NewReporter(t.Context(), report.ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
			Client: fake.NewClientset()}),
	}
	answer, err := s.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "good"}, {UID: "bad"},
		{UID: "not restored"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer) != 3 || !errors.Is(answer["bad"], errBad) || answer["good"] != nil || answer["not restored"] != nil {
		t.Errorf("got %v", answer)
	}
}

func TestNoticeRegistration(t *testing.T) {
	for _, row := range []struct {
		name    string
		request any
		want    int
	}{
		{"registered", &registerapi.RegistrationStatus{PluginRegistered: true}, 1},
		{"refused", &registerapi.RegistrationStatus{Error: "no"}, 0},
		{"another call", &drapb.NodePrepareResourcesRequest{}, 0},
	} {
		node := &gpus{}
		s := &Server{Node: node}
		answer, err := s.noticeRegistration(t.Context(), row.request, nil,
			func(context.Context, any) (any, error) { return "answer", errBad })
		if got := node.registered; got != row.want || answer != "answer" || !errors.Is(err, errBad) {
			t.Errorf("%s: noticed %d times, want %d; got answer %v, %v", row.name, got, row.want, answer, err)
		}
	}
}

// gpus are known from the start, and have always the same health.
type gpus struct {
	reports    []health.DeviceReport
	registered int
}

func (*gpus) Inventory() inventory.Inventory { return nil }

func (*gpus) Ready() <-chan struct{} {
	ready := make(chan struct{})
	close(ready)
	return ready
}

func (g *gpus) Registered() { g.registered++ }

func (g *gpus) Prepared([]string) {}

func (g *gpus) Released() {}

func (g *gpus) ServeHealth(_ context.Context, send func([]health.DeviceReport) bool) {
	for send(g.reports) {
	}
}

var errBad = errors.New("bad")

// One claim is released in the goroutine of the call.
func TestUnprepareOneClaim(t *testing.T) {
	s := &Server{Preparer: sameGoroutine{t: t}, Metrics: report.NewMetrics(nil), Node: &gpus{},
		Reporter: report.NewReporter(t.Context(), report.ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
			Client: fake.NewClientset()}),
	}
	answer, err := s.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "one"}})
	if released, answered := answer["one"]; err != nil || released != nil || !answered {
		t.Errorf("got %v, %v", answer, err)
	}
}

// sameGoroutine fails the test if another goroutine calls Unprepare.
type sameGoroutine struct {
	preparer
	t *testing.T
}

func (p sameGoroutine) Unprepare(context.Context, sharing.Claim) error {
	if stack := string(debug.Stack()); !strings.Contains(stack, p.t.Name()+"(") {
		p.t.Errorf("another goroutine releases the claim:\n%s", stack)
	}
	return nil
}

type preparer struct{}

func (preparer) Prepare(_ context.Context, claim *resourceapi.ResourceClaim) (checkpoint.PreparedClaim, error) {
	if claim.UID == "bad" {
		return checkpoint.PreparedClaim{}, errBad
	}
	return checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Request: "r", Pool: "p",
		Device: "d"}}}}, nil
}

func (preparer) Unprepare(_ context.Context, claim sharing.Claim) error {
	notRestored := fmt.Errorf("%w: because", claims.ErrNotRestored)
	return map[types.UID]error{"bad": errBad, "not restored": notRestored}[claim.UID]
}
