// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/plugin"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// The test program starts itself as a driver that serves the one call in the first variable, in the directory in the other.
const (
	callVariable = "STEPS_TEST_CALL"
	dirVariable  = "STEPS_TEST_DIR"
)

// TestDriver is that driver. It is not a test of its own.
func TestDriver(t *testing.T) {
	words := strings.Fields(os.Getenv(callVariable))
	if len(words) == 0 {
		t.Skip("run by the other tests")
	}
	if err := serve(stepped(t, os.Getenv(dirVariable)), node.Verb(words[0]), words[1], words[2:]...); err != nil {
		t.Fatal(err)
	}
}

// serve serves one call for the claim of that name, which has these devices.
func serve(p *claims.Preparer, verb node.Verb, name string, devices ...string) error {
	if verb == node.Unprepare {
		return p.Unprepare(context.Background(), types.UID(name))
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprint("r", i), Driver: "gpu.nvidia.com", Pool: "n", Device: d})
	}
	_, err := p.Prepare(context.Background(), claim)
	return err
}

// preparer is a driver over the directory, without a cluster and with GPUs of which only the device nodes matter.
func preparer(t *testing.T, dir string) (*claims.Preparer, *plugin.Config) {
	t.Helper()
	records, err := checkpoint.Open(filepath.Join(dir, "plugin"))
	must(t, err)
	specs, err := cdi.NewSpecs("gpu.nvidia.com", filepath.Join(dir, "cdi"))
	must(t, err)
	var gpus []gpu.Device
	for i := range 8 {
		gpus = append(gpus, gpu.Device{Name: fmt.Sprint("gpu-", i), UUID: gpu.UUID(fmt.Sprint("GPU-", i)), Minor: i})
	}
	c := &plugin.Config{Specs: specs, Records: records, Daemons: mps.Dir(filepath.Join(dir, "mps")), Discover: func() (claims.Node, []error, error) {
		return claims.Node{Inventory: inventory.New(gpus), Hardware: paths{}}, nil, nil
	}}
	return &claims.Preparer{Driver: "gpu.nvidia.com", BootID: "boot", Daemons: c.Daemons}, c
}

// stepped is that driver as --simulate makes it.
func stepped(t *testing.T, dir string) *claims.Preparer {
	t.Helper()
	p, c := preparer(t, dir)
	machine, err := sim.Attach(filepath.Join(dir, "sim"))
	must(t, err)
	withSteps(machine, c)
	p.Specs, p.Records, p.Daemons = c.Specs, c.Records, c.Daemons
	p.Node = func() (claims.Node, error) { n, _, err := c.Discover(); return n, err }
	return p
}

// paths is hardware that has device nodes and nothing else.
type paths struct{}

func (paths) DriverAccess() (gpu.Access, error) { return gpu.Access{Env: []string{"COMMON=1"}}, nil }

func (paths) Access(d gpu.Device) (gpu.Access, error) {
	path := fmt.Sprint("/dev/nvidia", d.Minor)
	return gpu.Access{Nodes: []gpu.Node{{Path: path, HostPath: path, Type: "c", Major: 120, Minor: int64(d.Minor)}}}, nil
}

func (paths) Configure(context.Context, gpu.UUID, gpu.Settings, gpu.Settings) error { return nil }

func (paths) Vacant(gpu.Placement) error { return nil }

func (paths) Divide(context.Context, gpu.UUID) error { return nil }

func (paths) Create(context.Context, gpu.Placement, gpu.UUID) (gpu.UUID, error) { return "", nil }

func (paths) Destroy(context.Context, gpu.Placement, gpu.UUID) error { return nil }

func (paths) Merge(context.Context, gpu.UUID) error { return nil }

func (paths) MemoryLimit(gpu.Device) (gpu.Access, error) { return gpu.Access{}, nil }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine makes a simulated machine for the driver over the directory.
func machine(t testing.TB, dir string) *node.Node {
	t.Helper()
	p, err := sim.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(filepath.Join(dir, "sim"), p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const notStarted = "not started: "

// process serves a call in another process and says how that ended.
func process(dir, call string, flags uintptr) string {
	c := exec.Command(os.Args[0], "-test.run=^TestDriver$")
	c.Env = append(os.Environ(), callVariable+"="+call, dirVariable+"="+dir, "GORACE=atexit_sleep_ms=0")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &exit):
		return notStarted + err.Error()
	case exit.ExitCode() == 1:
		return out.String()
	}
	return exit.String()
}

// files is everything that the driver has on disk.
func files(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	for _, part := range []string{"plugin", "cdi"} {
		must(t, filepath.WalkDir(filepath.Join(dir, part), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			name, _ := filepath.Rel(dir, path)
			fmt.Fprintf(&b, "%s: %s\n", name, content)
			return err
		}))
	}
	return b.String()
}
