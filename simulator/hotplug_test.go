// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func TestNVMLOfUnpluggedGPU(t *testing.T) {
	n := open(t, "dgx-h100")
	lib := n.NVML()
	first, second := gpu(t, n, 0), gpu(t, n, 1)
	uuid, _ := first.GetUUID()
	serial, _ := first.GetSerial()
	set, _ := lib.EventSetCreate()
	const lost = "ERROR_GPU_IS_LOST"
	calls := []struct {
		name                     string
		ask                      func() string
		unplugged, removed, back string
	}{
		{"count", func() string { return says(lib.DeviceGetCount()) }, "8 SUCCESS", "7 SUCCESS", "8 SUCCESS"},
		{"a handle by index", func() string { d, ret := lib.DeviceGetHandleByIndex(0); return handle(d, ret) }, lost,
			"1 gpu SUCCESS", "0 gpu SUCCESS"},
		{"a handle by UUID", func() string { d, ret := lib.DeviceGetHandleByUUID(uuid); return handle(d, ret) }, lost,
			"ERROR_NOT_FOUND", "0 gpu SUCCESS"},
		{"a handle by serial number", func() string {
			d, ret := lib.DeviceGetHandleBySerial(serial)
			return handle(d, ret)
		}, lost, "ERROR_NOT_FOUND", "0 gpu SUCCESS"},
		{"a handle by PCI address", func() string {
			d, ret := lib.DeviceGetHandleByPciBusId(
				"0000:1B:00.0")
			return handle(d, ret)
		}, lost, "ERROR_NOT_FOUND", "0 gpu SUCCESS"},
		{"its UUID", func() string { _, ret := first.GetUUID(); return says(ret) }, lost, lost, "SUCCESS"},
		{"its index", func() string { return says(first.GetIndex()) }, "0 " + lost, "0 " + lost, "0 SUCCESS"},
		{"its PCI address", func() string { _, ret := first.GetPciInfo(); return says(ret) }, lost, lost, "SUCCESS"},
		{"setting it", func() string { return says(first.SetComputeMode(nvml.COMPUTEMODE_DEFAULT)) }, lost, lost,
			"SUCCESS"},
		{"its events", func() string { return says(first.RegisterEvents(0, set)) }, lost, lost, "SUCCESS"},
		{"a call nobody has thought of", func() string { _, _, _, ret := first.GetEncoderStats(); return says(ret) },
			lost, lost, "ERROR_NOT_SUPPORTED"},
		{"by way of the library", func() string { return says(lib.DeviceGetMinorNumber(first)) }, "0 " + lost,
			"0 " + lost, "0 SUCCESS"},
		{"how near another is", func() string { _, ret := second.GetTopologyCommonAncestor(first); return says(ret) },
			lost, lost, "SUCCESS"},
		{"the next one's index", func() string { return says(second.GetIndex()) }, "1 SUCCESS", "0 SUCCESS",
			"1 SUCCESS"},
		{"the next one's minor number", func() string { return says(second.GetMinorNumber()) }, "1 SUCCESS",
			"1 SUCCESS", "1 SUCCESS"},
		{"the next one by UUID", func() string {
			uuid, _ := second.GetUUID()
			d, ret := lib.DeviceGetHandleByUUID(uuid)
			return handle(d, ret)
		}, "1 gpu SUCCESS", "1 gpu SUCCESS", "1 gpu SUCCESS"},
		{"starting", func() string { return says(lib.Init()) }, "SUCCESS", "SUCCESS", "SUCCESS"},
	}
	other, err := simulator.Attach(n.Dir())
	must(t, err)
	for _, stage := range []struct {
		name   string
		change func() error
		want   func(i int) string
	}{
		{"plugged", func() error { return nil }, func(i int) string { return calls[i].back }},
		{"unplugged", func() error { return other.Unplug("0") }, func(i int) string { return calls[i].unplugged }},
		{"back", func() error { return other.Plug("gpu-1b-00-0") }, func(i int) string { return calls[i].back }},
		{"removed", func() error { return other.RemoveGPU("gpu-1b-00-0") },
			func(i int) string { return calls[i].removed }},
	} {
		must(t, stage.change())
		for i, c := range calls {
			if got := c.ask(); got != stage.want(i) {
				t.Errorf("%s: %s: got %s, want %s", stage.name, c.name, got, stage.want(i))
			}
		}
	}
}

// handle is the minor number of the GPU of the handle, or the error.
func handle(d nvml.Device, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return says(ret)
	}
	minor, _ := d.GetMinorNumber()
	return says(minor, "gpu", ret)
}

func TestAddedGPU(t *testing.T) {
	n := laidOut(t, "dgx-h100")
	old := gpu(t, n, 7) // from before
	added, err := n.Add("gpu-1b-00-0", hwprofile.Address{})
	must(t, err)
	d, ret := n.NVML().DeviceGetHandleByUUID(added.UUID)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	first := gpu(t, n, 0)
	pci, _ := d.GetPciInfo()
	serial, _ := first.GetSerial()
	own, _ := d.GetSerial()
	for _, c := range []struct{ name, got, want string }{
		{"count", says(n.NVML().DeviceGetCount()), "9 SUCCESS"},
		{"name", says(d.GetName()), "NVIDIA H100 80GB HBM3 SUCCESS"},
		{"index", says(d.GetIndex()), "1 SUCCESS"},
		{"minor", says(d.GetMinorNumber()), "8 SUCCESS"},
		{"UUID", says(d.GetUUID()), added.UUID + " SUCCESS"},
		{"a serial number of its own", says(own != serial), "true"},
		{"PCI address", text(pci.BusId[:]), "00000000:1C:00.0"},
		{"NVLink with another", says(d.GetP2PStatus(first, nvml.P2P_CAPS_INDEX_NVLINK)), "0 SUCCESS"},
		{"index of a handle from before", says(old.GetIndex()), "8 SUCCESS"},
		{"minor of a handle from before", says(old.GetMinorNumber()), "7 SUCCESS"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, c.got, c.want)
		}
	}
}

func TestDriverRootFollowsGPUs(t *testing.T) {
	n := laidOut(t, "t4-x2")
	root := n.DriverRoot()
	whole := tree(t, root)
	added, err := n.Add("0", hwprofile.Address{})
	must(t, err)
	if want := "gpu-3c-00-0"; added.Name != want {
		t.Errorf("added %s, want %s", added.Name, want)
	}
	golden(t, "t4-x2-added-root.txt", tree(t, root))
	must(t, n.Unplug(added.Name))
	layOut(t, n)
	golden(t, "t4-x2-added-root.txt", tree(t, root)) // the kernel keeps both when a GPU falls off the bus
	must(t, n.Remove(added.Name))
	if got := tree(t, root); got != whole {
		t.Errorf("after it was removed, got:\n%s\nwant:\n%s", got, whole)
	}
	must(t, n.Remove("gpu-3b-00-0"))
	golden(t, "t4-x2-removed-root.txt", tree(t, root))
	layOut(t, n)
	golden(t, "t4-x2-removed-root.txt", tree(t, root))
}

// The device node and the /sys of a new GPU exist before NVML counts it.
func TestAddedGPUIsLaidOutFirst(t *testing.T) {
	n := laidOut(t, "t4-x2")
	done := make(chan error)
	go func() {
		for range 10 {
			if _, err := n.Add("gpu-3b-00-0", hwprofile.Address{}); err != nil {
				done <- err
				return
			}
		}
		close(done)
	}()
	for running := true; running; {
		select {
		case err := <-done:
			must(t, err)
			running = false
		default:
		}
		v, err := n.View()
		must(t, err)
		for _, c := range v.GPUs {
			for _, path := range []string{"dev/" + c.DeviceNode(), "sys/bus/pci/devices/" + c.PCI.Address.String() +
				"/numa_node"} {
				if err := unix.Access(n.DriverRoot()+"/"+path, unix.F_OK); err != nil {
					t.Fatalf("%s is seen without %s: %v", c.Name, path, err)
				}
			}
		}
	}
	if got := gpuCount(n); got != 12 {
		t.Errorf("%d GPUs, want 12", got)
	}
}

// Concurrent adding, removing and laying out do not interfere.
func TestAddAndRemoveDuringLayOut(t *testing.T) {
	n := laidOut(t, "t4-x2")
	var all sync.WaitGroup
	errs := make(chan error, 100)
	for i := range 3 {
		all.Go(func() {
			other, err := simulator.Attach(n.Dir())
			for round := 0; err == nil && round < 5; round++ {
				at, _ := hwprofile.ParseAddress(fmt.Sprintf("0000:1%d:00.0", i))
				var added node.GPU
				if added, err = other.Add("gpu-3b-00-0", at); err == nil {
					err = other.Remove(added.UUID)
				}
			}
			errs <- err
		})
		all.Go(func() { errs <- n.LayOut(simulator.Programs{}) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		must(t, err)
	}
	golden(t, "t4-x2-root.txt", tree(t, n.DriverRoot()))
}

func TestAddCannotLayOut(t *testing.T) {
	n := laidOut(t, "t4-x2")
	// blocks the directory of its bridge
	must(t, os.WriteFile(filepath.Join(n.DriverRoot(), "sys/devices/pci0000:3a/0000:3a:01.0"), nil, 0o644))
	before := n.String() + tree(t, n.DriverRoot())
	for like, want := range map[string]string{"gpu-5e-00-0": `no GPU "gpu-5e-00-0"`,
		"0": "0000:3a:01.0: not a directory"} {
		if _, err := n.Add(like, hwprofile.Address{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
		if got := n.String() + tree(t, n.DriverRoot()); got != before {
			t.Errorf("got:\n%s\nwant:\n%s", got, before)
		}
	}
}

func TestSlowCall(t *testing.T) {
	n := open(t, "t4-x2")
	d := gpu(t, n, 0)
	const delay = time.Second // no other call takes as long, on a busy disk either
	must(t, n.Inject("0", "GetName", node.Fault{Delay: delay, After: 1, Times: 1}))
	must(t, n.Inject("0", "GetName", node.Fault{Error: "ERROR_UNKNOWN", After: 1, Times: 2}))
	var got []string
	for range 4 {
		start := time.Now()
		answer := says(d.GetName())
		got = append(got, fmt.Sprint(answer, " ", time.Since(start) >= delay))
	}
	want := "Tesla T4 SUCCESS false, ERROR_UNKNOWN true, ERROR_UNKNOWN false, Tesla T4 SUCCESS false"
	if got := strings.TrimSpace(strings.ReplaceAll(strings.Join(got, ","), ",", ", ")); strings.ReplaceAll(got, "  ",
		" ") != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A delayed call ends early if its fault is removed.
func TestSlowCallEndsEarly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault node.Fault
		end   func(n *simulator.Node) error
		want  string
	}{
		{"healed", node.Fault{Delay: time.Hour}, func(n *simulator.Node) error { return n.Heal("0") },
			"Tesla T4 SUCCESS"},
		{"healed, one call only", node.Fault{Delay: time.Hour, Times: 1},
			func(n *simulator.Node) error { return n.Heal("0") }, "Tesla T4 SUCCESS"},
		{"unplugged", node.Fault{Delay: time.Hour}, func(n *simulator.Node) error { return n.Unplug("0") },
			" ERROR_GPU_IS_LOST"},
		{"removed", node.Fault{Delay: time.Hour}, func(n *simulator.Node) error { return n.RemoveGPU("0") },
			" ERROR_GPU_IS_LOST"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, "t4-x2")
			d := gpu(t, n, 0)
			must(t, n.Inject("0", node.AllCalls, tt.fault))
			answer := make(chan string)
			go func() { answer <- says(d.GetName()) }()
			for tt.fault.Times > 0 && !strings.Contains(n.String(), "spent") {
				time.Sleep(time.Millisecond) // until the call is waiting
			}
			must(t, tt.end(n))
			if got := <-answer; got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Nested calls are not counted.
func TestCallIsCountedOnce(t *testing.T) {
	n := open(t, "dgx-h100")
	d := gpu(t, n, 0)
	set, _ := n.NVML().EventSetCreate()
	for _, tt := range []struct {
		name string
		call func() nvml.Return
	}{
		{"GetNvLinkCapability", func() nvml.Return { _, ret := d.GetNvLinkCapability(0, 0); return ret }},
		{"RegisterEvents", func() nvml.Return { return d.RegisterEvents(0, set) }},
		{"GetEccMode", func() nvml.Return { _, _, ret := d.GetEccMode(); return ret }},
		{"SetComputeMode", func() nvml.Return { return d.SetComputeMode(0) }},
	} {
		must(t, n.Inject("0", node.AllCalls, node.Fault{Error: "ERROR_UNKNOWN", After: 2, Times: 1}))
		if got, want := says(tt.call(), tt.call(), tt.call(), tt.call()),
			"SUCCESS SUCCESS ERROR_UNKNOWN SUCCESS"; got != want {
			t.Errorf("%s: got %s, want %s", tt.name, got, want)
		}
	}
}
