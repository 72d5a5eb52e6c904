// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

const anyXID = nvml.EventTypeXidCriticalError

// other is the node as another process has it.
func other(t *testing.T, n *simulator.Node) *node.Node {
	t.Helper()
	attached, err := node.Attach(n.Dir())
	must(t, err)
	return attached
}

// emit lets the GPU or partition report events: an XID each, or for 0 an ECC error of two bits.
func emit(t *testing.T, n *node.Node, which string, xids ...uint64) {
	t.Helper()
	for _, xid := range xids {
		kind := node.EventXID
		if xid == 0 {
			kind = node.EventDoubleBitECC
		}
		e, err := n.NewEvent(which, kind, xid)
		must(t, err)
		must(t, n.Emit(e))
	}
}

// events returns a set with the first GPUs registered for the mask.
func events(t *testing.T, n *simulator.Node, gpus int, mask uint64) nvml.EventSet {
	t.Helper()
	set, ret := n.NVML().EventSetCreate()
	success(t, ret)
	t.Cleanup(func() { _ = set.Free() })
	for i := range gpus {
		success(t, gpu(t, n, i).RegisterEvents(mask, set))
	}
	return set
}

// wait is what the set answers, without waiting: the GPU's index, the type, the data, and the instances if there are.
func wait(set nvml.EventSet) string {
	e, ret := set.Wait(0)
	if ret != nvml.SUCCESS {
		return says(ret)
	}
	index, _ := e.Device.GetIndex()
	out := fmt.Sprint(index, " ", e.EventType, " ", e.EventData)
	if e.GpuInstanceId != 0xffffffff || e.ComputeInstanceId != 0xffffffff {
		out += fmt.Sprint(" gi=", e.GpuInstanceId, " ci=", e.ComputeInstanceId)
	}
	return out
}

func TestEvents(t *testing.T) {
	const timeout = "ERROR_TIMEOUT"
	for _, tt := range []struct {
		name string
		mask uint64 // of the first two GPUs
		do   func(n *node.Node)
		want []string
	}{
		{"none", anyXID, func(*node.Node) {}, []string{timeout}},
		{"an XID", anyXID, func(n *node.Node) { emit(t, n, "0", 79) }, []string{"0 8 79", timeout}},
		{"in order", anyXID, func(n *node.Node) { emit(t, n, "1", 63, 64); emit(t, n, "0", 31); emit(t, n, "1", 63) },
			[]string{"1 8 63", "1 8 64", "0 8 31", "1 8 63", timeout}},
		{"of a type that is not registered", anyXID, func(n *node.Node) { emit(t, n, "0", 0, 48, 0) },
			[]string{"0 8 48", timeout}},
		{"of two types", anyXID | nvml.EventTypeDoubleBitEccError, func(n *node.Node) { emit(t, n, "0", 0, 48) },
			[]string{"0 2 0", "0 8 48", timeout}},
		{"of a GPU that is not registered", anyXID, func(n *node.Node) { emit(t, n, "2", 79) }, []string{timeout}},
		{"of a GPU registered for nothing", 0, func(n *node.Node) { emit(t, n, "0", 79) }, []string{timeout}},
		{"of a partition", anyXID, func(n *node.Node) {
			must(t, n.SwitchMIG("0", 1))
			_, err := n.CreatePartition("0", "1g.10gb@4")
			must(t, err)
			emit(t, n, "0/1g.10gb@4", 43)
			emit(t, n, "0", 95)
		}, []string{"0 8 43 gi=11 ci=0", "0 8 95", timeout}},
		{"before a GPU is lost", anyXID, func(n *node.Node) { emit(t, n, "0", 79); must(t, n.Unplug("0")) },
			[]string{"0 8 79", "ERROR_GPU_IS_LOST", "ERROR_GPU_IS_LOST"}},
		{"another GPU is lost", anyXID, func(n *node.Node) { must(t, n.Unplug("2")) }, []string{timeout}},
		{"a GPU is lost and found", anyXID, func(n *node.Node) {
			must(t, n.Unplug("0"))
			must(t, n.Plug("0"))
			emit(t, n, "0", 31)
		}, []string{"0 8 31", timeout}},
		{"a GPU is taken out", anyXID, func(n *node.Node) { must(t, n.RemoveGPU("1")) },
			[]string{"ERROR_GPU_IS_LOST"}},
		{"a GPU is taken out that nobody waits for", anyXID, func(n *node.Node) { must(t, n.RemoveGPU("5")) },
			[]string{timeout}},
		{"an error", anyXID, func(n *node.Node) {
			emit(t, n, "0", 31)
			must(t, n.Inject("1", "EventSetWait", node.Fault{Error: "ERROR_UNKNOWN", After: 1, Times: 1}))
		}, []string{"0 8 31", "ERROR_UNKNOWN", timeout}},
		{"an error of another GPU", anyXID, func(n *node.Node) {
			must(t, n.Fail("2", "EventSetWait", "ERROR_UNKNOWN"))
		}, []string{timeout}},
		{"an error of all calls of a GPU", anyXID, func(n *node.Node) { must(t, n.Fail("0", "all", "ERROR_UNKNOWN")) },
			[]string{timeout}},
		{"an error of the call", anyXID, func(n *node.Node) {
			must(t, n.Fail("0", "EventSetWait", "ERROR_UNKNOWN"))
		}, []string{"ERROR_UNKNOWN"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, "dgx-h100")
			set := events(t, n, 2, tt.mask)
			tt.do(other(t, n))
			var got []string
			for range tt.want {
				got = append(got, wait(set))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A registration sees only what happens after it. One more type keeps those before.
func TestRegisterEvents(t *testing.T) {
	n := open(t, "dgx-h100")
	set := events(t, n, 1, anyXID)
	emit(t, n.Node, "0", 0, 1)
	emit(t, n.Node, "1", 2)
	success(t, gpu(t, n, 0).RegisterEvents(nvml.EventTypeDoubleBitEccError, set))
	success(t, gpu(t, n, 1).RegisterEvents(anyXID, set))
	emit(t, n.Node, "0", 0, 3)
	emit(t, n.Node, "1", 4)
	foreign := events(t, n, 0, 0)
	for _, tt := range []struct{ name, got, want string }{
		{"first", wait(set), "0 8 1"}, {"second", wait(set), "0 2 0"}, {"third", wait(set), "0 8 3"},
		{"fourth", wait(set), "1 8 4"}, {"no fifth", wait(set), "ERROR_TIMEOUT"},
		{"an empty set", wait(foreign), "ERROR_TIMEOUT"},
		{"what it has not", says(gpu(t, n, 0).RegisterEvents(nvml.EventTypeGpuUnavailableError|anyXID, set)),
			"ERROR_NOT_SUPPORTED"},
		{"what does not exist", says(gpu(t, n, 0).RegisterEvents(1<<60, set)), "ERROR_INVALID_ARGUMENT"},
		{"no set", says(gpu(t, n, 0).RegisterEvents(anyXID, nil)), "ERROR_INVALID_ARGUMENT"},
		{"by way of the library", says(n.NVML().DeviceRegisterEvents(gpu(t, n, 0), anyXID, foreign)), "SUCCESS"},
		{"wait by way of the library", says(n.NVML().EventSetWait(foreign, 0)),
			says(nvml.EventData{}, nvml.ERROR_TIMEOUT)},
		{"free", says(n.NVML().EventSetFree(foreign)), "SUCCESS"},
		{"free again", says(foreign.Free()), "SUCCESS"},
		{"a freed set", says(gpu(t, n, 0).RegisterEvents(anyXID, foreign)), "ERROR_INVALID_ARGUMENT"},
		{"wait for ever on it", says(foreign.Wait(1 << 31)), says(nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT)},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, tt.got, tt.want)
		}
	}
	must(t, n.Fail("0", "RegisterEvents", "ERROR_NO_PERMISSION"))
	if got := says(gpu(t, n, 0).RegisterEvents(anyXID, set)); got != "ERROR_NO_PERMISSION" {
		t.Errorf("a fault: got %s", got)
	}
}

// A set holds a thousand events and drops newer ones, until there is room again.
func TestEventStorm(t *testing.T) {
	n := open(t, "t4-x2")
	set := events(t, n, 1, anyXID)
	for i := range uint64(5) {
		e, err := n.NewEvent("0", node.EventXID, i+1)
		must(t, err)
		must(t, n.Emit(slices.Repeat([]node.Event{e}, 400)...))
	}
	got := map[string]int{wait(set): 1}
	emit(t, n.Node, "0", 9)
	for {
		text := wait(set)
		if text == "ERROR_TIMEOUT" {
			break
		}
		got[text]++
	}
	want := map[string]int{"0 8 1": 400, "0 8 2": 400, "0 8 3": 200, "0 8 9": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// waiting calls Wait in a goroutine, lets the other process do something, and returns the answer and how long it took
// after that.
func waiting(t *testing.T, set nvml.EventSet, do func()) (string, time.Duration) {
	t.Helper()
	type result struct {
		text string
		at   time.Time
	}
	answer := make(chan result, 1)
	go func() {
		e, ret := set.Wait(60_000)
		answer <- result{says(e.EventData, ret), time.Now()}
	}()
	time.Sleep(30 * time.Millisecond)
	start := time.Now()
	do()
	r := <-answer
	return r.text, r.at.Sub(start)
}

// TestWaitIsPrompt: a waiting process notices at once, and not when it next looks by itself. On a busy machine this may
// take several attempts.
func TestWaitIsPrompt(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(n *node.Node, set nvml.EventSet)
		want string
	}{
		{"an event", func(n *node.Node, _ nvml.EventSet) { emit(t, n, "0", 79) }, "79 SUCCESS"},
		{"the GPU is lost", func(n *node.Node, _ nvml.EventSet) { must(t, n.Unplug("0")) }, "0 ERROR_GPU_IS_LOST"},
		{"the set is freed", func(_ *node.Node, set nvml.EventSet) { _ = set.Free() }, "0 ERROR_INVALID_ARGUMENT"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var took time.Duration
			for range 20 {
				n := open(t, "t4-x2")
				set, n2 := events(t, n, 1, anyXID), other(t, n)
				var got string
				if got, took = waiting(t, set, func() { tt.do(n2, set) }); got != tt.want {
					t.Fatalf("got %s, want %s", got, tt.want)
				}
				if took < 500*time.Millisecond {
					return
				}
			}
			t.Errorf("never noticed at once, at last after %s", took)
		})
	}
}

// TestWaitIsIdle: waiting costs (almost) no processor time.
func TestWaitIsIdle(t *testing.T) {
	n := open(t, "dgx-h100")
	set := events(t, n, 8, anyXID)
	before := processorTime(t)
	start := time.Now()
	if _, ret := set.Wait(1500); ret != nvml.ERROR_TIMEOUT {
		t.Fatal(ret)
	}
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("waited %s, want 1.5 s", took)
	}
	if used := processorTime(t) - before; used > 50*time.Millisecond {
		t.Errorf("used %s of processor time", used)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var use syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// TestWaitHangs until the fault is healed, also if there are events.
func TestWaitHangs(t *testing.T) {
	n := open(t, "t4-x2")
	set := events(t, n, 2, anyXID)
	must(t, n.Slow("1", "EventSetWait", time.Hour))
	emit(t, n.Node, "0", 79)
	got, took := waiting(t, set, func() { time.Sleep(100 * time.Millisecond); must(t, other(t, n).Heal("1")) })
	if got != "79 SUCCESS" || took < 100*time.Millisecond {
		t.Errorf("got %s after %s, want the event after the healing", got, took)
	}
}

// TestHealthCalls: what NVML answers about health, after an injection and a reset.
func TestHealthCalls(t *testing.T) {
	const reset = "RESET"
	for _, tt := range []struct{ name, profile, settings, want string }{
		{"an H100", "dgx-h100", "", "action 0; rows 0 0 false false SUCCESS; pages 0 ERROR_NOT_SUPPORTED; link 1; " +
			"fabric 3 1 unhealthy=2; clocks 0x0"},
		{"a sick H100", "dgx-h100",
			"recovery-action=drain-and-reset remapped-rows=pending nvlink-down=2 fabric=unhealthy slowdown=thermal",
			"action 4; rows 0 0 true false SUCCESS; pages 0 ERROR_NOT_SUPPORTED; link 0; fabric 3 2 unhealthy=1; " +
				"clocks 0x48"},
		{"no fabric manager", "dgx-h100", "fabric=not-started",
			"action 0; rows 0 0 false false SUCCESS; pages 0 ERROR_NOT_SUPPORTED; link 1; fabric 1 0 unhealthy=0; " +
				"clocks 0x0"},
		{"rows that failed", "dgx-h100", "remapped-rows=failed",
			"action 0; rows 0 0 false true SUCCESS; pages 0 ERROR_NOT_SUPPORTED; link 1; fabric 3 1 unhealthy=2; " +
				"clocks 0x0"},
		{"a reset", "dgx-h100", "recovery-action=reset remapped-rows=pending nvlink-down=2 " + reset,
			"action 0; rows 0 0 false false SUCCESS; pages 0 ERROR_NOT_SUPPORTED; link 0; fabric 3 1 unhealthy=2; " +
				"clocks 0x0"},
		{"a V100", "dgx1-v100", "retired-pages=pending recovery-action=reboot slowdown=power-brake",
			"action 2; rows 0 0 false false ERROR_NOT_SUPPORTED; pages 1 SUCCESS; link 1; fabric 0 0 unhealthy=0; " +
				"clocks 0x88"},
		{"a GeForce", "rtx2080ti-x4", "recovery-action=reset",
			"action 1; rows 0 0 false false ERROR_NOT_SUPPORTED; pages 0 ERROR_NOT_SUPPORTED; link 0; fabric 0 0 " +
				"unhealthy=0; clocks 0x0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, tt.profile)
			settings, restart := strings.CutSuffix(tt.settings, reset)
			change, err := node.ParseHealth(strings.Fields(settings))
			must(t, err)
			must(t, n.ChangeHealth("0", change))
			if restart {
				n.NVML().Shutdown() // while it is open, resets are refused
				must(t, n.Reset("0"))
				success(t, n.NVML().Init())
			}
			if got := healthOf(t, gpu(t, n, 0)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// healthOf is what the GPU answers to the calls about health; the link is number 2, or 0 if there are fewer.
func healthOf(t *testing.T, d nvml.Device) string {
	t.Helper()
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: nvml.FI_DEV_REMAPPED_PENDING},
		{FieldId: nvml.FI_DEV_POWER_AVERAGE}}
	success(t, d.GetFieldValues(fields))
	number := func(i int) uint32 { return binary.NativeEndian.Uint32(fields[i].Value[:]) }
	corrected, uncorrected, pending, failed, ret := d.GetRemappedRows()
	if ret2 := nvml.Return(fields[1].NvmlReturn); ret2 != ret || (number(1) == 1) != pending {
		t.Errorf("the field says %d and %v, the call %v and %v", number(1), ret2, pending, ret)
	}
	if fields[0].ValueType != uint32(nvml.VALUE_TYPE_UNSIGNED_INT) ||
		nvml.Return(fields[2].NvmlReturn) != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("got fields %+v", fields)
	}
	pages, pagesRet := d.GetRetiredPagesPendingStatus()
	link, linkRet := d.GetNvLinkState(2)
	if linkRet != nvml.SUCCESS {
		link, _ = d.GetNvLinkState(0)
	}
	fabric, _ := d.GetGpuFabricInfo_v4()
	route := fabric.HealthMask >> nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY &
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY
	clocks, clocksRet := d.GetCurrentClocksEventReasons()
	success(t, clocksRet)
	return fmt.Sprintf("action %d; rows %d %d %t %t %v; pages %d %v; link %d; fabric %d %d unhealthy=%d; clocks %#x",
		number(0), corrected, uncorrected, pending, failed, ret, pages, pagesRet, link, fabric.State,
		fabric.HealthSummary, route, clocks)
}

// A change of the recovery action is an event, for a GPU that reports such events.
func TestRecoveryActionEvent(t *testing.T) {
	base, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	p, err := simulator.ParseProfile([]byte(strings.ReplaceAll(base.YAML(), "GetSupportedEventTypes: 0x1f",
		"GetSupportedEventTypes: 0x801f")))
	must(t, err)
	n, err := simulator.Open(tmpfs.Dir(t), p)
	must(t, err)
	initialise(t, n)
	set := events(t, n, 2, nvml.EventTypeGpuRecoveryAction)
	for _, setting := range []string{"recovery-action=reset", "recovery-action=reset", "recovery-action=none"} {
		change, err := node.ParseHealth([]string{setting})
		must(t, err)
		must(t, n.ChangeHealth("1", change))
	}
	want := []string{"1 32768 0", "1 32768 0", "ERROR_TIMEOUT"}
	if got := []string{wait(set), wait(set), wait(set)}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEventTypes are those of go-nvml.
func TestEventTypes(t *testing.T) {
	for got, want := range map[node.EventType]uint64{
		node.EventSingleBitECC: nvml.EventTypeSingleBitEccError,
		node.EventDoubleBitECC: nvml.EventTypeDoubleBitEccError,
		node.EventPState:       nvml.EventTypePState, node.EventXID: nvml.EventTypeXidCriticalError,
		node.EventClock: nvml.EventTypeClock, node.EventRecoveryAction: nvml.EventTypeGpuRecoveryAction,
	} {
		if uint64(got) != want {
			t.Errorf("got %#x, want %#x", got, want)
		}
	}
}

// TestUseOfNVML: between Init and Shutdown, resets are refused; without the driver, Init is.
func TestUseOfNVML(t *testing.T) {
	n := closed(t, "t4-x2")
	lib, admin := n.NVML(), other(t, n)
	const busy = "ERROR_IN_USE"
	for _, tt := range []struct {
		name string
		do   func() string
		want string
	}{
		{"reset", func() string { return string(node.CodeOf(admin.Reset("0"))) }, ""},
		{"init", func() string { return says(lib.Init()) }, "SUCCESS"},
		{"init again", func() string { return says(lib.InitWithFlags(nvml.INIT_FLAG_NO_GPUS)) }, "SUCCESS"},
		{"reset of one in use", func() string { return string(node.CodeOf(admin.Reset("0"))) }, busy},
		{"unload of one in use", func() string { return string(node.CodeOf(admin.Unload())) }, busy},
		{"shutdown", func() string { return says(lib.Shutdown()) }, "SUCCESS"},
		{"one is left", func() string { return string(node.CodeOf(admin.Reset("0"))) }, busy},
		{"the last shutdown", func() string { return says(lib.Shutdown()) }, "SUCCESS"},
		{"one too many", func() string { return says(lib.Shutdown()) }, "ERROR_UNINITIALIZED"},
		{"a call after it", func() string { return says(lib.DeviceGetCount()) }, "0 ERROR_UNINITIALIZED"},
		{"reset after it", func() string { return string(node.CodeOf(admin.Reset("0"))) }, ""},
		{"unload", func() string { return string(node.CodeOf(admin.Unload())) }, ""},
		{"init without the driver", func() string { return says(lib.Init()) }, "ERROR_DRIVER_NOT_LOADED"},
		{"a refused init is no use", func() string { return string(node.CodeOf(admin.Unload())) }, ""},
		{"load", func() string { return string(node.CodeOf(admin.Load())) }, ""},
		{"init with the driver", func() string { return says(lib.Init()) }, "SUCCESS"},
		{"in use again", func() string { return string(node.CodeOf(admin.Unload())) }, busy},
	} {
		if got := tt.do(); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	lib.Shutdown()
}
