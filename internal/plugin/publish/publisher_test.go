// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// startPublisher runs a Publisher that leads, until stop.
func startPublisher(t *testing.T, dir string, gates *Gates,
	publish func(map[string]inventory.Pool) error) (p *Publisher, stop func()) {
	t.Helper()
	p = New(PublisherConfig{Node: "node", Dir: dir, Client: newServer(), Readiness: report.NewReadiness(time.Minute)})
	p.Gates = gates
	p.control = func(_ context.Context, pools map[string]inventory.Pool) error { return publish(pools) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	return p, func() {
		cancel()
		<-ended
	}
}

// An inventory is published when it is new, when the API server no longer has it, and again after an error. What is the
// same is not even compared with the API server.
func TestPublisherPublishesChanges(t *testing.T) {
	one := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}})
	two := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}, {Name: "gpu-1", Type: gpu.TypeGPU}})
	dir, gates := t.TempDir(), learned(t, &oldServer{})
	synctest.Test(t, func(t *testing.T) {
		published := 0
		var failed error
		p, stop := startPublisher(t, dir, gates, func(map[string]inventory.Pool) error {
			published++
			return failed
		})
		for _, row := range []struct {
			name   string
			inv    inventory.Inventory
			stale  bool
			failed error
			want   int
		}{
			{"the first", one, false, nil, 1},
			{"the same", one, false, nil, 0},
			{"another", two, false, nil, 1},
			{"a kubelet has removed it", two, true, nil, 1},
			{"the same again", two, false, nil, 0},
			{"another one fails", one, false, errors.New("no"), 1},
			{"the one before", two, false, nil, 1},
			{"the same for the last time", two, false, nil, 0},
		} {
			published, failed = 0, row.failed
			if row.stale {
				p.Stale()
			}
			p.Set(row.inv)
			synctest.Wait()
			if published != row.want {
				t.Errorf("%s: published %d times, want %d", row.name, published, row.want)
			}
		}
		stop()
	})
}

// A sick GPU whose taint the API server drops stays published for the claim that holds it, and no longer.
func TestPublisherWithdrawsASickGPU(t *testing.T) {
	sick := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU, Lost: true}})
	dir, records := t.TempDir(), &changingRecords{now: []checkpoint.PreparedClaim{
		{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Pool: "node", Device: "gpu-0"}}}}}}
	gates := learned(t, &oldServer{gates: []string{"taints"}})
	gates.Records = records
	synctest.Test(t, func(t *testing.T) {
		var published []int // devices
		p, stop := startPublisher(t, dir, gates, func(pools map[string]inventory.Pool) error {
			published = append(published, len(pools["node"].Slices[0].Devices))
			return nil
		})
		for i := range 4 {
			if i == 2 {
				records.now = nil // the claim has ended
			}
			p.Set(sick)
			synctest.Wait()
		}
		if want := []int{1, 0}; !slices.Equal(published, want) {
			t.Errorf("got %v devices, want %v: with the claim, and once without it", published, want)
		}
		stop()
	})
}

// A field that the API server stores again is published again, although the devices are the same.
func TestPublisherPublishesFieldsAgain(t *testing.T) {
	sick := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU, Lost: true}})
	dir, gates := t.TempDir(), learned(t, &oldServer{gates: []string{"taints"}})
	all := Lacking{}
	synctest.Test(t, func(t *testing.T) {
		var published []int // devices
		p, stop := startPublisher(t, dir, gates, func(pools map[string]inventory.Pool) error {
			published = append(published, len(pools["node"].Slices[0].Devices))
			return nil
		})
		lacking := gates.Lacking()
		for _, lacks := range []Lacking{all, lacking, lacking, all, all} {
			gates.lacks.Store(&lacks)
			p.Set(sick)
			synctest.Wait()
		}
		if want := []int{1, 0, 1}; !slices.Equal(published, want) {
			t.Errorf("got %v devices, want %v", published, want)
		}
		stop()
	})
}

// changingRecords are the records at this moment.
type changingRecords struct{ now []checkpoint.PreparedClaim }

func (c *changingRecords) List() ([]checkpoint.PreparedClaim, error) { return c.now, nil }
