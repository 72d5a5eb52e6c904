// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	// fullReadPeriod is how often an unchanged GPU is read in full. Its properties do not change, and a full read takes
	// milliseconds of CPU time.
	fullReadPeriod = time.Minute
	// defaultTimeout is the default of MachineConfig.Timeout.
	defaultTimeout = 10 * time.Second
	// maxReadings is how often GPUs are read that come and go all the time. Between two readings there may be a wait
	// for events, of seconds.
	maxReadings = 3
)

// oldestDriver is the oldest branch of NVIDIA's driver that has all functions that are called without session.has.
const oldestDriver = 470

// ErrDriverTooOld means that NVIDIA's driver may lack functions that are called.
var ErrDriverTooOld = fmt.Errorf("NVIDIA's driver is too old: R%d is the oldest that works", oldestDriver)

// Discover reads all GPUs in parallel, each for at most MachineConfig.Timeout. A GPU that does not answer in time is
// lost, and is not called again until its call has returned. The error means that nothing can be read at all. If GPUs
// come or go meanwhile, it reads all of them again, in a new session where it can. If no GPU answers, it does so once,
// because the driver may have been reloaded. At the end it closes the session if no events are watched and all GPUs
// have persistence mode, so that they can be reset and the driver unloaded. Errors: driverroot.ErrNoDriver,
// ErrDriverReplaced, ErrDriverTooOld, ErrReleased. The health of a GPU is at most healthPeriod old.
func (m *Machine) Discover(ctx context.Context) (gpu.Discovery, error) {
	bound := m.bus().BoundToNVIDIA()
	anew := m.isOutdated(bound)
	for reading := 1; ; reading++ {
		look, shifted, err := m.discover(ctx, anew)
		if err != nil {
			return gpu.Discovery{}, err
		}
		before := bound
		bound = m.bus().BoundToNVIDIA()
		// NVML and the bus show a change at different times, and the count stays if one comes while another one goes.
		changed := shifted || !slices.Equal(before, bound)
		anew = changed || reading == 1 && len(look.Broken) > 0 && len(look.Broken) >= len(look.Devices)
		// While a call hangs, the session cannot be ended: another reading of it could hang, too.
		if anew && reading < maxReadings && ctx.Err() == nil && !m.calls.anyHangs() {
			continue
		}
		if changed {
			klog.FromContext(ctx).Info("GPUs come and go while they are read: one may be missed", "readings", reading)
		}
		return look, nil
	}
}

// awaitSession ends or changes the session, and waits for it until ctx ends.
func (m *Machine) awaitSession(ctx context.Context, change func() error) error {
	_, err := wait(ctx, &m.calls, driver, func(a *asked) (none, error) {
		if err := a.ask(driver); err != nil {
			return none{}, err
		}
		return none{}, change()
	})
	return err
}

// discover reads all GPUs in a session of the library on disk: in a new one if anew, unless a call uses the present
// one. It reports whether NVML's indices have shifted meanwhile: then one GPU may be read twice and another one not at
// all.
func (m *Machine) discover(ctx context.Context, anew bool) (look gpu.Discovery, shifted bool, err error) { //nolint:revive // see Discover
	change := m.refresh
	if anew {
		m.leaveWatch() // takes as long as a wait for events
		change = m.renew
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.Timeout, defaultTimeout))
	defer cancel()
	var sys *system
	if err = m.awaitSession(ctx, change); err == nil {
		sys, err = call(ctx, m, driver, (*session).system)
	}
	if err != nil {
		return gpu.Discovery{}, false, errors.Join(err, m.awaitSession(ctx, m.renew))
	}
	look = m.readAll(ctx, sys)
	m.closeUnwatched(ctx)
	return look, sys.shifted.Load(), nil
}

// closeUnwatched ends the session if nothing needs it: no events are watched, and no GPU loses its settings.
func (m *Machine) closeUnwatched(ctx context.Context) {
	if !m.known.persistent() || m.Watching() {
		return
	}
	if err := m.awaitSession(ctx, m.renew); err != nil {
		klog.FromContext(ctx).V(2).Info("NVML stays open", "err", err)
	}
}

// system is what NVML reports about the machine.
type system struct {
	count   int
	driver  string
	cuda    gpu.Version
	shifted atomic.Bool // a GPU was found by its index while NVML counted more or fewer
}

func (m *Machine) readAll(ctx context.Context, sys *system) gpu.Discovery {
	m.known.keepFirst(sys.count)
	readings, errs := make([]discovered, sys.count), make([]error, sys.count)
	var all sync.WaitGroup
	for i := range sys.count {
		all.Go(func() { readings[i], errs[i] = m.readOne(ctx, i, sys) })
	}
	all.Wait()

	look := gpu.Discovery{Health: map[gpu.UUID]gpu.Health{}}
	var connections []links
	var silent []gpu.Device
	for i, r := range readings {
		if errs[i] != nil && m.Removed(r.device) {
			continue
		}
		if errs[i] != nil {
			look.Broken = append(look.Broken, fmt.Errorf("GPU %d: %w", i, errs[i]))
			r.device.Gone = needsReset(errs[i])
			r.device.ResetRequired = errors.Is(errs[i], nvmllib.ERROR_RESET_REQUIRED)
			silent = append(silent, r.device)
			continue
		}
		r.device.DriverVersion, r.device.CUDAVersion, r.device.CgroupV1 = sys.driver, sys.cuda, m.CgroupV1
		look.Devices = append(look.Devices, r.device)
		look.Health[r.device.UUID] = r.health
		connections = append(connections, r.links)
	}
	assignNVLinkDomains(look.Devices, connections)
	look.Devices, look.Unlisted = m.withVFIO(m.withVGPUs(withLost(m.Sysfs, look.Devices, silent)))
	look.AER = m.aer(look.Devices, look.Unlisted)
	look.Answered = m.known.answered()
	look.Persistent = m.known.persistent()
	look.Unwatched = m.watch.unwatched(look.Devices, m.eventWait()+hungAfter)
	return look
}

// readOne reads the GPU with the index. After an error it returns what is known of it. A GPU whose MIG mode is being
// changed may be absent for a moment, so it counts as unchanged; but it has no partitions, also if it had
// some when it was last read. One that could not be asked, because NVML was closed, is unchanged, too.
func (m *Machine) readOne(ctx context.Context, index int, sys *system) (discovered, error) {
	known, about := m.known.at(index)
	if known.device.UUID != "" && m.known.isSwitching(known.device.UUID) {
		known.device.MIG.Instances = nil
		return known, nil
	}
	r, err := call(ctx, m, about, func(s *session) (discovered, error) { return s.readAt(index, sys, known) })
	if err == nil {
		m.known.keep(index, r)
		return r, nil
	}
	if errors.Is(err, errNotAsked) && known.device.UUID != "" {
		return known, nil
	}
	m.known.silent(index)
	if known.device.UUID != "" {
		return known, err
	}
	return r, err
}

// readAt reads the GPU with the index. After an error, the device has the fields that could be read.
func (s *session) readAt(index int, sys *system, known discovered) (discovered, error) {
	handle, ret := s.lib.DeviceGetHandleByIndex(index)
	if count, ret := s.lib.DeviceGetCount(); ret == nvmllib.SUCCESS && count != sys.count {
		sys.shifted.Store(true)
	}
	if ret != nvmllib.SUCCESS {
		return discovered{device: gpu.Device{Index: index}}, fmt.Errorf("get handle: %w", ret)
	}
	if time.Since(known.full) < fullReadPeriod && s.same(handle, known.device) {
		s.handles.Store(known.device.UUID, handle)
		known.last, known.persistent = time.Now(), persistent(handle)
		if mode, err := computeMode(handle); err == nil {
			known.device.ComputeMode = mode
		}
		return s.withHealth(handle, known), nil
	}
	d, err := s.read(index, handle)
	if err != nil {
		return discovered{device: d}, err
	}
	s.handles.Store(d.UUID, handle)
	now := time.Now()
	return s.withHealth(handle, discovered{device: d, links: s.readLinks(handle), full: now, last: now,
		persistent: persistent(handle)}), nil
}

func persistent(handle nvmllib.Device) bool {
	mode, ret := handle.GetPersistenceMode()
	return ret == nvmllib.SUCCESS && mode == nvmllib.FEATURE_ENABLED
}

// same reports whether the GPU is unchanged.
func (s *session) same(handle nvmllib.Device, was gpu.Device) bool {
	uuid, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS || gpu.UUID(uuid) != was.UUID {
		return false
	}
	if minor, ret := handle.GetMinorNumber(); ret != nvmllib.SUCCESS || minor != was.Minor {
		return false
	}
	return s.sameMIG(handle, was)
}

func (s *session) system() (*system, error) {
	sys := &system{}
	var ret nvmllib.Return
	if sys.count, ret = s.lib.DeviceGetCount(); ret != nvmllib.SUCCESS {
		return sys, fmt.Errorf("count GPUs: %w", ret)
	}
	if sys.driver, ret = s.lib.SystemGetDriverVersion(); ret != nvmllib.SUCCESS {
		return sys, fmt.Errorf("get driver version: %w", ret)
	}
	if tooOld(sys.driver) {
		return sys, fmt.Errorf("driver %s: %w", sys.driver, ErrDriverTooOld)
	}
	v, ret := s.lib.SystemGetCudaDriverVersion()
	if ret != nvmllib.SUCCESS {
		return sys, fmt.Errorf("get CUDA version: %w", ret)
	}
	sys.cuda = gpu.Version{Major: v / 1000, Minor: v % 1000 / 10}
	return sys, nil
}

// tooOld reports whether NVIDIA's driver is older than oldestDriver. A version that is no number is not.
func tooOld(version string) bool {
	branch, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(branch)
	return err == nil && n < oldestDriver
}

// read reads one GPU in full. Its identity and location are required, and no call may answer that it is lost; other
// fields may be unknown.
func (s *session) read(index int, handle nvmllib.Device) (gpu.Device, error) {
	d := gpu.Device{Type: gpu.TypeGPU, Index: index}
	if err := s.locate(&d, handle); err != nil {
		return d, err
	}
	uuid, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS {
		return d, fmt.Errorf("%s: get UUID: %w", d.Name, ret)
	}
	d.UUID = gpu.UUID(uuid)
	var err error
	if d.Minor, err = s.minor(handle, d); err != nil {
		return d, fmt.Errorf("%s: %w", d.Name, err)
	}
	memory, ret := handle.GetMemoryInfo()
	switch ret {
	case nvmllib.SUCCESS:
		d.Memory = memory.Total
	case nvmllib.ERROR_NOT_SUPPORTED: // it has no memory of its own, and uses that of the host
	default:
		return d, fmt.Errorf("%s: get memory: %w", d.Name, ret)
	}
	var smClock uint32
	if d.Product, smClock, err = s.product(d, handle); err != nil {
		return d, fmt.Errorf("%s: %w", d.Name, err)
	}
	if d.MIG, err = s.readMIG(handle, d); err != nil {
		return d, fmt.Errorf("%s: %w", d.Name, err)
	}
	d.Product = inMIGMode(d)
	d.Product.PeakCompute = peakCompute(d.Product, d.Memory, smClock)
	if lib, err := s.devices.NewDevice(handle); err == nil {
		if mode, err := lib.GetAddressingModeAsString(); err == nil {
			d.Addresses = gpu.AddressingMode(mode)
		}
	}
	d.Topology.FabricDomain = s.fabricDomain(handle, d.UUID)
	d.ComputeMode, _ = computeMode(handle)
	return d, nil
}

// minor returns N of /dev/nvidiaN, from NVML or else from the driver's directory in /proc.
func (s *session) minor(handle nvmllib.Device, d gpu.Device) (int, error) {
	minor, ret := handle.GetMinorNumber()
	if ret == nvmllib.SUCCESS {
		return minor, nil
	}
	text, err := os.ReadFile(filepath.Join(s.config.Proc, "driver/nvidia/gpus", d.PCI.String(), "information"))
	if err != nil {
		return 0, fmt.Errorf("get minor number: %w", ret)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Device Minor: %d", &minor); err == nil {
			return minor, nil
		}
	}
	return 0, fmt.Errorf("get minor number: %w", ret)
}

// locate sets the GPU's PCI address, and the name, root complex and NUMA node that follow from it.
func (s *session) locate(d *gpu.Device, handle nvmllib.Device) error {
	info, ret := handle.GetPciInfo()
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get PCI address: %w", ret)
	}
	var err error
	if d.PCI, err = pciAddress(info); err != nil {
		return err
	}
	place(d, s.config.Sysfs)
	return nil
}

// product returns the known properties of the model except for its peak, and its maximum clock in MHz, 0 if that is
// unknown. Error: the GPU is lost.
func (s *session) product(d gpu.Device, handle nvmllib.Device) (p gpu.Product, smClock uint32, err error) {
	var ret nvmllib.Return
	if p.Name, ret = handle.GetName(); needsReset(ret) {
		return p, 0, fmt.Errorf("get product name: %w", ret)
	}
	s.known.note(d, "Product name unknown", ret, nvmllib.SUCCESS)
	cc := &p.ComputeCapability
	if cc.Major, cc.Minor, ret = handle.GetCudaComputeCapability(); needsReset(ret) {
		return p, 0, fmt.Errorf("get compute capability: %w", ret)
	}
	s.known.note(d, "Compute capability unknown", ret, nvmllib.SUCCESS)
	if lib, err := s.devices.NewDevice(handle); err == nil {
		if brand, err := lib.GetBrandAsString(); err == nil {
			p.Brand = brand
		}
		if architecture, err := lib.GetArchitectureAsString(); err == nil {
			p.Architecture = architecture
		}
	}
	// An unsupported call returns 0, which means unknown. Drivers before R510 do not have two of them.
	var cores int
	if s.has("nvmlDeviceGetNumGpuCores") {
		cores, _ = handle.GetNumGpuCores()
	}
	var busWidth uint32
	if s.has("nvmlDeviceGetMemoryBusWidth") {
		busWidth, _ = handle.GetMemoryBusWidth()
	}
	memoryClock, _ := handle.GetMaxClockInfo(nvmllib.CLOCK_MEM)
	smClock, _ = handle.GetMaxClockInfo(nvmllib.CLOCK_SM)
	p.Multiprocessors = multiprocessors(cores, p.ComputeCapability)
	p.MemoryBandwidth = memoryBandwidth(busWidth, memoryClock)
	return p, smClock, nil
}

// pciAddress parses the address, which NVML returns as a C string.
func pciAddress(info nvmllib.PciInfo) (gpu.PCIAddress, error) {
	return gpu.ParsePCIAddress(text(info.BusId[:]))
}

// text converts a C string.
func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
