// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simctl"
)

// simctlOn runs simctl on the node.
func simctlOn(t *testing.T, n *simulator.Node, args ...string) {
	t.Helper()
	c := simctl.Command()
	var out strings.Builder
	c.SetArgs(append([]string{"--dir", n.Dir()}, args...))
	c.SetOut(&out)
	c.SetErr(&out)
	if err := c.Execute(); err != nil {
		t.Fatalf("simctl %s: %v", strings.Join(args, " "), err)
	}
}

// unhealthyDevices are the devices of a resource that the device plugin reports to be unhealthy, list by list.
type unhealthyDevices chan string

// follow receives the lists of the next resource, and returns its name.
func follow(t *testing.T, p *devicePlugin) (resource string, lists unhealthyDevices) {
	t.Helper()
	r := p.registration(t)
	stream := p.watch(t, r)
	lists = make(unhealthyDevices, 100)
	go func() {
		for {
			list, err := stream.Recv()
			if err != nil {
				return // the test ends
			}
			var ids []string
			for _, d := range list.Devices {
				if d.Health != pluginapi.Healthy {
					ids = append(ids, d.ID)
				}
			}
			lists <- strings.Join(ids, " ")
		}
	}()
	if got := lists.next(t); got != "" {
		t.Fatalf("%s: at first, %s is unhealthy", r.ResourceName, got)
	}
	return r.ResourceName, lists
}

func (l unhealthyDevices) next(t *testing.T) string {
	t.Helper()
	select {
	case ids := <-l:
		return ids
	case <-time.After(5 * time.Minute):
		t.Fatal("no list of devices within a minute")
		return ""
	}
}

// none checks that there is no other list.
func (l unhealthyDevices) none(t *testing.T, what string) {
	t.Helper()
	select {
	case ids := <-l:
		t.Errorf("%s: unhealthy: %q", what, ids)
	case <-time.After(200 * time.Millisecond):
	}
}

// says waits until the plugin has written the text, and meanwhile repeats what makes it do so.
func (p *devicePlugin) says(t *testing.T, text string, again func()) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if strings.Contains(p.output.String(), text) {
			return
		}
		again()
	}
	t.Fatalf("the device plugin does not say %q:\n%s", text, p.output)
}

// TestNVIDIADevicePluginSeesXIDs: NVIDIA's device plugin takes a GPU with an XID for unhealthy, but not one with an
// XID of a program.
func TestNVIDIADevicePluginSeesXIDs(t *testing.T) {
	library(t)
	n := simulate(t, builtIn(t, "t4-x2", ""))
	v, err := n.View()
	must(t, err)
	p := startPlugin(t)
	_, lists := follow(t, p)
	// It registers for events some time after its resource: the first event that it sees is one that it ignores.
	p.says(t, "Skipping event", func() { simctlOn(t, n, "xid", "1", "31") })
	lists.none(t, "an XID that it ignores")
	simctlOn(t, n, "ecc", "1", "double")
	p.says(t, "Skipping non-nvmlEventTypeXidCriticalError event", func() {})
	lists.none(t, "an ECC error, which it ignores")
	simctlOn(t, n, "xid", "0", "79")
	if got, want := lists.next(t), v.GPUs[0].UUID; got != want {
		t.Errorf("after an XID: %q is unhealthy, want %q", got, want)
	}
	simctlOn(t, n, "xid", "1", "48")
	if got, want := lists.next(t), v.GPUs[0].UUID+" "+v.GPUs[1].UUID; !sameWords(got, want) {
		t.Errorf("after another: %q are unhealthy, want %q", got, want)
	}
}

func sameWords(a, b string) bool {
	return len(strings.Fields(a)) == len(strings.Fields(b)) && strings.Contains(a, strings.Fields(b)[0]) &&
		strings.Contains(a, strings.Fields(b)[1])
}

// TestNVIDIADevicePluginSeesXIDsOfPartitions: an XID of a partition makes only that one unhealthy.
func TestNVIDIADevicePluginSeesXIDsOfPartitions(t *testing.T) {
	library(t)
	if os.Geteuid() != 0 {
		t.Skip("partitions have device nodes, which only root can make")
	}
	n := simulate(t, builtIn(t, "dgx-h100", ""))
	must(t, n.LayOut(simulator.Programs{}))
	partitionFirst(t, n)
	v, err := n.View()
	must(t, err)
	p := startPlugin(t)
	resources := map[string]unhealthyDevices{}
	for range 3 { // GPUs, 1g.10gb and 2g.20gb
		name, lists := follow(t, p)
		resources[name] = lists
	}
	var uuid, place string
	for _, part := range v.GPUs[0].Partitions() {
		if part.Name == "1g.10gb" {
			uuid, place = part.Compute.UUID, fmt.Sprint("0/1g.10gb@", part.Instance.Span.Start)
		}
	}
	lists := resources["nvidia.com/mig-1g.10gb"]
	// The plugin registers for events some time after its resource.
	p.says(t, "marking device as unhealthy", func() { simctlOn(t, n, "xid", place, "94") })
	if got := lists.next(t); got != uuid {
		t.Errorf("%q is unhealthy, want %q", got, uuid)
	}
	resources["nvidia.com/mig-2g.20gb"].none(t, "the other partition")
	resources["nvidia.com/gpu"].none(t, "the other GPUs")
}

// TestNVIDIAEventsAndHealth: what happens in the simulation is what go-nvml gets through the library.
func TestNVIDIAEventsAndHealth(t *testing.T) {
	n := simulate(t, builtIn(t, "dgx-h100", ""))
	lib := load(t)
	first, ret := lib.DeviceGetHandleByIndex(0)
	succeed(t, "handle", ret)
	set, ret := lib.EventSetCreate()
	succeed(t, "create a set of events", ret)
	succeed(t, "register", first.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	simctlOn(t, n, "xid", "1", "48")
	go func() {
		time.Sleep(20 * time.Millisecond)
		simctlOn(t, n, "xid", "0", "79")
	}()
	event, ret := set.Wait(60_000)
	succeed(t, "wait", ret)
	want := nvml.EventData{Device: first, EventType: nvml.EventTypeXidCriticalError, EventData: 79,
		GpuInstanceId: 0xffffffff, ComputeInstanceId: 0xffffffff}
	if event != want {
		t.Errorf("got %+v, want %+v", event, want)
	}
	simctlOn(t, n, "health", "0", "recovery-action=drain-and-reset", "remapped-rows=pending", "nvlink-down=3",
		"fabric=unhealthy")
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	succeed(t, "field values", first.GetFieldValues(fields))
	const action = nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET
	if got := binary.NativeEndian.Uint32(fields[0].Value[:]); got != uint32(action) {
		t.Errorf("recovery action: got %d, want %d", got, action)
	}
	if _, _, pending, failed, ret := first.GetRemappedRows(); !pending || failed || ret != nvml.SUCCESS {
		t.Errorf("rows: pending %v, failed %v, %v", pending, failed, ret)
	}
	if state, ret := first.GetNvLinkState(3); state != nvml.FEATURE_DISABLED || ret != nvml.SUCCESS {
		t.Errorf("link 3: %v, %v", state, ret)
	}
	v2, ret := first.GetGpuFabricInfoV().V2()
	succeed(t, "fabric, version 2", ret)
	v3, ret := first.GetGpuFabricInfoV().V3()
	succeed(t, "fabric, version 3", ret)
	if route := v2.HealthMask >> nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY & 3; v2.HealthMask !=
		v3.HealthMask || route != nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE ||
		v3.HealthSummary != nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY {
		t.Errorf("fabric: got %+v and %+v", v2, v3)
	}
	if err := n.Reset("0"); err == nil {
		t.Error("a reset while the library is initialized: no error")
	}
	succeed(t, "free the set", set.Free())
	succeed(t, "shutdown", lib.Shutdown())
	must(t, n.Reset("0"))
	must(t, n.Unload())
	if ret := lib.Init(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("init without the driver: got %v, want %v", ret, nvml.ERROR_DRIVER_NOT_LOADED)
	}
}
