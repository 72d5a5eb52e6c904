// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
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

	settings   map[gpu.UUID]gpu.Settings  // of the hardware, other than the factory's
	mig        map[gpu.UUID]bool          // whether it is in the mode for partitions
	partitions map[gpu.Placement]gpu.UUID // those that there are; "" while they are half made
	made       int                        // partitions since the beginning
	busy       bool                       // somebody uses the GPUs
	supervised bool                       // MPS daemons start when they are wanted
	patience   time.Duration
	containers []claims.Container // of the pods that use the claim
	mu         sync.Mutex

	superviseOnce sync.Once
}

// supervise holds the lock by which a supervisor of MPS daemons is known to live.
func (w *world) supervise(dir string) {
	d, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = d.Close() })
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), breaker: &breaker{}, settings: map[gpu.UUID]gpu.Settings{}, supervised: true,
		mig: map[gpu.UUID]bool{}, partitions: map[gpu.Placement]gpu.UUID{}}
	for n := range 3 {
		w.plug(n + 1)
	}
	return w
}

func (w *world) plug(n int) {
	pci := gpu.PCIAddress{Bus: uint8(n)}
	w.gpus = append(w.gpus, gpu.Device{Name: fmt.Sprintf("gpu-%d", n), PCI: pci, UUID: gpu.UUID(fmt.Sprintf("GPU-%d", n)), Minor: n - 1, Memory: 80 << 30,
		Use: gpu.Use{Partitions: gpu.PartitionsDynamic}})
}

// inventory is the GPUs and a few places for partitions on each.
func (w *world) inventory() inventory.Inventory {
	devices := slices.Clone(w.gpus)
	for _, d := range w.gpus {
		for _, at := range []gpu.Placement{{Profile: "1g.10gb", Size: 1}, {Profile: "1g.10gb", Start: 1, Size: 1}, {Profile: "2g.20gb", Size: 2}, {Profile: "3g.40gb", Start: 4, Size: 4}} {
			at.Parent = d.UUID
			name := gpu.PartitionName(d.Name, at)
			devices = append(devices, gpu.Device{Name: name, Type: gpu.TypeMIG, UUID: gpu.UUID(name), Minor: d.Minor, Memory: 10 << 30, Partition: &gpu.Partition{Placement: at}})
		}
	}
	return inventory.New(devices)
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
		Daemons:  brokenDaemons{mps.Dir(filepath.Join(w.dir, "mps")), w},
		Paths:    claims.Paths{Preload: filepath.Join(w.dir, "hook")},
		Containers: func(context.Context, *resourceapi.ResourceClaim) ([]claims.Container, error) {
			return w.containers, nil
		},
		Specs:   brokenSpecs{specs, w.breaker},
		Records: brokenRecords{records, w.breaker},
		Node: func() (claims.Node, error) {
			return claims.Node{Inventory: w.inventory(), Hardware: brokenHardware{w.breaker, w}}, nil
		},
	}
}

// claim is allocated the devices given as "gpu-1,gpu-2", one request each; after a space, "A=1" sets a variable, and "Long" or "MPS"
// says how its containers share them. "#s" after a device is its share, ":5Gi/30" how much of it, "!" means admin access.
func claim(name, allocated string) *resourceapi.ResourceClaim {
	devices, env, _ := strings.Cut(allocated, " ")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range strings.Split(devices, ",") {
		d, admin := strings.CutSuffix(d, "!")
		d, amount, counted := strings.Cut(d, ":")
		d, share, shared := strings.Cut(d, "#")
		result := resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("r%d", i), Driver: driver, Pool: "node", Device: d}
		if admin {
			result.AdminAccess = &admin
		}
		if shared {
			result.ShareID = (*types.UID)(&share)
		}
		if memory, cores, _ := strings.Cut(amount, "/"); counted {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(memory), "cores": resource.MustParse(cores)}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result)
	}
	if env == "" {
		return c
	}
	var config string
	switch key, value, isEnv := strings.Cut(env, "="); {
	case isEnv:
		config = fmt.Sprintf(`"environment":{%q:%q}`, key, value)
	case env == "MPS":
		config = `"sharing":{"strategy":"MPS"}`
	default:
		config = fmt.Sprintf(`"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":%q}}`, env)
	}
	kind := "GpuConfig"
	if gpu.IsPartition(devices) {
		kind = "MigDeviceConfig"
	}
	raw := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `",` + config + `}`
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}}}}}
	return c
}

// uses are ways in which a GPU may be used.
var uses = map[string]gpu.Use{
	"none":   {Isolation: gpu.IsolationNone},
	"hook":   {Isolation: gpu.IsolationHook, Hook: gpu.HookLibrary{Path: "/opt/libvgpu.so"}},
	"cgroup": {Isolation: gpu.IsolationCgroup},
}

// do runs one verb and says what came of it.
func (w *world) do(verb string) string {
	w.t.Helper()
	word, rest, _ := strings.Cut(verb, " ")
	name, rest, _ := strings.Cut(rest, " ")
	var err error
	switch word {
	case "prepare":
		var rec checkpoint.Record
		rec, err = w.preparer().Prepare(context.Background(), claim(name, rest))
		if err == nil {
			return grantText(rec.Grants)
		}
	case "unprepare":
		err = w.preparer().Unprepare(context.Background(), types.UID(name))
	case "restart":
		err = w.preparer().Resume(context.Background())
	case "reboot":
		w.boot++
		clear(w.settings)
		clear(w.mig)
		clear(w.partitions)
		err = os.RemoveAll(w.cdiDir())
	case "reset": // the GPUs, as an update of the driver does
		clear(w.settings)
	case "busy": // "yes" or "no": somebody has the GPUs open
		w.busy = name == "yes"
	case "partition": // by an administrator: a GPU, and a profile and where it starts
		profile, start, _ := strings.Cut(rest, "@")
		w.mig["GPU-"+gpu.UUID(name[len("gpu-"):])] = true
		w.partitions[gpu.Placement{Parent: "GPU-" + gpu.UUID(name[len("gpu-"):]), Profile: profile, Start: int(start[0] - '0'), Size: 1}] = "MIG-hand"
	case "remove": // every partition, by hand
		clear(w.partitions)
	case "supervisor": // "away" or "back"
		w.supervised = name == "back"
	case "use": // a GPU, in another way
		for i := range w.gpus {
			if w.gpus[i].Name == name {
				w.gpus[i].Use = uses[rest]
			}
		}
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

// String is everything there is: a line for each GPU that is not as it came from the factory, for each MPS daemon, for each record, and
// for each CDI device.
func (w *world) String() string {
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(w.settings)) {
		lines = append(lines, fmt.Sprintf("%s: %s", id, w.settings[id]))
	}
	for _, id := range slices.Sorted(maps.Keys(w.mig)) {
		lines = append(lines, fmt.Sprintf("%s: mig", id))
	}
	for at, id := range w.partitions {
		lines = append(lines, fmt.Sprintf("%s: %s at %d, %s", at.Parent, at.Profile, at.Start, strings.TrimRight(string(id), "0123456789")))
	}
	slices.Sort(lines)
	daemons, err := mps.Dir(filepath.Join(w.dir, "mps")).Wanted()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range daemons {
		line := fmt.Sprintf("daemon %s %d%%", d.ID, d.ThreadPercentage)
		for _, id := range d.GPUs {
			line += fmt.Sprintf(" %s=%dMi", migUUID.ReplaceAllString(string(id), "MIG-"), d.Memory[id]>>20)
		}
		lines = append(lines, line)
	}
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
			for _, m := range d.ContainerEdits.Mounts {
				line += " " + m.ContainerPath
			}
			line = strings.TrimSpace(line + " " + strings.Join(d.ContainerEdits.Env, " "))
			lines = append(lines, strings.ReplaceAll(line, w.dir, "<dir>"))
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

type brokenHardware struct {
	*breaker
	w *world
}

func (h brokenHardware) DriverAccess() (a gpu.Access, err error) {
	err = h.step(func() error { a.Env = []string{"COMMON=1"}; return nil })
	return a, err
}

func (h brokenHardware) Access(d gpu.Device) (a gpu.Access, err error) {
	err = h.step(func() error {
		if d.Type == gpu.TypeMonitor {
			return nil
		}
		path := fmt.Sprint("/dev/nvidia", d.Minor)
		a.Nodes = []gpu.Node{{Path: path, HostPath: path, Type: "c", Major: 60, Minor: int64(d.Minor)}}
		if p := d.Partition; p != nil {
			if id := h.w.partitions[p.Placement]; id == "" || id != d.UUID {
				return fmt.Errorf("%s: there is %q, not %q", d.Name, id, d.UUID)
			}
			a.Env = []string{"PARTITION=" + p.Profile}
		}
		return nil
	})
	return a, err
}

// migUUID is the UUID of a partition, which is another one each time it is made.
var migUUID = regexp.MustCompile("MIG-[0-9]+")

func (h brokenHardware) Vacant(at gpu.Placement) error {
	for other, id := range h.w.partitions {
		if other.Overlaps(at) {
			return fmt.Errorf("%s (%s): %w", other, id, gpu.ErrForeign)
		}
	}
	return nil
}

func (h brokenHardware) Divide(_ context.Context, id gpu.UUID) error {
	return h.onHardware(func() error { return h.w.setMIG(id, true) })
}

// Create takes the two steps that real hardware takes.
func (h brokenHardware) Create(_ context.Context, at gpu.Placement, was gpu.UUID) (id gpu.UUID, err error) {
	switch is, on := h.w.partitionAt(at); {
	case was != "" && is == "":
		return "", fmt.Errorf("%s: %w", was, gpu.ErrRemoved)
	case was != "" && is != was:
		return "", gpu.ErrForeign
	case !on:
		return "", errors.New("not in the mode for partitions")
	}
	err = h.onHardware(func() error { h.w.partitions[at] += ""; return nil })
	if err == nil {
		err = h.onHardware(func() error {
			if h.w.partitions[at] == "" {
				h.w.made++
				h.w.partitions[at] = gpu.UUID(fmt.Sprint("MIG-", h.w.made))
			}
			id = h.w.partitions[at]
			return nil
		})
	}
	return id, err
}

func (h brokenHardware) Destroy(_ context.Context, at gpu.Placement, was gpu.UUID) error {
	if is, _ := h.w.partitionAt(at); is != "" && was != "" && is != was {
		return nil
	}
	err := h.onHardware(func() error {
		if _, there := h.w.partitions[at]; there {
			h.w.partitions[at] = ""
		}
		return nil
	})
	if err == nil {
		err = h.onHardware(func() error { delete(h.w.partitions, at); return nil })
	}
	if err == nil {
		err = h.onHardware(func() error { return h.w.setMIG(at.Parent, h.w.divided(at.Parent)) })
	}
	return err
}

func (h brokenHardware) Merge(_ context.Context, id gpu.UUID) error {
	return h.onHardware(func() error {
		if h.w.divided(id) {
			return gpu.ErrForeign
		}
		return h.w.setMIG(id, false)
	})
}

func (h brokenHardware) onHardware(do func() error) error {
	return h.step(func() error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		return do()
	})
}

func (w *world) partitionAt(at gpu.Placement) (id gpu.UUID, mode bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.partitions[at], w.mig[at.Parent]
}

func (w *world) divided(id gpu.UUID) bool {
	for at := range w.partitions {
		if at.Parent == id {
			return true
		}
	}
	return false
}

func (w *world) setMIG(id gpu.UUID, on bool) error {
	if on != w.mig[id] && w.busy {
		return fmt.Errorf("process 7 (exporter): %w", gpu.ErrBusy)
	}
	if on {
		w.mig[id] = true
	} else {
		delete(w.mig, id)
	}
	return nil
}

func (h brokenHardware) Configure(_ context.Context, id gpu.UUID, s, before gpu.Settings) error {
	return h.step(func() error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if s.Interval == "" && before.Interval == "" {
			s.Interval = h.w.settings[id].Interval // not touched
		}
		if delete(h.w.settings, id); s != (gpu.Settings{}) {
			h.w.settings[id] = s
		}
		return nil
	})
}

func (h brokenHardware) MemoryLimit(gpu.Device) (gpu.Access, error) {
	return gpu.Access{Env: []string{"LIMITED=1"}}, nil
}

// brokenDaemons is the directory of wanted daemons, and a supervisor that makes them true at once.
type brokenDaemons struct {
	mps.Dir
	w *world
}

func (d brokenDaemons) Want(daemon mps.Daemon) error {
	return d.w.breaker.step(func() error { return d.Dir.Want(daemon) })
}

func (d brokenDaemons) Unwant(id string) error {
	return d.w.breaker.step(func() error { return d.Dir.Unwant(id) })
}

func (d brokenDaemons) Await(ctx context.Context, id string, atMost time.Duration) error {
	return d.w.breaker.step(func() error {
		d.w.superviseOnce.Do(func() { d.w.supervise(string(d.Dir)) })
		wanted, err := d.Wanted()
		if err != nil {
			return err
		}
		for _, daemon := range wanted {
			digest, err := daemon.Digest()
			if err != nil {
				return err
			}
			if d.w.supervised {
				err = d.Report(daemon.ID, mps.State{Wanted: digest, Ready: true, PID: 1})
			} else {
				err = d.Report(daemon.ID, mps.State{Wanted: digest, Message: "nvidia-cuda-mps-control: exit status 1"})
			}
			if err != nil {
				return err
			}
		}
		return d.Dir.Await(ctx, id, atMost)
	})
}
