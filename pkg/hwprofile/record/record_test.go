// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile/record"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is a simulated machine with its part of /sys.
func machine(t *testing.T, dir string, p simulator.Profile) *simulator.Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	n, err := simulator.Open(dir, p)
	must(t, err)
	must(t, n.LayOut(simulator.Programs{}))
	return n
}

func builtIn(t *testing.T, name string) *simulator.Node {
	t.Helper()
	p, err := simulator.BuiltIn(name)
	must(t, err)
	return machine(t, tmpfs.Dir(t), p)
}

func read(t *testing.T, n *simulator.Node) record.Recording {
	t.Helper()
	r, err := record.Read(record.Machine{Library: n.NVML(), Sysfs: filepath.Join(n.DriverRoot(), "sys"), Name: "x",
		Kernel: "6.1"})
	must(t, err)
	return r
}

func write(t *testing.T, r record.Recording) string {
	t.Helper()
	text, err := r.YAML()
	must(t, err)
	return string(text)
}

// replay is a machine that is what the recording says, in place of the one before.
func replay(t *testing.T, in *simulator.Node, text string) *simulator.Node {
	t.Helper()
	p, err := simulator.ParseProfile([]byte(text))
	must(t, err)
	return machine(t, in.Dir(), p)
}

// change is what differs between two texts.
func change(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d:\n%s\n%s", i+1, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(x), len(y))
}

func TestRecordingRoundTrip(t *testing.T) {
	for _, name := range simulator.Profiles() {
		t.Run(name, func(t *testing.T) {
			n := builtIn(t, name)
			first := write(t, read(t, n))
			second := write(t, read(t, replay(t, n, first)))
			if first != second {
				t.Errorf("they differ at %s", change(first, second))
			}
		})
	}
}

// What strange machines answer is in their recording, and a replay answers the same.
func TestUnusualMachines(t *testing.T) {
	for _, row := range []struct {
		name, profile string
		spoil         func(n *simulator.Node) error
		want          []string // in the recording
	}{
		{"no GPU", "t4-x2", func(n *simulator.Node) error { return each(n, n.Remove) }, []string{"gpus: []"}},
		{"a call is not supported", "t4-x2", func(n *simulator.Node) error {
			return n.Fail("0", "GetMemoryInfo", hwprofile.NotSupported)
		},
			[]string{"GetMemoryInfo: {error: ERROR_NOT_SUPPORTED}"}},
		{"a call answers an unknown error", "t4-x2", func(n *simulator.Node) error {
			return n.Fail("0",
				"GetNumGpuCores", "ERROR_UNKNOWN")
		},
			[]string{"GetNumGpuCores: {error: ERROR_UNKNOWN}", "GetNumGpuCores: 2560"}},
		{"a call is not permitted", "t4-x2", func(n *simulator.Node) error {
			return n.Fail("0",
				"GetComputeRunningProcesses", "ERROR_NO_PERMISSION")
		},
			[]string{"GetComputeRunningProcesses: {error: ERROR_NO_PERMISSION}"}},
		{"a GPU is lost", "t4-x2", func(n *simulator.Node) error { return n.Unplug("0") },
			[]string{"DeviceGetHandleByIndex: {error: ERROR_GPU_IS_LOST}", "is a GPU that NVML does not name",
				"address: '0000:3b:00.0'"}},
		{"a GPU is lost, but has a handle", "t4-x2", func(n *simulator.Node) error {
			return n.Fail("1", node.AllCalls, hwprofile.LostGPU)
		},
			[]string{"GetUUID: {error: ERROR_GPU_IS_LOST}", "GetPciInfo: {error: ERROR_GPU_IS_LOST}",
				"address: '0000:af:00.0'"}},
		{"a GPU is lost, and gone from the bus", "t4-x2", func(n *simulator.Node) error {
			if err := n.Unplug("1"); err != nil {
				return err
			}
			return os.RemoveAll(filepath.Join(n.DriverRoot(), "sys/bus/pci/devices/0000:af:00.0"))
		}, []string{"0000:3b:01.0 is made up"}},
		{"partitions", "hgx-h200", func(n *simulator.Node) error {
			return errors.Join(n.SwitchMIG("0", hwprofile.Enabled), partition(n, "0", "3g.71gb@4"),
				partition(n, "0", "1g.18gb@0"))
		}, []string{"gpuInstances:", "uuid: MIG-"}},
		{"where partitions can be is not said while the mode is off", "hgx-h200",
			func(n *simulator.Node) error {
				return n.Fail("0", "GetGpuInstancePossiblePlacements", hwprofile.NotSupported)
			},
			[]string{"GetGpuInstancePossiblePlacements: {error: ERROR_NOT_SUPPORTED}"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := builtIn(t, row.profile)
			must(t, row.spoil(n))
			first := write(t, read(t, n))
			for _, want := range row.want {
				if !strings.Contains(first, want) {
					t.Errorf("%q is not in:\n%s", want, first)
				}
			}
			second := write(t, read(t, replay(t, n, first)))
			if withoutNotes(first) != withoutNotes(second) {
				t.Errorf("a replay differs at %s", change(first, second))
			}
		})
	}
}

// withoutNotes leaves out what the recorder found strange: a replay has the place that was made up.
func withoutNotes(text string) string { return text[strings.Index(text, "name:"):] }

func each(n *simulator.Node, do func(which string) error) error {
	v, err := n.View()
	for _, c := range v.GPUs {
		err = errors.Join(err, do(c.UUID))
	}
	return err
}

func partition(n *simulator.Node, which, place string) error {
	_, err := n.CreatePartition(which, place)
	return err
}

func TestMask(t *testing.T) {
	n := builtIn(t, "gb200-nvl4")
	must(t, errors.Join(n.SwitchMIG("1", hwprofile.Enabled), partition(n, "1", "1g.23gb@0")))
	plain := read(t, n)
	text := write(t, plain.Mask())
	v, err := n.View()
	must(t, err)
	for _, c := range v.GPUs {
		secrets := []string{c.UUID, c.Serial}
		for _, p := range c.Partitions() {
			secrets = append(secrets, p.Compute.UUID)
		}
		if f, e := c.Calls.GetGpuFabricInfo.Get(); e == "" {
			secrets = append(secrets, f.ClusterUUID)
		}
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s is in the masked recording", secret)
			}
		}
	}
	for _, want := range []string{"GetUUID: GPU-00000000-0000-0000-0000-000000000003", "GetSerial: \"0000000000002\"",
		"uuid: MIG-00000000-0000-0000-0000-000000000000", "clusterUuid: 00000000-0000-0000-0000-000000000001"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if again := write(t, plain.Mask().Mask()); again != text {
		t.Errorf("masked twice it differs at %s", change(text, again))
	}
	if strings.Contains(write(t, plain), "000000000003") {
		t.Error("the recording itself has been masked")
	}
	replay(t, n, text)
}

// olderLibrary lacks some calls; to call them would end the process.
type olderLibrary struct {
	nvmllib.Interface
	nvmllib.ExtendedInterface
	lacks string
}

func (l olderLibrary) Extensions() nvmllib.ExtendedInterface { return l }

func (l olderLibrary) LookupSymbol(symbol string) error {
	if strings.HasSuffix(symbol, l.lacks) {
		return fmt.Errorf("undefined symbol: %s", symbol)
	}
	return l.ExtendedInterface.LookupSymbol(symbol)
}

func TestMissingCalls(t *testing.T) {
	n := builtIn(t, "t4-x2")
	library := olderLibrary{n.NVML(), n.NVML().Extensions(), "GetNumGpuCores"}
	r, err := record.Read(record.Machine{Library: library, Name: "x"})
	must(t, err)
	if text := write(t, r); !strings.Contains(text, "GetNumGpuCores: {error: ERROR_FUNCTION_NOT_FOUND}") {
		t.Errorf("got:\n%s", text)
	}
}

// brokenLibrary cannot be initialised.
type brokenLibrary struct{ nvmllib.Interface }

func (brokenLibrary) InitWithFlags(uint32) nvmllib.Return {
	return nvmllib.ERROR_LIB_RM_VERSION_MISMATCH
}

func TestNothingToRecord(t *testing.T) {
	if _, err := record.Read(record.Machine{Library: brokenLibrary{}}); err == nil || !strings.HasPrefix(err.Error(),
		"initialise NVML: ") {
		t.Errorf("got %v", err)
	}
}

// onePlacementFails is a library that does not tell the placements of one profile.
type onePlacementFails struct {
	nvmllib.Interface
	id uint32
}

func (l onePlacementFails) DeviceGetHandleByIndex(i int) (nvmllib.Device, nvmllib.Return) {
	d, ret := l.Interface.DeviceGetHandleByIndex(i)
	return onePlacementFailsDevice{d, l.id}, ret
}

type onePlacementFailsDevice struct {
	nvmllib.Device
	id uint32
}

func (d onePlacementFailsDevice) GetGpuInstancePossiblePlacements(
	info *nvmllib.GpuInstanceProfileInfo) ([]nvmllib.GpuInstancePlacement, nvmllib.Return) {
	if info.Id == d.id {
		return nil, nvmllib.ERROR_UNKNOWN
	}
	return d.Device.GetGpuInstancePossiblePlacements(info)
}

// A profile whose placements NVML does not tell is left out of the recording alone, and that is noted.
func TestOneProfileWithoutPlacements(t *testing.T) {
	n := builtIn(t, "dgx-h100")
	r, err := record.Read(record.Machine{Library: onePlacementFails{n.NVML(), 19}, Name: "x", Kernel: "6.1",
		Sysfs: filepath.Join(n.DriverRoot(), "sys")})
	must(t, err)
	text := write(t, r)
	if _, err := simulator.ParseProfile([]byte(text)); err != nil {
		t.Errorf("the recording cannot be replayed: %v", err)
	}
	if strings.Contains(text, "name: 1g.10gb,") || !strings.Contains(text, "name: 2g.20gb,") {
		t.Errorf("want all profiles but 1g.10gb:\n%s", text)
	}
	const note = "GetGpuInstancePossiblePlacements(0) answers ERROR_UNKNOWN"
	if !strings.Contains(text, note) {
		t.Errorf("the recording does not say %q", note)
	}
}
