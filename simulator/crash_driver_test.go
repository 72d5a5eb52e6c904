// SPDX-License-Identifier: Apache-2.0

package simulator

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

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// The test program starts itself as a driver that serves one call: one variable has the call, the other the directory.
const (
	callVariable = "STEPS_TEST_CALL"
	dirVariable  = "STEPS_TEST_DIR"
)

// TestDriver is that driver, not a test.
func TestDriver(t *testing.T) {
	words := strings.Fields(os.Getenv(callVariable))
	if len(words) == 0 {
		t.Skip("run by the other tests")
	}
	if err := serve(stepped(t, os.Getenv(dirVariable)), node.Verb(words[0]), words[1], words[2:]...); err != nil {
		t.Fatal(err)
	}
}

// serve serves one call for the named claim with these devices.
func serve(d driver, verb node.Verb, name string, devices ...string) error {
	ctx := steps.With(context.Background(), d.crashes.observe)
	if verb == node.Unprepare {
		return d.Unprepare(ctx, sharing.Claim{Name: name, UID: types.UID(name)})
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID: types.UID(name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprint("r", i), Driver: "gpu.nvidia.com", Pool: "n",
				Device: d})
	}
	_, err := d.Prepare(ctx, claim)
	return err
}

// driver returns a driver that crashes as ordered on the machine in its directory.
type driver struct {
	*claims.Preparer
	crashes *crashes
}

// stepped returns a driver over the directory, without a cluster. Only the device nodes of its GPUs matter.
func stepped(t *testing.T, dir string) driver {
	t.Helper()
	records, err := checkpoint.Open(filepath.Join(dir, "plugin"))
	mustBe(t, err)
	specs, err := cdi.NewSpecs("gpu.nvidia.com", filepath.Join(dir, "cdi"))
	mustBe(t, err)
	var gpus []gpu.Device
	for i := range 8 {
		gpus = append(gpus, gpu.Device{Name: fmt.Sprint("gpu-", i), UUID: gpu.UUID(fmt.Sprint("GPU-", i)), Minor: i})
	}
	machine, err := Attach(filepath.Join(dir, "sim"))
	mustBe(t, err)
	return driver{
		&claims.Preparer{Driver: "gpu.nvidia.com", BootID: "boot", Daemons: mps.Dir(filepath.Join(dir, "mps")),
			Specs: specs, Records: records, Toolkit: paths{},
			Devices: func() (inventory.Inventory, error) { return inventory.New(gpus), nil }},
		&crashes{machine: machine.Node, die: die},
	}
}

// paths is a toolkit that has device nodes and nothing else.
type paths struct{}

func (paths) DriverAccess(context.Context) (gpu.Access, error) {
	return gpu.Access{Env: []string{"COMMON=1"}}, nil
}

func (paths) Access(_ context.Context, d gpu.Device) (gpu.Access, error) {
	path := fmt.Sprint("/dev/nvidia", d.Minor)
	return gpu.Access{Nodes: []gpu.DeviceNode{{Path: path, HostPath: path, Type: "c", Major: 120,
		Minor: int64(d.Minor)}}}, nil
}

func (paths) MemoryLimit(gpu.Device) (gpu.Access, error) { return gpu.Access{}, nil }

func mustBe(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine makes a simulated machine for the driver over the directory.
func machine(t testing.TB, dir string) *node.Node {
	t.Helper()
	p, err := BuiltIn("t4-x2")
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

// process serves a call in another process and returns its result.
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
		mustBe(t, filepath.WalkDir(filepath.Join(dir, part), func(path string, e fs.DirEntry, err error) error {
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
