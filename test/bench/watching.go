// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/node"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// The watching of a healthy machine, run in this process without a cluster.

const (
	watchRounds    = 2 // without watching, and with it
	watchTime      = 20 * time.Second
	partitionsEach = 7 // of each GPU
)

// measureWatching measures the processor time of watching the health of GPUs that nothing is wrong with.
func measureWatching(ctx context.Context, b *bench) error {
	own, simulated, err := watchingCost(ctx, watchRounds, watchTime)
	if err != nil {
		return err
	}
	b.results["watch"], b.results["watchsim"] = []float64{ms(own)}, []float64{ms(simulated)}
	return nil
}

// watchingCost returns the processor time of a minute of watching: without the work of NVML, and with the simulated
// NVML. From each it subtracts what this process takes without watching. It measures each in turn, for d.
func watchingCost(ctx context.Context, rounds int, d time.Duration) (own, simulated time.Duration, err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	machine, found, err := partitionedMachine(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	var spent [3]time.Duration
	for range rounds {
		for i, library := range []nvmllib.Interface{nil, waitingLibrary{machine.NVML()}, machine.NVML()} {
			took, err := watchingTime(ctx, machine, library, found, d)
			if err != nil {
				return 0, 0, err
			}
			spent[i] += took
		}
	}
	aMinute := func(library int) time.Duration {
		return time.Duration(float64(spent[library]-spent[0]) / (time.Duration(rounds) * d).Minutes())
	}
	return aMinute(1), aMinute(2), nil
}

// partitionedMachine creates a simulated machine of 8 H100 with 56 partitions, and returns what a discovery finds.
func partitionedMachine(ctx context.Context, dir string) (*simulator.Node, gpu.Discovery, error) {
	var found gpu.Discovery
	profile, err := simulator.BuiltIn("dgx-h100")
	if err != nil {
		return nil, found, err
	}
	machine, err := simulator.Open(dir, profile)
	if err == nil {
		err = machine.LayOutSysfs()
	}
	if err != nil {
		return nil, found, err
	}
	for i := range profile.GPUs {
		if err := machine.SwitchMIG(strconv.Itoa(i), hwprofile.Enabled); err != nil {
			return nil, found, err
		}
		for range partitionsEach {
			if _, err := machine.CreatePartition(strconv.Itoa(i), "1g.10gb"); err != nil {
				return nil, found, err
			}
		}
	}
	n, err := openNode(machine, machine.NVML())
	if err != nil {
		return nil, found, err
	}
	found, err = n.Discover(ctx)
	if err = errors.Join(err, n.Close()); err != nil {
		return nil, found, err
	}
	if got, want := len(found.Devices)+len(inventory.Defaults(found.Devices)),
		len(profile.GPUs)*(1+partitionsEach); got != want {
		return nil, found, fmt.Errorf("found %d GPUs and partitions, want %d", got, want)
	}
	return machine, found, nil
}

// openNode opens the machine as the plugin does with the values of the chart: without virtual machines.
func openNode(machine *simulator.Node, library nvmllib.Interface) (*nvml.Machine, error) {
	return nvml.Open(nvml.MachineConfig{Library: library, Sysfs: filepath.Join(machine.DriverRoot(), "sys"),
		Proc: machine.Proc(), ContainersOnly: true})
}

// watchingTime returns the processor time that this process takes for d while it watches the machine as the plugin
// does; without a library it does not watch.
func watchingTime(ctx context.Context, machine *simulator.Node, library nvmllib.Interface, found gpu.Discovery,
	d time.Duration) (took time.Duration, err error) {
	if library != nil {
		stop, err := startWatching(ctx, machine, library, found)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	runtime.GC()
	if err := sleep(ctx, min(d, 2*time.Second)); err != nil { // what the start has caused is over
		return 0, err
	}
	this := process{pid: os.Getpid()}
	begin, err := this.cpu()
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, d); err != nil {
		return 0, err
	}
	end, err := this.cpu()
	return end - begin, err
}

// startWatching starts what the plugin does between discoveries to know the health of its GPUs: waiting for events,
// the loop of the node, and the stream of health to the kubelet, whose messages are encoded but not sent.
func startWatching(ctx context.Context, machine *simulator.Node, library nvmllib.Interface, found gpu.Discovery) (
	stop func() error, err error) {
	n, err := openNode(machine, library)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(machine.Dir(), "plugin-")
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	reporter := report.NewReporterTo(events.NewFakeRecorder(1), report.ReporterConfig{Driver: driver, Node: "node"})
	loop := node.New(node.Options{NodeName: "node", Dir: dir, Client: fake.NewClientset(), Records: noRecords{},
		Machine: discoveredOnce{n, found, make(chan struct{}, 1)}, Alone: func() bool { return true },
		Gates:     publish.New(publish.PublisherConfig{}).Gates,
		Publisher: noPublisher{}, Readiness: report.NewReadiness(time.Hour), Metrics: report.NewMetrics(noRecords{}),
		Reporter: reporter, Resume: make(chan struct{}, 1)})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { loop.Run(ctx) })
	<-loop.Ready()
	loop.Serving()
	running.Go(func() { loop.ServeHealth(ctx, encodeHealth) })
	stop = func() error {
		cancel()
		running.Wait()
		n.Release("the end") // returns when Watch has left its session
		return n.Close()
	}
	if err := until(ctx, "events to be watched", func() (bool, error) { return n.Watching(), nil }); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// encodeHealth encodes the message to the kubelet, as gRPC does before it sends it.
func encodeHealth(all []health.DeviceReport) bool {
	message := &drahealth.NodeWatchResourcesResponse{}
	for _, r := range all {
		status := drahealth.HealthStatus_HEALTHY
		if r.Status != health.Healthy {
			status = drahealth.HealthStatus_UNKNOWN
		}
		message.Devices = append(message.Devices, &drahealth.DeviceHealth{Health: status, Message: r.Message,
			Device:          &drahealth.DeviceIdentifier{PoolName: "node", DeviceName: r.Device},
			LastUpdatedTime: time.Now().Unix()})
	}
	encoded, err := encoding.GetCodecV2(grpcproto.Name).Marshal(message)
	encoded.Free()
	return err == nil
}

// discoveredOnce are GPUs of which only the first discovery returns.
type discoveredOnce struct {
	*nvml.Machine
	found gpu.Discovery
	done  chan struct{} // has a value after the first discovery
}

func (d discoveredOnce) Discover(ctx context.Context) (gpu.Discovery, error) {
	select {
	case d.done <- struct{}{}:
		return d.found, nil
	case <-ctx.Done():
		return gpu.Discovery{}, ctx.Err()
	}
}

// noPublisher publishes nothing.
type noPublisher struct{}

func (noPublisher) Set(inventory.Inventory) {}
func (noPublisher) Stale()                  {}

// noRecords is a plugin's directory without claims.
type noRecords struct{}

func (noRecords) List() ([]checkpoint.PreparedClaim, error) { return nil, nil }

// waitingLibrary is a simulated NVML whose wait for events is only a system call, as NVIDIA's is. That of the simulated
// one reads the state of all GPUs.
type waitingLibrary struct{ nvmllib.Interface }

func (waitingLibrary) EventSetCreate() (nvmllib.EventSet, nvmllib.Return) {
	return waitingSet{}, nvmllib.SUCCESS
}

func (l waitingLibrary) DeviceGetHandleByIndex(index int) (nvmllib.Device, nvmllib.Return) {
	d, ret := l.Interface.DeviceGetHandleByIndex(index)
	return waitingDevice{d}, ret
}

type waitingDevice struct{ nvmllib.Device }

func (waitingDevice) RegisterEvents(uint64, nvmllib.EventSet) nvmllib.Return { return nvmllib.SUCCESS }

// waitingSet is a set of events that never happen.
type waitingSet struct{ nvmllib.EventSet }

func (waitingSet) Wait(milliseconds uint32) (nvmllib.EventData, nvmllib.Return) {
	_, _ = unix.Poll(nil, int(milliseconds)) // it may return early
	return nvmllib.EventData{}, nvmllib.ERROR_TIMEOUT
}

func (waitingSet) Free() nvmllib.Return { return nvmllib.SUCCESS }
