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
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

const driver = "gpu.nvidia.com"

// fixture is a node without a cluster: records and CDI specs on a real disk, and three simulated GPUs. Every verb uses
// a new Preparer, as if it ran in a new process.
type fixture struct {
	t       *testing.T
	dir     string
	boot    int
	gpus    []gpu.Device
	breaker *breaker

	settings   map[gpu.UUID]gpu.Settings  // of the hardware, without defaults
	mig        map[gpu.UUID]bool          // GPUs in MIG mode
	partitions map[gpu.Placement]gpu.UUID // the existing ones; "" while incomplete
	made       int                        // number of partitions created so far
	bound      map[gpu.PCIAddress]bool    // functions that are bound to vfio-pci
	vgpus      map[string]string          // mediated devices by UUID: the type and the GPU
	persistent map[gpu.UUID]bool          // GPUs in persistence mode
	running    map[string]bool            // claims with which a container runs
	busy       bool                       // another process uses the GPUs
	stuck      bool                       // GPUs do not come back from virtual machines
	supervised bool                       // requested MPS daemons start
	timeout    time.Duration              // Preparer.Timeout
	containers []sharing.Container        // of the pods that use the claim
	offered    inventory.Inventory        // instead of the three GPUs
	mu         sync.Mutex

	ipcSize uint64            // of the directories for local IPC
	mounts  map[string]uint64 // directories in memory, with their sizes

	superviseOnce sync.Once
}

// mount mounts a file system in memory, or keeps the one that is there.
func (w *fixture) mount(_, dir string, size uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mounts[dir] == 0 {
		w.mounts[dir] = size
	}
	return os.MkdirAll(dir, 0o755)
}

func (w *fixture) unmount(dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mounts, dir)
	return nil
}

// supervise holds the lock of a running supervisor of MPS daemons.
func (w *fixture) supervise(dir string) {
	d, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = d.Close() })
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{t: t, dir: tmpfs.Dir(t), breaker: &breaker{}, settings: map[gpu.UUID]gpu.Settings{}, supervised: true,
		bound: map[gpu.PCIAddress]bool{}, vgpus: map[string]string{}, persistent: map[gpu.UUID]bool{},
		ipcSize: 64 << 20, mounts: map[string]uint64{}, running: map[string]bool{}, mig: map[gpu.UUID]bool{},
		partitions: map[gpu.Placement]gpu.UUID{}}
	for n := range 3 {
		w.plug(n + 1)
	}
	return w
}

func (w *fixture) plug(n int) {
	pci := gpu.PCIAddress{Bus: uint8(n)}
	w.gpus = append(w.gpus, gpu.Device{Name: fmt.Sprintf("gpu-%d", n), PCI: pci,
		UUID: gpu.UUID(fmt.Sprintf("GPU-%d", n)), Minor: n - 1, Memory: 80 << 30,
		Use: gpu.SharingMode{Partitions: gpu.PartitionsDynamic},
		VFIO: &gpu.VFIO{Functions: []gpu.PCIFunction{{PCI: pci, Driver: "nvidia"},
			{PCI: gpu.PCIAddress{Bus: pci.Bus, Function: 1}, Driver: "snd_hda_intel"}}}})
}

// inventory returns the GPUs, each with a few possible partitions.
func (w *fixture) inventory() inventory.Inventory {
	if w.offered != nil {
		return w.offered
	}
	devices := slices.Clone(w.gpus)
	for _, d := range w.gpus {
		vm := d
		vm.Name, vm.Type = gpu.VFIOName(d.Name), gpu.TypeVFIO
		devices = append(devices, vm)
		for _, name := range []string{"A16-4Q", "A16-8Q"} {
			v := gpu.VGPU{Parent: d.UUID, Type: gpu.VGPUType{Name: name}, Function: d.PCI, Made: true}
			for n := range 2 {
				devices = append(devices, gpu.Device{Name: gpu.PossibleVGPUName(d.Name, v.Type, n), Type: gpu.TypeVGPU,
					UUID: gpu.UUID(name), PCI: d.PCI, VGPU: &v})
			}
		}
		existing := gpu.VGPU{Parent: d.UUID, Type: gpu.VGPUType{Name: "A16-4Q"}, Function: d.PCI,
			MDev: "ee-" + string(d.UUID)}
		devices = append(devices, gpu.Device{Name: gpu.VGPUName(d.Name, existing), Type: gpu.TypeVGPU, VGPU: &existing,
			PCI: d.PCI})
		for _, at := range []gpu.Placement{{Profile: "1g.10gb", Size: 1}, {Profile: "1g.10gb", Start: 1, Size: 1},
			{Profile: "2g.20gb", Size: 2}, {Profile: "3g.40gb", Start: 4, Size: 4}} {
			at.Parent = d.UUID
			name := gpu.PartitionName(d.Name, at)
			devices = append(devices, gpu.Device{Name: name, Type: gpu.TypeMIG, UUID: gpu.UUID(name), Minor: d.Minor,
				Memory: 10 << 30, Partition: &gpu.Partition{Placement: at}})
		}
	}
	return inventory.New(devices)
}

func (w *fixture) cdiDir() string   { return filepath.Join(w.dir, "cdi") }
func (w *fixture) stateDir() string { return filepath.Join(w.dir, "state") }

func (w *fixture) preparer() *claims.Preparer {
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
		Driver:      driver,
		BootID:      fmt.Sprint("boot-", w.boot),
		Devices:     func() (inventory.Inventory, error) { return w.inventory(), nil },
		Hardware:    hardware{w},
		Toolkit:     toolkit{w},
		Passthrough: passthrough{w},
		Specs:       specs,
		Records:     records,
		Daemons:     w.daemons(),
		PreloadDir:  filepath.Join(w.dir, "hook"),
		LocalIPC: claims.LocalIPC{Dir: filepath.Join(w.dir, "ipc"), Size: w.ipcSize, Mount: w.mount,
			Unmount: w.unmount},
		Running: func(c sharing.Claim) ([]string, error) {
			if w.running[c.Name] {
				return []string{"container main of pod 1 (process 7)"}, nil
			}
			return nil, nil
		},
		Timeout: w.timeout,
		Containers: func(context.Context, *resourceapi.ResourceClaim) ([]sharing.Container, error) {
			return w.containers, nil
		},
	}
}

func (w *fixture) daemons() mps.Dir { return mps.Dir(filepath.Join(w.dir, "mps")) }

// context returns a context with observers: the breaker, and the supervisor of MPS daemons, which acts on AwaitDaemon.
func (w *fixture) context() context.Context {
	ctx := steps.With(context.Background(), w.breaker.observe)
	return steps.With(ctx, func(ctx context.Context, name string, do func(context.Context) error) error {
		if name == steps.AwaitDaemon {
			w.reportDaemons()
		}
		return do(ctx)
	})
}

// claim returns a claim with the allocated devices "gpu-1,gpu-2", one request each. After a space, "A=1" sets a
// variable, "Long", "MPS" or "MPS:5Gi" configures sharing, and "ipc" asks for local IPC. After a device, "#s" is the
// share ID, ":5Gi/30" the consumed capacity, and "!" means admin access.
func claim(name, allocated string) *resourceapi.ResourceClaim {
	devices, env, _ := strings.Cut(allocated, " ")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range strings.Split(devices, ",") {
		d, admin := strings.CutSuffix(d, "!")
		d, amount, counted := strings.Cut(d, ":")
		d, share, shared := strings.Cut(d, "#")
		result := resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("r%d", i), Driver: driver,
			Pool: "node", Device: d}
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
	case env == "iommufd":
		config = `"iommu":{"backendPolicy":"PreferIommuFD","enableAPIDevice":false}`
	case env == "MPS":
		config = `"sharing":{"strategy":"MPS"}`
	case strings.HasPrefix(env, "MPS:"):
		config = fmt.Sprintf(`"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,`+
			`"defaultPinnedDeviceMemoryLimit":%q}}`, env[4:])
	default:
		config = fmt.Sprintf(`"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":%q}}`, env)
	}
	kind := "GpuConfig"
	switch {
	case gpu.IsPartition(devices):
		kind = "MigDeviceConfig"
	case gpu.IsVFIO(devices):
		kind = "VfioDeviceConfig"
	}
	if env == "ipc" {
		kind, config = "LocalIPCConfig", `"enabled":true`
	}
	raw := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `",` + config + `}`
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}}}}}
	return c
}

// uses are the values of the verb "use".
var uses = map[string]gpu.SharingMode{
	"none":   {Isolation: gpu.IsolationNone},
	"hook":   {Isolation: gpu.IsolationHook, Hook: gpu.HookLibrary{Path: "/opt/libvgpu.so"}},
	"cgroup": {Isolation: gpu.IsolationCgroup},
}

// run runs the verbs of a script, "prepare a gpu-1; unprepare a", and returns the result of the last one.
func (w *fixture) run(script string) (last string) {
	w.t.Helper()
	for verb := range strings.SplitSeq(script, "; ") {
		last = w.do(verb)
	}
	return last
}

// do runs one verb and returns its result.
func (w *fixture) do(verb string) string {
	w.t.Helper()
	word, rest, _ := strings.Cut(verb, " ")
	name, rest, _ := strings.Cut(rest, " ")
	var err error
	switch word {
	case "prepare":
		var rec checkpoint.PreparedClaim
		rec, err = w.preparer().Prepare(w.context(), claim(name, rest))
		if err == nil {
			return devicesText(rec.Plan)
		}
	case "unprepare":
		err = w.preparer().Unprepare(w.context(), sharing.Claim{Name: name, UID: types.UID(name)})
	case "restart":
		err = w.preparer().Resume(w.context())
	case "cleanup":
		err = w.preparer().EndUnusedDaemons(w.context())
	case "reboot":
		w.boot++
		clear(w.settings)
		clear(w.mig)
		clear(w.partitions)
		clear(w.bound)
		clear(w.vgpus)
		clear(w.mounts)
		err = os.RemoveAll(w.cdiDir())
	case "reset": // the GPUs, as an update of the driver does
		clear(w.settings)
	case "mode": // an administrator sets the compute mode of a GPU, by its UUID
		w.settings[gpu.UUID(name)] = gpu.Settings{Mode: gpu.ComputeMode(rest)}
	case "persist": // a GPU, by its UUID
		w.persistent[gpu.UUID(name)] = true
	case "external": // somebody else has bound the GPU to vfio-pci
		for i := range w.gpus {
			if w.gpus[i].Name == name {
				w.gpus[i].VFIO = &gpu.VFIO{Bound: true}
				w.bound[w.gpus[i].PCI] = true
			}
		}
	case "vgpu": // somebody else has made it on the GPU
		w.vgpus["ee-GPU-"+name[len("gpu-"):]] = "by hand"
	case "busy": // "yes" or "no": somebody has the GPUs open
		w.busy = name == "yes"
	case "stuck": // "yes" or "no": GPUs do not come back from virtual machines
		w.stuck = name == "yes"
	case "run": // a container with the claim
		w.running[name] = true
	case "end": // that container
		delete(w.running, name)
	case "partition": // by an administrator: a GPU, and a profile and where it starts
		profile, start, _ := strings.Cut(rest, "@")
		w.mig["GPU-"+gpu.UUID(name[len("gpu-"):])] = true
		w.partitions[gpu.Placement{Parent: "GPU-" + gpu.UUID(name[len("gpu-"):]), Profile: profile,
			Start: int(start[0] - '0'), Size: 1}] = "MIG-hand"
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
	case "ipc": // "off" or "on": the node makes directories for local IPC
		w.ipcSize = map[string]uint64{"on": 64 << 20}[name]
	case "unmount": // the directory of a claim, by hand
		err = w.unmount(filepath.Join(w.dir, "ipc", name))
	case "discard": // a record, by hand
		err = os.Remove(filepath.Join(w.stateDir(), "claims", name+".json"))
	case "unmark": // the devices of a record, as a power cut may
		marks, _ := filepath.Glob(filepath.Join(w.stateDir(), "devices", "*", name))
		for _, m := range marks {
			err = errors.Join(err, os.Remove(m))
		}
	case "plug": // a GPU, by its number
		w.plug(int(name[0] - '0'))
	case "move": // a GPU, to another place on the PCI bus
		for i := range w.gpus {
			if w.gpus[i].Name == name {
				w.gpus[i].Name = rest
			}
		}
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

// devicesText formats the answer to the kubelet.
func devicesText(plan sharing.Plan) string {
	var out []string
	for _, a := range plan.Assignments {
		if n := len(a.CDI); a.VFIO == nil && n != 2 || a.VFIO != nil && n != 1 {
			return fmt.Sprintf("%s: CDI devices %q", a.Device, a.CDI)
		}
		out = append(out, fmt.Sprintf("%s=%s/%s", a.Request, a.Pool, a.Device))
	}
	return strings.Join(out, " ")
}

// String returns the state of the node: a line for each GPU without factory defaults, each partition, MPS daemon,
// record and CDI device.
func (w *fixture) String() string {
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(w.settings)) {
		lines = append(lines, fmt.Sprintf("%s: %s", id, w.settings[id]))
	}
	for _, id := range slices.Sorted(maps.Keys(w.mig)) {
		lines = append(lines, fmt.Sprintf("%s: mig", id))
	}
	for at, id := range w.partitions {
		lines = append(lines, fmt.Sprintf("%s: %s at %d, %s", at.Parent, at.Profile, at.Start,
			strings.TrimRight(string(id), "0123456789")))
	}
	for at := range w.bound {
		lines = append(lines, fmt.Sprintf("%s: vfio-pci", at))
	}
	for id := range w.persistent {
		lines = append(lines, fmt.Sprintf("%s: persistent", id))
	}
	for _, v := range w.vgpus {
		lines = append(lines, "vgpu "+v)
	}
	dirs, _ := filepath.Glob(filepath.Join(w.dir, "ipc", "*"))
	for _, dir := range dirs {
		lines = append(lines, fmt.Sprintf("ipc %s %dMi", filepath.Base(dir), w.mounts[dir]>>20))
	}
	slices.Sort(lines)
	daemons, err := w.daemons().Requested()
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
		var rec struct {
			Claim  sharing.Claim
			Phase  checkpoint.Phase
			BootID string
			Plan   sharing.Plan
		}
		if err := json.Unmarshal(data, &rec); err != nil {
			lines = append(lines, "unreadable "+filepath.Base(f))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s", rec.Claim.UID, rec.Phase, rec.BootID,
			strings.Join(rec.Plan.Devices(), ",")))
	}
	files, _ = filepath.Glob(filepath.Join(w.cdiDir(), "*"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		var spec specs.Spec
		if err := json.Unmarshal(data, &spec); err != nil {
			lines = append(lines, "unreadable "+filepath.Base(f))
			continue
		}
		for _, m := range spec.ContainerEdits.Mounts {
			lines = append(lines, strings.ReplaceAll(fmt.Sprint("common ", m.HostPath, " ", m.ContainerPath, " ",
				strings.Join(spec.ContainerEdits.Env, " ")), w.dir, "<dir>"))
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

// errCrash simulates a crash: the step and all later ones fail.
var errCrash = errors.New("cut off")

// breaker notes steps and simulates a crash at one of them.
type breaker struct {
	at     int  // which step, counted from 1; 0: never
	after  bool // the step is done before the crash
	passed []string
	mu     sync.Mutex
}

// observe is an observer of steps.
func (b *breaker) observe(ctx context.Context, name string, do func(context.Context) error) error {
	b.mu.Lock()
	b.passed = append(b.passed, name)
	passed := len(b.passed)
	b.mu.Unlock()
	switch {
	case b.at == 0 || passed < b.at:
		return do(ctx)
	case passed == b.at && b.after:
		return errors.Join(do(ctx), errCrash)
	}
	return errCrash
}

// toolkit returns a device node for each GPU, and a variable for a partition.
type toolkit struct{ w *fixture }

func (toolkit) DriverAccess(context.Context) (gpu.Access, error) {
	return gpu.Access{Env: []string{"COMMON=1"}}, nil
}

func (t toolkit) Access(_ context.Context, d gpu.Device) (a gpu.Access, err error) {
	if d.Type == gpu.TypeMonitor {
		return a, nil
	}
	path := fmt.Sprint("/dev/nvidia", d.Minor)
	a.Nodes = []gpu.DeviceNode{{Path: path, HostPath: path, Type: "c", Major: 60, Minor: int64(d.Minor)}}
	if p := d.Partition; p != nil {
		if id, _ := t.w.partitionAt(p.Placement); id == "" || id != d.UUID {
			return a, fmt.Errorf("%s: there is %q, not %q", d.Name, id, d.UUID)
		}
		a.Env = []string{"PARTITION=" + p.Profile}
	}
	return a, nil
}

func (toolkit) MemoryLimit(gpu.Device) (gpu.Access, error) {
	return gpu.Access{Env: []string{"LIMITED=1"}}, nil
}

// hardware simulates the GPUs of the fixture, with the same steps as real hardware.
type hardware struct{ w *fixture }

// migUUID matches the UUID of a partition, which is a new one for each creation.
var migUUID = regexp.MustCompile("MIG-[0-9]+")

func (h hardware) Set(ctx context.Context, id gpu.UUID, s gpu.DesiredState) error {
	err := error(nil)
	switch s.MIG {
	case gpu.MIGOn:
		err = h.step(ctx, steps.EnableMIG, func() error { return h.w.setMIG(id, true) })
	case gpu.MIGOff:
		err = h.step(ctx, steps.DisableMIG, func() error {
			if h.w.partitioned(id) {
				return gpu.ErrForeignPartition
			}
			return h.w.setMIG(id, false)
		})
	case gpu.MIGOffIfUnused:
		err = h.step(ctx, steps.DisableMIG, func() error {
			if !h.w.partitioned(id) && !h.w.busy {
				return h.w.setMIG(id, false)
			}
			return nil
		})
	}
	if err != nil || s.Settings == nil {
		return err
	}
	return h.step(ctx, steps.ConfigureGPU, func() error {
		settings := *s.Settings
		switch settings.Interval {
		case "":
			settings.Interval = h.w.settings[id].Interval // left alone
		case gpu.IntervalDefault:
			settings.Interval = ""
		}
		if delete(h.w.settings, id); settings != (gpu.Settings{}) {
			h.w.settings[id] = settings
		}
		return nil
	})
}

func (h hardware) ComputeMode(_ context.Context, id gpu.UUID) (gpu.ComputeMode, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.settings[id].Mode, nil
}

func (h hardware) CheckPlacement(_ context.Context, at gpu.Placement) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	for other, id := range h.w.partitions {
		if other.Overlaps(at) {
			return fmt.Errorf("%s (%s): %w", other, id, gpu.ErrForeignPartition)
		}
	}
	return nil
}

func (h hardware) CreatePartition(ctx context.Context, at gpu.Placement, known gpu.UUID) (id gpu.UUID, err error) {
	switch is, on := h.w.partitionAt(at); {
	case known != "" && is == "":
		return "", fmt.Errorf("%s: %w", known, gpu.ErrPartitionRemoved)
	case known != "" && is != known:
		return "", gpu.ErrForeignPartition
	case !on:
		return "", errors.New("not in MIG mode")
	}
	err = h.step(ctx, "create_gpu_instance", func() error { h.w.partitions[at] += ""; return nil })
	if err == nil {
		err = h.step(ctx, "create_compute_instance", func() error {
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

func (h hardware) DestroyPartition(ctx context.Context, at gpu.Placement, known gpu.UUID) error {
	if is, _ := h.w.partitionAt(at); is != "" && known != "" && is != known {
		return nil
	}
	err := h.step(ctx, "destroy_compute_instance", func() error {
		if _, exists := h.w.partitions[at]; exists {
			h.w.partitions[at] = ""
		}
		return nil
	})
	if err == nil {
		err = h.step(ctx, "destroy_gpu_instance", func() error { delete(h.w.partitions, at); return nil })
	}
	return err
}

func (h hardware) step(ctx context.Context, name string, do func() error) error {
	return steps.Do(ctx, name, func(context.Context) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		return do()
	})
}

func (w *fixture) partitionAt(at gpu.Placement) (id gpu.UUID, mode bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.partitions[at], w.mig[at.Parent]
}

func (w *fixture) partitioned(id gpu.UUID) bool {
	for at := range w.partitions {
		if at.Parent == id {
			return true
		}
	}
	return false
}

func (w *fixture) setMIG(id gpu.UUID, on bool) error {
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

// reportDaemons acts as the supervisor of MPS daemons and reports their states.
func (w *fixture) reportDaemons() {
	d := w.daemons()
	w.superviseOnce.Do(func() { w.supervise(string(d)) })
	wanted, err := d.Requested()
	if err != nil {
		w.t.Error(err)
	}
	for _, daemon := range wanted {
		state := mps.DaemonState{Digest: daemon.Digest, Ready: true, PID: 1}
		if !w.supervised {
			state = mps.DaemonState{Digest: daemon.Digest, Message: "nvidia-cuda-mps-control: exit status 1"}
		}
		if err := d.Report(daemon.ID, state); err != nil {
			w.t.Error(err)
		}
	}
}
