// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/check/host"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/passthrough"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/toolkit"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile/record"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// machine checks the GPUs, in one session of NVML.
func (e *checker) machine() {
	m, err := nvml.Open(e.Machine)
	if err != nil {
		e.refused(err)
		return
	}
	defer m.Close()
	look, err := m.Discover(context.Background())
	devices, broken := look.Devices, look.Broken
	if err != nil {
		e.refused(err)
		return
	}
	if len(devices)+len(broken)+len(look.Unlisted) == 0 {
		e.found(noGPU.Found("NVML counts no GPU"))
	}
	present := slices.DeleteFunc(slices.Clone(devices), func(d gpu.Device) bool { return d.Lost })
	e.list(present, broken)
	e.answers()
	e.access(m, present)
	e.virtualMachines()
	for i := range devices {
		if e.Machine.ContainersOnly {
			devices[i].VFIO = nil
		}
	}
	for _, d := range look.Unlisted {
		if d.VFIO.External() && !e.Machine.ContainersOnly { // or a claim has it, which check does not know
			d.UUID = gpu.UUID(gpu.VFIOName(d.Name))
			devices = append(devices, d)
		}
	}
	e.publish(devices)
}

// virtualMachines says which GPUs virtual machines can have, and why not the others. A machine without IOMMU groups has
// none.
func (e *checker) virtualMachines() {
	gpus, err := passthrough.Bus{Sysfs: e.Machine.Sysfs}.GPUs()
	hasGroup := func(g passthrough.GPU) bool { return g.Group != passthrough.NoGroup }
	if err != nil || !slices.ContainsFunc(gpus, hasGroup) {
		return
	}
	for _, g := range gpus {
		if e.Machine.ContainersOnly {
			g.Refusal = cmp.Or(g.Refusal, "nothing is in the way, but virtualMachines.enabled of the chart "+
				"(--virtual-machines) is not set")
		}
		vm := Passthrough{Name: g.PCI.DeviceName(), Group: g.Group, Driver: g.Driver, Refusal: g.Refusal,
			VGPUs: []string{}}
		if all := (passthrough.Bus{Sysfs: e.Machine.Sysfs}).VGPUs(g.PCI); all != nil {
			for _, t := range all.Types {
				vm.VGPUs = append(vm.VGPUs, t.String())
			}
			for _, v := range all.Existing {
				vm.VGPUs = append(vm.VGPUs, "existing "+v.String())
				vm.Refusal = cmp.Or(vm.Refusal, "it has vGPUs")
			}
		}
		e.report.VirtualMachines = append(e.report.VirtualMachines, vm)
	}
}

// kinds maps errors of NVML to problems.
var kinds = map[string]host.ProblemKind{
	"ERROR_LIB_RM_VERSION_MISMATCH": versionMismatch, "ERROR_DRIVER_NOT_LOADED": noModule,
	"ERROR_NO_PERMISSION": noPermission,
	"ERROR_GPU_IS_LOST":   gpuLost, "ERROR_GPU_NOT_FOUND": noGPU,
}

// refused reports why NVML cannot be used, unless that problem was already found.
func (e *checker) refused(err error) {
	k, ok := kinds[nvml.Code(err)]
	switch {
	case errors.Is(err, nvml.ErrDriverTooOld):
		k = driverTooOld
	case !ok:
		k = noNVML
	}
	if !e.has(k) {
		e.found(k.Found("%v", err))
	}
}

var brokenIndex = regexp.MustCompile(`^GPU ([0-9]+): `)

// list adds an entry for each GPU, also for those that cannot be read.
func (e *checker) list(devices []gpu.Device, broken []error) {
	for _, d := range devices {
		e.report.GPUs = append(e.report.GPUs, e.entry(d))
	}
	for _, err := range broken {
		k := gpuUnreadable
		if code := nvml.Code(err); code == "ERROR_GPU_IS_LOST" || code == "ERROR_RESET_REQUIRED" {
			k = gpuLost
		}
		e.found(k.Found("%v", err))
		g := GPU{Index: -1, Error: err.Error(), Attributes: map[string]any{}, Nodes: []string{},
			Unanswered: map[string]string{}}
		if found := brokenIndex.FindStringSubmatch(err.Error()); found != nil {
			g.Index, _ = strconv.Atoi(found[1]) //nolint:errcheck // digits
		}
		e.report.GPUs = append(e.report.GPUs, g)
	}
	slices.SortStableFunc(e.report.GPUs, func(a, b GPU) int { return a.Index - b.Index })
}

func (e *checker) entry(d gpu.Device) GPU {
	g := GPU{Index: d.Index, Name: d.Name, Memory: inventory.Memory(d), Attributes: map[string]any{}, Nodes: []string{},
		Unanswered: map[string]string{},
		MPSLimits:  d.MPSLimits(),
		MIG: MIG{Capable: d.MIG.Capable, Enabled: d.MIG.Enabled, Switchable: d.MIG.Switchable,
			Offered: inventory.Partitioning(d, gpu.PartitionsAuto, gpu.PartitionsAuto,
				func(gpu.Placement) bool { return false }).String()}}
	for name, v := range (inventory.Inventory{d}).Attributes(e.NodeName, d.Name) {
		g.Attributes[name] = valueOf(v)
	}
	for _, p := range d.MIG.Profiles {
		g.MIG.Profiles = append(g.MIG.Profiles, p.Name)
	}
	for _, p := range d.MIG.Instances {
		g.MIG.Partitions = append(g.MIG.Partitions, ExistingPartition{p.Profile, p.Start, string(p.UUID)})
	}
	for _, problem := range d.MIG.Problems {
		e.found(migUnreadable.Found("%s: %s", d.Name, problem))
	}
	if v := d.Guest; v != nil {
		g.VGPULicense = v.License.String()
		if v.License.State == gpu.Unlicensed {
			e.found(vgpuUnlicensed.Found("%s (%s)", d.Name, d.Product.Name))
		}
	}
	if !d.Product.MPSLimits() {
		e.found(oldForMPS.Found("%s (%s) has compute capability %d.%d", d.Name, d.Product.Name,
			d.Product.ComputeCapability.Major, d.Product.ComputeCapability.Minor))
	}
	if d.MIG.Capable && !e.report.Driver.MIGDeviceNodes && !e.has(noCapabilities) {
		e.found(noCapabilities.Found("%s can be partitioned, and there is no %s", d.Name,
			"/proc/driver/nvidia-caps/mig-minors"))
	}
	return g
}

// valueOf returns the value of an attribute.
func valueOf(v resourceapi.DeviceAttribute) any {
	switch {
	case v.StringValue != nil:
		return *v.StringValue
	case v.VersionValue != nil:
		return *v.VersionValue
	case v.IntValue != nil:
		return *v.IntValue
	case v.BoolValue != nil:
		return *v.BoolValue
	}
	return nil
}

// answers adds what only a recording contains: calls that NVML does not answer, and versions.
func (e *checker) answers() {
	r, err := record.Read(record.Machine{Library: e.Machine.Library, Sysfs: e.Machine.Sysfs})
	if err != nil {
		e.refused(err)
		return
	}
	d := &e.report.Driver
	d.Version = r.Profile.Driver()
	d.NVML, _ = r.Profile.System.NVMLVersion.Get()
	if cuda, e := r.Profile.System.CUDAVersion.Get(); e == "" {
		d.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`).MatchString(d.Version) {
		e.found(oddVersion.Found("the driver calls its version %q; %s is published", d.Version, e.publishedVersion()))
	}
	for i, g := range r.Profile.GPUs {
		if at := slices.IndexFunc(e.report.GPUs, func(known GPU) bool { return known.Index == i }); at >= 0 {
			e.unanswered(&e.report.GPUs[at], g.Calls)
		}
	}
}

func (e *checker) publishedVersion() any {
	for _, g := range e.report.GPUs {
		if v, ok := g.Attributes["driverVersion"]; ok {
			return v
		}
	}
	return "nothing"
}

// unanswered adds the calls that fail on the GPU. A call that the GPU does not support is no problem.
func (e *checker) unanswered(g *GPU, calls hwprofile.Calls) {
	var failing []string
	errors := calls.Errors()
	for _, call := range slices.Sorted(maps.Keys(errors)) {
		code := errors[call]
		g.Unanswered[call] = string(code)
		if code != hwprofile.NotSupported && code != "ERROR_FUNCTION_NOT_FOUND" && code != hwprofile.LostGPU {
			failing = append(failing, fmt.Sprintf("%s (%s)", call, code))
		}
	}
	if len(failing) > 0 {
		e.found(callFails.Found("GPU %d %s: calls fail: %s", g.Index, g.Name, strings.Join(failing, ", ")))
	}
	if mode, _ := calls.GetComputeMode.Get(); mode == hwprofile.ComputeModeProhibited {
		e.found(prohibited.Found("GPU %d %s: its compute mode admits no CUDA program", g.Index, g.Name))
	}
	if mode, code := calls.GetPersistenceMode.Get(); code == "" && mode == hwprofile.Disabled &&
		!e.report.Driver.Persistence && !e.has(noPersistence) {
		e.found(noPersistence.Found("GPU %d %s is not in persistence mode, and no persistence daemon runs", g.Index,
			g.Name))
	}
}

// access collects what containers need, and adds the CDI spec of the first GPU.
func (e *checker) access(m *nvml.Machine, devices []gpu.Device) {
	kit := &toolkit.Toolkit{NVML: m, Driver: e.Machine.Driver, Proc: e.Machine.Proc, HookPath: e.CDIHook}
	common, err := kit.DriverAccess(context.Background())
	if err != nil {
		e.found(driverFiles.Found("%v", err))
	}
	for _, d := range devices {
		a, errOf := kit.Access(context.Background(), d)
		if errOf != nil {
			e.found(driverFiles.Found("%v", errOf))
			continue
		}
		at := slices.IndexFunc(e.report.GPUs, func(g GPU) bool { return g.Index == d.Index })
		for _, node := range a.Nodes {
			e.report.GPUs[at].Nodes = append(e.report.GPUs[at].Nodes, node.HostPath)
		}
		if e.report.CDI != nil || err != nil {
			continue
		}
		if e.report.CDI, err = cdi.Whole(e.DriverName, common, []cdi.Device{{Name: d.Name, Access: a}}); err != nil {
			e.found(driverFiles.Found("%v", err))
		}
	}
}
