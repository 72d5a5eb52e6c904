// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

// searches are the processor time of the scheduler's allocator, in this process, for one node of a cluster.
type searches struct {
	Nodes   int
	Columns []string // what the nodes publish
	Rows    []searched
}

type searched struct {
	Kind    string
	Percent int       // of the GPUs of every node are held
	Millis  []float64 // mean, for each column; -1: no node has such devices
}

// searchColumns are layouts of a node of eight H100.
var searchColumns = []struct {
	name    string
	changes []func(*resourceapi.ResourceSlice)
}{
	{"partitions on demand", []func(*resourceapi.ResourceSlice){onDemand}},
	{"all partitions", nil},
	{"all partitions, no shares", []func(*resourceapi.ResourceSlice){dropShares}},
	{"no partitions", []func(*resourceapi.ResourceSlice){dropPartitions}},
	{"whole GPUs", []func(*resourceapi.ResourceSlice){dropShares, dropPartitions}},
}

// onDemand leaves the partitions of the GPU that comes last, and so is the spare one.
func onDemand(s *resourceapi.ResourceSlice) {
	const spare = "gpu-df-00-0"
	s.Spec.SharedCounters = slices.DeleteFunc(s.Spec.SharedCounters, func(c resourceapi.CounterSet) bool {
		return c.Name != spare
	})
	s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		return !isGPU(d) && gpu.ParentName(d.Name) != spare
	})
	for i, d := range s.Spec.Devices {
		if isGPU(d) && d.Name != spare {
			s.Spec.Devices[i].ConsumesCounters = nil
		}
	}
}

// dropShares does what `sharing: exclusive` does in a node configuration.
func dropShares(s *resourceapi.ResourceSlice) {
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].AllowMultipleAllocations = nil
	}
}

// dropPartitions does what `partitions: none` does.
func dropPartitions(s *resourceapi.ResourceSlice) {
	s.Spec.SharedCounters = nil
	s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return !isGPU(d) })
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].ConsumesCounters = nil
	}
}

func isGPU(d resourceapi.Device) bool {
	return ptr.Deref(d.Attributes["type"].StringValue, "") == "gpu"
}

// search times each kind on a node, in a cluster of as many nodes, all of which are held as far as this one.
func (o options) search(ctx context.Context) (r searches, err error) {
	text, err := exec.CommandContext(ctx, o.controller, "slices", "--profile", "dgx-h100").Output()
	if err != nil {
		return r, fmt.Errorf("%s slices: %w", o.controller, err)
	}
	classes, err := controlplane.ReadClasses(o.classes)
	if err != nil {
		return r, err
	}
	r.Nodes = o.nodes
	compiled := allocator.NewCache(100)
	clusters := make([][]*resourceapi.ResourceSlice, len(searchColumns))
	for i, column := range searchColumns {
		r.Columns = append(r.Columns, column.name)
		if clusters[i], err = cluster(string(text), o.nodes, column.changes); err != nil {
			return r, err
		}
	}
	for _, k := range documented {
		if k.extended != "" {
			continue
		}
		for _, percent := range []int{0, 50} {
			row := searched{Kind: k.name, Percent: percent}
			for i := range searchColumns {
				took, err := k.search(ctx, classes, compiled, clusters[i], held(clusters[i], percent))
				if err != nil {
					return r, fmt.Errorf("%s: %w", k.name, err)
				}
				row.Millis = append(row.Millis, took)
			}
			r.Rows = append(r.Rows, row)
		}
		last := r.Rows[len(r.Rows)-2:]
		say("one node of %d, %s: %.2f ms if nothing is held, %.2f if half is", o.nodes, k.name, last[0].Millis,
			last[1].Millis)
	}
	return r, nil
}

// cluster returns the slices of all nodes, with the changes.
func cluster(text string, nodes int, changes []func(*resourceapi.ResourceSlice)) (
	all []*resourceapi.ResourceSlice, err error) {
	for _, document := range strings.Split(text, "\n---") {
		slice := &resourceapi.ResourceSlice{}
		if err := yaml.Unmarshal([]byte(document), slice); err != nil {
			return nil, err
		}
		for _, change := range changes {
			change(slice)
		}
		if slice.Kind != "" && len(slice.Spec.Devices)+len(slice.Spec.SharedCounters) > 0 {
			all = append(all, slice)
		}
	}
	one := slices.Clone(all)
	all = nil
	for i := range nodes {
		name := nodeName(i)
		for j, of := range one {
			slice := *of
			slice.Name, slice.UID = fmt.Sprint(name, "-", j), types.UID(fmt.Sprint(name, "-", j))
			slice.Spec.NodeName, slice.Spec.Pool.Name = &name, name
			slice.Spec.Pool.ResourceSliceCount = int64(len(one))
			all = append(all, &slice)
		}
	}
	return all, nil
}

// held returns what is held if so many percent of the GPUs of each node are allocated.
func held(cluster []*resourceapi.ResourceSlice, percent int) allocator.Held {
	all := allocator.HeldBy(nil, nil)
	taken := map[string]int{}
	for _, slice := range cluster {
		node := *slice.Spec.NodeName
		for _, d := range slice.Spec.Devices {
			if !isGPU(d) || taken[node] >= 8*percent/100 {
				continue
			}
			taken[node]++
			r := resourceapi.DeviceRequestAllocationResult{Driver: fleet.Driver, Pool: node, Device: d.Name}
			if ptr.Deref(d.AllowMultipleAllocations, false) {
				r.ShareID = ptr.To(types.UID(node + d.Name))
				r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
				for name, c := range d.Capacity {
					r.ConsumedCapacity[name] = c.Value
				}
			}
			all.Add(r)
		}
	}
	return all
}

// search returns the mean processor time of the allocator for the kind and the first node, in milliseconds; -1 if the
// node has no such devices. Other work on this machine does not count.
func (k kind) search(ctx context.Context, classes allocator.Classes, compiled *cel.Cache,
	cluster []*resourceapi.ResourceSlice, held allocator.Held) (float64, error) {
	const repeats = 20
	template, err := k.template("default")
	if err != nil {
		return 0, err
	}
	claim := &resourceapi.ResourceClaim{Spec: template.Spec.Spec,
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim"}}
	for i := range claim.Spec.Devices.Requests { // as the API server completes them
		if r := claim.Spec.Devices.Requests[i].Exactly; r != nil {
			r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeExactCount, max(1, r.Count)
		}
		for j := range claim.Spec.Devices.Requests[i].FirstAvailable {
			r := &claim.Spec.Devices.Requests[i].FirstAvailable[j]
			r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeExactCount, max(1, r.Count)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(0)}}
	var before time.Duration
	for i := range repeats + 1 {
		got, err := classes.Place(ctx, compiled, node, cluster, held, claim)
		if err != nil {
			return 0, err
		}
		if len(got) == 0 {
			return -1, nil
		}
		if i == 0 { // it has compiled the expressions
			before = processorTime()
		}
	}
	return 1000 * (processorTime() - before).Seconds() / repeats, nil
}

// processorTime returns how long this process has had a processor.
func processorTime() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
