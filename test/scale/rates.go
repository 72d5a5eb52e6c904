// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

// rates are how many pods a second the scheduler binds on the nodes of one layout.
type rates struct {
	Layout string
	Nodes  int
	Fills  []fillRates
}

// fillRates are those with so many of the devices held.
type fillRates struct {
	Percent int
	None    []float64 // pods a second without claims, of each batch
	Kinds   []kindRates
}

// kindRates are those of a kind.
type kindRates struct {
	Kind       string
	PodsSecond []float64 // of each batch
	Ratio      []float64 // of each batch to the one without claims before it
}

// layout is what the nodes of a lab publish.
type layout struct {
	name     string
	devices  int // of a node that are held when it is full
	class    string
	shares   int // of each held GPU; 0: it is held as a whole
	kinds    []kind
	percents []int
	publish  func(ctx context.Context, l *lab, nodes int) (settle, error)
}

// settle returns when the nodes have changed what they publish to what claims leave free.
type settle func(context.Context) error

func noChange(context.Context) error { return nil }

const (
	// heldShares is how many shares the held GPUs have in layouts with shares.
	heldShares = 10
	tenShares  = ", ten shares on each held GPU"
)

var layouts = []layout{
	{name: "eight H100, partitions on demand", devices: 8, class: fleet.Driver, kinds: documented,
		percents: []int{0, 50, 95}, publish: publishH100(gpu.PartitionsOnDemand)},
	{name: "eight H100 without partitions", devices: 8, class: fleet.Driver, kinds: whole(),
		percents: []int{0, 50, 95}, publish: publishH100(gpu.PartitionsNone)},
	{name: "eight H100 with all partitions", devices: 8, class: fleet.Driver, kinds: documented,
		percents: []int{0, 50, 95}, publish: publishH100(gpu.PartitionsDynamic)},
	{name: "eight H100, partitions on demand" + tenShares, devices: 8, class: fleet.Driver, shares: heldShares,
		kinds: documented, percents: []int{50}, publish: publishH100(gpu.PartitionsOnDemand)},
	{name: "eight H100 without partitions" + tenShares, devices: 8, class: fleet.Driver, shares: heldShares,
		kinds: whole(), percents: []int{50}, publish: publishH100(gpu.PartitionsNone)},
	{name: "scheduler_perf: ten devices", devices: perfDevices, class: perfClass, kinds: perf,
		percents: []int{0, 50, 95}, publish: publishPerf(perfDevices)},
	{name: "scheduler_perf: 64 devices", devices: matchDevices, class: perfClass, kinds: perfMatch, percents: []int{0},
		publish: publishPerf(matchDevices)},
}

func publishH100(partitions gpu.Partitions) func(context.Context, *lab, int) (settle, error) {
	return func(ctx context.Context, l *lab, nodes int) (settle, error) {
		f, err := fleet.Start(ctx, l.plane.REST(), h100(nodes, partitions))
		return func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Second):
					if f.Settled() {
						return nil
					}
				}
			}
		}, err
	}
}

// h100 configures nodes of eight H100.
func h100(count int, partitions gpu.Partitions) fleet.Config {
	c := fleet.Config{Inert: true, OnDemand: partitions == gpu.PartitionsOnDemand}
	for i := range count {
		c.Nodes = append(c.Nodes, fleet.Node{Name: nodeName(i), Profile: "dgx-h100",
			Use: gpu.SharingMode{Partitions: partitions}})
	}
	return c
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// publishPerf publishes nodes as scheduler_perf does: one slice of devices, without what they have in common with
// GPUs. The attribute "match" is the same for the second half of the devices.
func publishPerf(devices int) func(context.Context, *lab, int) (settle, error) {
	return func(ctx context.Context, l *lab, nodes int) (settle, error) {
		var all errgroup.Group
		all.SetLimit(atOnce)
		for i := range nodes {
			all.Go(func() error {
				has := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("128"),
					corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110")}
				name := nodeName(i)
				_, err := l.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
					Labels: map[string]string{corev1.LabelHostname: name}},
					Status: corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{
						{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				_, err = l.client.ResourceV1().ResourceSlices().Create(ctx, perfSlice(name, devices),
					metav1.CreateOptions{})
				return err
			})
		}
		return noChange, all.Wait()
	}
}

func perfSlice(node string, devices int) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: resourceapi.ResourceSliceSpec{Driver: perfDriver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}}
	for i := range devices {
		match := "same"
		if i < devices/2 {
			match = fmt.Sprint("other-", i)
		}
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprint("device-", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"family": {StringValue: ptr.To("GPU")}, "match": {StringValue: &match}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: resource.MustParse("1Gi")}}})
	}
	return slice
}

// fill makes pods hold so many percent of the devices of the nodes, which pods hold less of before. At 95 %, the free
// devices are on few nodes: two on each.
func (l *lab) fill(ctx context.Context, o layout, nodes, before, percent int) error {
	by := map[int][]string{} // nodes by how many devices a pod is to hold now
	for i := range nodes {
		switch n := o.held(i, percent) - o.held(i, before); {
		case n > 0 && o.shares > 0: // a pod for each GPU, with shares of one
			by[1] = append(by[1], slices.Repeat([]string{nodeName(i)}, n)...)
		case n > 0:
			by[n] = append(by[n], nodeName(i))
		}
	}
	for count, names := range by {
		k := kind{name: "filling", devices: one(o.class, fmt.Sprintf(", count: %d", count)), count: count}
		if o.shares > 0 {
			k = kind{name: "filling with shares", devices: shares(o.class, o.shares), count: o.shares}
		}
		if _, _, err := l.place(ctx, k, len(names), func(i int) string { return names[i] }); err != nil {
			return err
		}
	}
	return nil
}

// held returns how many devices of the node are held.
func (o layout) held(node, percent int) int {
	switch {
	case percent < 95:
		return o.devices * percent / 100
	case node%(40/o.devices) == 0:
		return o.devices - 2
	}
	return o.devices
}

// measure fills the nodes step by step, and binds batches of pods of each kind, in turn with batches of pods without
// claims.
func (o layout) measure(ctx context.Context, p programs, nodes, batch, rounds int) (r rates, err error) {
	p.controller = "" // it takes no part in scheduling
	l, err := open(ctx, p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	settled, err := o.publish(ctx, l, nodes)
	if err != nil {
		return r, err
	}
	say("%s: %d nodes are published; the scheduler's profiles are at %s", o.name, nodes, l.scheduler.URL)
	r = rates{Layout: o.name, Nodes: nodes}
	before := 0
	for _, percent := range o.percents {
		if err := l.fill(ctx, o, nodes, before, percent); err != nil {
			return r, err
		}
		if err := settled(ctx); err != nil {
			return r, err
		}
		before = percent
		filled, err := l.compare(ctx, o.kinds, batch, rounds)
		if err != nil {
			return r, err
		}
		filled.Percent = percent
		r.Fills = append(r.Fills, filled)
		for _, k := range filled.Kinds {
			say("%s, %d %% held: %s: %.0f pods/s, %.2f of those without claims", o.name, percent, k.Kind,
				median(k.PodsSecond), median(k.Ratio))
		}
	}
	return r, nil
}

// compare measures each kind once in each round. The first round of a lab, in which the scheduler's caches are empty,
// does not count.
func (l *lab) compare(ctx context.Context, kinds []kind, batch, rounds int) (f fillRates, err error) {
	for _, k := range kinds {
		f.Kinds = append(f.Kinds, kindRates{Kind: k.name})
	}
	if !l.warm {
		rounds++
	}
	for range rounds {
		for i, k := range kinds {
			without, err := l.rate(ctx, none, batch)
			if err != nil {
				return f, err
			}
			with, err := l.rate(ctx, k, batch)
			if err != nil {
				return f, err
			}
			if l.warm {
				f.None = append(f.None, without)
				f.Kinds[i].PodsSecond = append(f.Kinds[i].PodsSecond, with)
				f.Kinds[i].Ratio = append(f.Kinds[i].Ratio, with/without)
			}
		}
		l.warm = true
	}
	return f, nil
}

// rate binds a batch of pods, removes it, and returns how many were bound a second.
func (l *lab) rate(ctx context.Context, k kind, batch int) (float64, error) {
	namespace, took, err := l.place(ctx, k, batch, nil)
	if err != nil {
		return 0, err
	}
	return float64(batch) / took.Seconds(), l.clear(ctx, namespace)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
