// SPDX-License-Identifier: Apache-2.0

// Package check checks a node without a cluster: what the driver finds, what it would publish, and which problems it
// has.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/internal/check/host"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Target is what is checked.
type Target struct {
	Machine    nvml.MachineConfig // Library is nil if the driver root has none
	DriverName string
	NodeName   string
	CDIDir     string
	CDIHook    string    // NVIDIA's CDI hook program
	PluginDir  string    // where the plugin keeps its files; "": unknown
	HooksDir   string    // where the host has the CDI hook programs; "": unknown
	Writes     []string  // further directories of the host that the driver writes to
	Host       host.Root // "" if it is not mounted
	Kernel     string
	Cgroups    string                 // where cgroups are mounted
	Writable   func(dir string) error // host.Writable, except in tests
}

// Format is the version of the report's format. It changes when a field is removed or gets another meaning.
const Format = 1

// Report is the result of a check. Its fields are described in docs/reference/check.md.
type Report struct {
	Format          int                         `json:"format"`
	Driver          Driver                      `json:"driver"`
	Host            Host                        `json:"host"`
	GPUs            []GPU                       `json:"gpus"`
	VirtualMachines []Passthrough               `json:"virtualMachines"`
	Slices          []resourceapi.ResourceSlice `json:"resourceSlices"`
	CDI             *specs.Spec                 `json:"cdi"`
	Problems        []host.Problem              `json:"problems"`
}

// Driver is NVIDIA's driver on the node.
type Driver struct {
	Root           string   `json:"root"`
	Mount          string   `json:"mount"`
	Target         string   `json:"target"`
	Library        string   `json:"library"`
	Installed      []string `json:"installed"`
	Module         string   `json:"module"`
	Version        string   `json:"version"`
	NVML           string   `json:"nvml"`
	CUDA           string   `json:"cuda"`
	NvidiaSMI      string   `json:"nvidiaSMI"`
	MPSControl     string   `json:"mpsControl"`
	CDIHook        string   `json:"cdiHook"`
	Persistence    bool     `json:"persistenceDaemon"`
	MIGDeviceNodes bool     `json:"migDeviceNodes"`
}

// Host is the environment of the driver.
type Host struct {
	Root    string       `json:"root"`
	Kernel  string       `json:"kernel"`
	Cgroup  int          `json:"cgroupVersion"`
	AllPIDs bool         `json:"hostPIDs"`
	Runtime host.Runtime `json:"runtime"`
}

// GPU is a GPU that NVML counts.
type GPU struct {
	Index      int            `json:"index"`
	Name       string         `json:"name"`
	Error      string         `json:"error"`
	Attributes map[string]any `json:"attributes"`
	Memory     uint64         `json:"memory"`
	MIG        MIG            `json:"mig"`
	MPSLimits  bool           `json:"mpsLimits"`
	// VGPULicense is the license of a vGPU; empty: it is none, or nothing is known.
	VGPULicense string            `json:"vgpuLicense"`
	Nodes       []string          `json:"deviceNodes"`
	Unanswered  map[string]string `json:"unanswered"`
}

// Passthrough says whether virtual machines can have a GPU.
type Passthrough struct {
	Name    string `json:"name"`
	Group   int    `json:"iommuGroup"` // -1: none
	Driver  string `json:"driver"`     // of the kernel
	Refusal string `json:"refusal"`    // empty: they can
	// VGPUs are the types of which the GPU can have vGPUs, and those that exist.
	VGPUs []string `json:"vgpus"`
}

// MIG is the MIG support and state of a GPU.
type MIG struct {
	Capable    bool                `json:"capable"`
	Enabled    bool                `json:"enabled"`
	Switchable bool                `json:"switchable"`
	Offered    string              `json:"offered"`
	Profiles   []string            `json:"profiles"`
	Partitions []ExistingPartition `json:"partitions"`
}

// ExistingPartition is an existing MIG partition.
type ExistingPartition struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
	UUID    string `json:"uuid"`
}

// Healthy reports whether nothing keeps pods from using GPUs.
func (r Report) Healthy() bool {
	return !slices.ContainsFunc(r.Problems, func(p host.Problem) bool { return p.Severity == host.Error })
}

// Run checks the node without changing it. On the same machine it returns the same report.
func Run(t Target) Report {
	e := &checker{Target: t, report: Report{Format: Format, GPUs: []GPU{}, VirtualMachines: []Passthrough{},
		Slices:   []resourceapi.ResourceSlice{},
		Problems: []host.Problem{}}}
	e.driver()
	e.host()
	e.health()
	e.mps()
	if t.Machine.Library != nil {
		e.machine()
	}
	// errors first
	slices.SortStableFunc(e.report.Problems, func(a, b host.Problem) int { return cmp.Compare(a.Severity, b.Severity) })
	return e.report
}

// checker builds a report.
type checker struct {
	Target
	report Report
}

func (e *checker) found(p ...host.Problem) { e.report.Problems = append(e.report.Problems, p...) }

// has reports whether a problem of the kind was found.
func (e *checker) has(k host.ProblemKind) bool {
	return slices.ContainsFunc(e.report.Problems, func(p host.Problem) bool { return p.ID == k.ID })
}

func (e *checker) host() {
	r, problems := host.LookUpRuntime(e.Host, "", e.CDIDir)
	h := &e.report.Host
	*h = Host{Root: string(e.Host), Kernel: e.Kernel, Cgroup: host.CgroupVersion(e.Cgroups),
		AllPIDs: host.SeesAllPIDs("/proc"), Runtime: r}
	e.found(problems...)
	e.found(host.DevicePlugins(e.Host)...)
	if e.PluginDir != "" {
		e.found(host.OtherDrivers(e.Host, e.PluginDir, e.DriverName)...)
	}
	e.found(host.ReadOnlyDirs(e.Host, append([]string{e.CDIDir}, e.Writes...), e.Writable)...)
	if e.HooksDir != "" {
		e.found(host.HooksDir(e.Host, e.HooksDir)...)
	}
	if h.Cgroup == 1 {
		e.found(host.CgroupV1.Found("%s is not cgroup v2", e.Cgroups))
	}
	if !h.AllPIDs {
		e.found(host.PIDNamespace.Found("this program does not see the processes of the whole machine"))
	}
}

// health reports what the running plugin knows to be wrong with GPUs.
func (e *checker) health() {
	if e.PluginDir == "" {
		return
	}
	saved, err := health.Load(e.PluginDir)
	if err != nil {
		e.found(gpuSick.Found("%v", err))
	}
	for _, g := range saved.GPUs {
		for _, c := range saved.Conditions {
			if c.GPU == g.UUID && c.Active() && !slices.Contains([]health.Cause{health.GPULost, health.VGPUUnlicensed,
				health.ComputeModeProhibited}, c.Cause) { // these have problems of their own
				meaning, _ := health.Describe(c.Cause)
				e.found(gpuSick.Found("%s: %s (%s) since %s: %s", g.Name, c.Cause.Title(), g.Rules[c.Cause],
					c.Since.UTC().Format(time.RFC3339), meaning))
			}
		}
	}
}

// mps reports daemons that do not serve, and those whose servers have failed. That a server hangs is not seen here.
func (e *checker) mps() {
	if e.PluginDir == "" {
		return
	}
	dir := mps.Below(e.PluginDir)
	daemons, err := dir.Requested()
	if err != nil {
		e.found(mpsDaemon.Found("%v", err))
	}
	for _, d := range daemons {
		if err := dir.Check(d.ID); err != nil {
			e.found(mpsDaemon.Found("%v", err))
		}
		if state, err := dir.State(d.ID); err == nil && state.ServerFailures > 0 {
			e.found(mpsDaemon.Found("MPS daemon %s: %d of its servers have failed, and their clients with them; the "+
				"last: %s", d.ID, state.ServerFailures, state.ServerFailure))
		}
	}
}

// publish adds what the node would publish without a node configuration and without claims.
func (e *checker) publish(devices []gpu.Device) {
	all := inventory.Slices(e.DriverName, e.NodeName, inventory.Defaults(devices).Pools(e.NodeName))
	for i, s := range all {
		s.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"}
		s.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", e.NodeName, e.DriverName, i)}
		e.report.Slices = append(e.report.Slices, *s)
	}
}
