// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

func assigned(pool, device string) checkpoint.Record {
	return checkpoint.Record{Plan: sharing.Plan{Assignments: []sharing.Assignment{
		{Pool: pool, Device: device, AdminAccess: device == inventory.Monitor}}}}
}

// changingRecords are the records at this moment.
type changingRecords struct {
	now []checkpoint.Record
	err error
}

func (c *changingRecords) List() ([]checkpoint.Record, error) { return c.now, c.err }

func slice(pool string, devices ...string) runtime.Object {
	s := &resourceapi.ResourceSlice{}
	s.Name = "slice-of-" + strings.ReplaceAll(pool, "/", "-")
	s.Spec.Pool.Name = pool
	for _, name := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: name})
	}
	return s
}

func TestOldMonitorStays(t *testing.T) {
	before := slice("node", "gpu-0", "monitor") // the version without a pool for the monitor
	after := []runtime.Object{slice("node", "gpu-0"), slice("node/monitor", "monitor")}
	for _, row := range []struct {
		name      string
		published []runtime.Object
		records   []checkpoint.Record
		err       error
		first     bool // its answers: at the start, and after the grace
		later     bool
	}{
		{name: "a new node"},
		{name: "a restart", published: after},
		{name: "an upgrade", published: []runtime.Object{before}, first: true},
		{name: "an upgrade with a claim from the old pool", published: []runtime.Object{before},
			records: []checkpoint.Record{assigned("node", "monitor")}, first: true, later: true},
		{name: "a restart with such a claim", published: after,
			records: []checkpoint.Record{assigned("node", "monitor")}, first: true, later: true},
		{name: "a claim from the new pool", published: after,
			records: []checkpoint.Record{assigned("node/monitor", "monitor"), assigned("node", "gpu-0")}},
		{name: "records that cannot be read", published: after, err: errors.New("unreadable")},
		{name: "an upgrade with records that cannot be read", published: []runtime.Object{before},
			err: errors.New("unreadable"), first: true, later: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := &OldMonitor{Client: fake.NewClientset(row.published...), Driver: driver, NodeName: "node",
				Records: &changingRecords{row.records, row.err}}
			if got := o.Stays(t.Context()); got != row.first {
				t.Errorf("at the start: got %t, want %t", got, row.first)
			}
			if row.first && len(row.records) == 0 && time.Until(o.until) > oldMonitorGrace {
				t.Errorf("it stays until %s", o.until)
			}
			o.until = time.Now()
			if got := o.Stays(t.Context()); got != row.later {
				t.Errorf("after the grace: got %t, want %t", got, row.later)
			}
		})
	}
}

// The node is upgraded while a claim has the old device, and another one is on the way to it. Each is released later.
func TestPublisherKeepsOldMonitor(t *testing.T) {
	inv := inventory.New([]gpu.Device{{Name: "gpu-0", Type: gpu.TypeGPU}})
	client := fake.NewClientset(slice("node", "gpu-0", "monitor"))
	records := &changingRecords{now: []checkpoint.Record{assigned("node", "monitor")}}
	dir, server := t.TempDir(), learned(t, &oldServer{})
	synctest.Test(t, func(t *testing.T) {
		var published string
		monitor := &OldMonitor{Client: client, Driver: driver, NodeName: "node", Records: records}
		p, stop := startPublisher(t, dir, server, monitor, func(resources resourceslice.DriverResources) error {
			published = ""
			for _, s := range inventory.Slices(driver, "node", resources.Pools) {
				for _, d := range s.Spec.Devices {
					published += fmt.Sprintf("%s:%s%s ", s.Spec.Pool.Name, d.Name, traits(d))
				}
			}
			return nil
		})
		const with = "node:gpu-0 node:monitor shared NoSchedule node/monitor:monitor shared "
		const without = "node:gpu-0 node/monitor:monitor shared "
		for _, row := range []struct {
			name    string
			after   time.Duration
			records []checkpoint.Record
			want    string
		}{
			{"the upgrade", 0, records.now, with},
			{"the claim is released", time.Second, nil, with},
			{"the other one is prepared within the minute", 30 * time.Second,
				[]checkpoint.Record{assigned("node", "monitor")}, with},
			{"the minute is over", time.Minute, []checkpoint.Record{assigned("node", "monitor")}, with},
			{"the other one is released", time.Second, nil, without},
			{"a third one comes late", time.Minute, []checkpoint.Record{assigned("node", "monitor")}, with},
			{"the third one is released", time.Second, nil, without},
		} {
			time.Sleep(row.after)
			records.now = row.records
			p.Set(inv)
			synctest.Wait()
			if published != row.want {
				t.Errorf("%s: got\n%s\nwant\n%s", row.name, published, row.want)
			}
		}
		stop()
	})
}
