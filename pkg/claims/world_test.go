// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const driver = "gpu.nvidia.com"

// world is a node without a cluster: records and CDI specs on a real disk, and three GPUs. Everything that a driver could hold in
// memory is made anew for every verb, as if each were served by another process.
type world struct {
	t       *testing.T
	dir     string
	boot    int
	gpus    []gpu.Device
	breaker *breaker

	patience time.Duration
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), breaker: &breaker{}}
	for n := range 3 {
		w.plug(n + 1)
	}
	return w
}

func (w *world) plug(n int) {
	pci := gpu.PCIAddress{Bus: uint8(n)}
	w.gpus = append(w.gpus, gpu.Device{Name: fmt.Sprintf("gpu-%d", n), PCI: pci, UUID: gpu.UUID(fmt.Sprintf("GPU-%d", n)), Minor: n - 1})
}

func (w *world) cdiDir() string   { return filepath.Join(w.dir, "cdi") }
func (w *world) stateDir() string { return filepath.Join(w.dir, "state") }

func (w *world) preparer() *claims.Preparer {
	w.t.Helper()
	records, err := checkpoint.Open(w.stateDir())
	if err != nil {
		w.t.Fatal(err)
	}
	specs, err := cdi.NewSpecs(driver, w.cdiDir())
	if err != nil {
		w.t.Fatal(err)
	}
	return &claims.Preparer{
		Driver: driver,
		BootID: fmt.Sprint("boot-", w.boot),

		Patience: w.patience,
		Specs:    brokenSpecs{specs, w.breaker},
		Records:  brokenRecords{records, w.breaker},
		Node: func() (claims.Node, error) {
			return claims.Node{Inventory: inventory.New(w.gpus), Hardware: brokenHardware{w.breaker}}, nil
		},
	}
}

// claim is allocated the devices given as "gpu-1,gpu-2", one request each; "A=1" after a space sets a variable. "#s" after a device
// is its share, "!" means admin access.
func claim(name, allocated string) *resourceapi.ResourceClaim {
	devices, env, _ := strings.Cut(allocated, " ")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range strings.Split(devices, ",") {
		d, admin := strings.CutSuffix(d, "!")
		d, share, shared := strings.Cut(d, "#")
		result := resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("r%d", i), Driver: driver, Pool: "node", Device: d}
		if admin {
			result.AdminAccess = &admin
		}
		if shared {
			result.ShareID = (*types.UID)(&share)
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result)
	}
	if key, value, ok := strings.Cut(env, "="); ok {
		raw := fmt.Sprintf(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","environment":{%q:%q}}`, key, value)
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}}}}}
	}
	return c
}

// do runs one verb and says what came of it.
func (w *world) do(verb string) string {
	w.t.Helper()
	word, rest, _ := strings.Cut(verb, " ")
	name, rest, _ := strings.Cut(rest, " ")
	var err error
	switch word {
	case "prepare":
		var grants []checkpoint.Grant
		grants, err = w.preparer().Prepare(context.Background(), claim(name, rest))
		if err == nil {
			return grantText(grants)
		}
	case "unprepare":
		err = w.preparer().Unprepare(context.Background(), types.UID(name))
	case "restart":
		err = w.preparer().Resume(context.Background())
	case "reboot":
		w.boot++
		err = os.RemoveAll(w.cdiDir())
	case "lose": // a CDI file, by hand
		err = os.Remove(filepath.Join(w.cdiDir(), "k8s.gpu.nvidia.com-"+name+".json"))
	case "truncate": // a record
		err = os.Truncate(filepath.Join(w.stateDir(), "claims", name+".json"), 20)
	case "plug": // a GPU, by its number
		w.plug(int(name[0] - '0'))
	case "unplug": // a GPU
		for i, d := range w.gpus {
			if d.Name == name {
				w.gpus = append(w.gpus[:i:i], w.gpus[i+1:]...)
			}
		}
	default:
		w.t.Fatalf("unknown verb %q", verb)
	}
	if err != nil {
		return "error: " + strings.ReplaceAll(err.Error(), w.dir, "<dir>")
	}
	return "ok"
}

func grantText(grants []checkpoint.Grant) string {
	var out []string
	for _, g := range grants {
		out = append(out, fmt.Sprintf("%s=%s/%s", g.Request, g.Pool, g.Device))
	}
	return strings.Join(out, " ")
}

// String is everything that is on disk: a line for each record, and one for each CDI device.
func (w *world) String() string {
	var lines []string
	files, _ := filepath.Glob(filepath.Join(w.stateDir(), "claims", "*.json"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		var rec checkpoint.Record
		if err := json.Unmarshal(data, &rec); err != nil {
			lines = append(lines, "unreadable "+filepath.Base(f))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s", rec.Claim.UID, rec.Phase, rec.BootID, strings.Join(rec.Plan.Devices(), ",")))
	}
	files, _ = filepath.Glob(filepath.Join(w.cdiDir(), "*"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		var spec specs.Spec
		if err := json.Unmarshal(data, &spec); err != nil {
			lines = append(lines, "unreadable "+filepath.Base(f))
			continue
		}
		for _, d := range spec.Devices {
			line := "cdi " + d.Name
			for _, n := range d.ContainerEdits.DeviceNodes {
				line += " " + n.Path
			}
			lines = append(lines, strings.TrimSpace(line+" "+strings.Join(d.ContainerEdits.Env, " ")))
		}
	}
	return strings.Join(lines, "\n")
}

// errCut is a process that dies: the step fails, and so does everything after it.
var errCut = errors.New("cut off")

// breaker counts the steps that leave a trace and cuts the process off at one of them.
type breaker struct {
	at     int  // which step, counted from 1; 0: never
	after  bool // the step is still done, but nobody hears of it
	passed int
	mu     sync.Mutex
}

func (b *breaker) step(do func() error) error {
	b.mu.Lock()
	b.passed++
	passed := b.passed
	b.mu.Unlock()
	switch {
	case b.at == 0 || passed < b.at:
		return do()
	case passed == b.at && b.after:
		return errors.Join(do(), errCut)
	}
	return errCut
}

type brokenRecords struct {
	claims.Records
	*breaker
}

func (r brokenRecords) Put(rec checkpoint.Record) error {
	return r.step(func() error { return r.Records.Put(rec) })
}

func (r brokenRecords) Delete(rec checkpoint.Record) error {
	return r.step(func() error { return r.Records.Delete(rec) })
}

func (r brokenRecords) Holders(devices []string, except types.UID) (found []sharing.Holder, err error) {
	err = r.step(func() error { found, err = r.Records.Holders(devices, except); return err })
	return found, err
}

type brokenSpecs struct {
	claims.Specs
	*breaker
}

func (s brokenSpecs) WriteDriver(common gpu.Access) (name string, err error) {
	err = s.step(func() error { name, err = s.Specs.WriteDriver(common); return err })
	return name, err
}

func (s brokenSpecs) WriteClaim(claim types.UID, devices []cdi.Device) (names []string, err error) {
	err = s.step(func() error { names, err = s.Specs.WriteClaim(claim, devices); return err })
	return names, err
}

func (s brokenSpecs) RemoveClaim(claim types.UID) error {
	return s.step(func() error { return s.Specs.RemoveClaim(claim) })
}

type brokenHardware struct{ *breaker }

func (h brokenHardware) DriverAccess() (a gpu.Access, err error) {
	err = h.step(func() error { a.Env = []string{"COMMON=1"}; return nil })
	return a, err
}

func (h brokenHardware) Access(d gpu.Device) (a gpu.Access, err error) {
	err = h.step(func() error {
		path := fmt.Sprint("/dev/nvidia", d.Minor)
		a.Nodes = []gpu.Node{{Path: path, HostPath: path, Type: "c", Major: 60, Minor: int64(d.Minor)}}
		return nil
	})
	return a, err
}
