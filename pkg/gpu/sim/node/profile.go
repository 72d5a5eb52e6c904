// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Profile is a machine as NVML and the PCI bus describe it: what the GPUs answer when nothing has been changed yet.
// It is read from YAML by ParseProfile or BuiltIn and never changed afterwards.
type Profile struct {
	Name        string
	Description string
	Kernel      string // of the machine that was recorded, for people
	System      System
	GPUs        []GPU

	source string // the YAML it was read from
}

// System are the answers of NVML's calls about the machine.
type System struct {
	DriverVersion Answer[string] `yaml:"SystemGetDriverVersion"`
	NVMLVersion   Answer[string] `yaml:"SystemGetNVMLVersion"`
	CUDAVersion   Answer[int]    `yaml:"SystemGetCudaDriverVersion"` // 1000*major + 10*minor
}

// GPU is one GPU of a profile.
type GPU struct {
	PCI   PCI   `yaml:"pci"`
	Calls Calls `yaml:"calls"`
	// Instances are the GPU instances that are there when the GPU is put in, by ID.
	Instances []GPUInstance `yaml:"gpuInstances"`
}

// PCI is where a GPU sits on the bus and what it says about itself there.
type PCI struct {
	Address   Address   `yaml:"address"`
	Root      string    `yaml:"root"`     // the root complex, "pci0000:15"
	Bridges   []Address `yaml:"bridges"`  // between the root complex and the GPU, from the root on
	NUMANode  int       `yaml:"numaNode"` // -1: the machine does not say
	DeviceID  uint32    `yaml:"deviceId"` // 0x2330; the vendor is always NVIDIA, 0x10de
	Subsystem uint32    `yaml:"subsystemId"`
}

// Vendor is NVIDIA's PCI vendor id.
const Vendor = 0x10de

// Address is a PCI address as a profile writes it: "0000:1b:00.0".
type Address struct{ gpu.PCIAddress }

// ParseAddress reads an address as a profile writes it.
func ParseAddress(s string) (Address, error) {
	parsed, err := gpu.ParsePCIAddress(s)
	if err != nil || !addressFormat.MatchString(s) {
		return Address{}, fmt.Errorf("%q is no PCI address such as 0000:1b:00.0", s)
	}
	return Address{parsed}, nil
}

// MarshalText is the address as a profile writes it.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (a *Address) UnmarshalText(text []byte) error {
	parsed, err := ParseAddress(string(text))
	*a = parsed
	return err
}

// compare orders addresses as NVML enumerates GPUs.
func (a Address) compare(b Address) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

func (a *Address) decode(d *decoder, path string, n *yaml.Node) {
	parsed, err := ParseAddress(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		d.problem(path, n, "%s is no PCI address such as 0000:1b:00.0", show(n))
		return
	}
	*a = parsed
}

var (
	addressFormat = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$`)
	rootFormat    = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)
	uuidFormat    = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	hexUUIDFormat = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	versionFormat = regexp.MustCompile(`^[0-9]+(\.[0-9]+){1,2}([-+][0-9A-Za-z.+-]+)?$`)
)

// MaxGPUs is how many GPUs a simulated node may have.
const MaxGPUs = 64

// file is the layout of a profile in YAML: defaults spare a node of equal GPUs the repetition. A GPU that gives a call or
// a field replaces the default's whole answer to that call or field.
type file struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	Kernel      string `yaml:"kernel"`
	System      System `yaml:"system"`
	Defaults    GPU    `yaml:"defaults"`
	GPUs        []raw  `yaml:"gpus"`
}

// raw is a part of a file that is read later.
type raw struct{ node *yaml.Node }

func (r *raw) decode(_ *decoder, _ string, n *yaml.Node) { r.node = n }

// ParseProfile reads a profile from YAML. It is strict: the error names every unknown field or call, bad value and
// contradiction with its line and path, and says what is accepted.
func ParseProfile(text []byte) (Profile, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return Profile{}, fmt.Errorf("parse profile: %w", err)
	}
	if len(doc.Content) == 0 {
		return Profile{}, fmt.Errorf("parse profile: the file is empty")
	}
	d := &decoder{}
	var f file
	d.value("", doc.Content[0], reflect.ValueOf(&f).Elem())
	p := Profile{Name: f.Name, Description: f.Description, Kernel: f.Kernel, System: f.System, source: string(text)}
	for i := range f.GPUs {
		g := f.Defaults
		d.value(fmt.Sprintf("gpus[%d]", i), f.GPUs[i].node, reflect.ValueOf(&g).Elem())
		p.GPUs = append(p.GPUs, g)
	}
	p.check(d, doc.Content[0], f.GPUs)
	if err := d.err(); err != nil {
		return Profile{}, fmt.Errorf("parse profile: %w", err)
	}
	return p, nil
}

// check finds what is missing or contradicts itself.
func (p *Profile) check(d *decoder, top *yaml.Node, at []raw) {
	if p.Name == "" {
		d.problem("name", top, "missing")
	}
	if v, e := p.System.DriverVersion.Get(); e != "" || !versionFormat.MatchString(v) {
		d.problem("system.SystemGetDriverVersion", top, "want a version such as 580.95.05: it names the driver's libraries")
	}
	if len(p.GPUs) > MaxGPUs {
		d.problem("gpus", top, "%d GPUs: at most %d", len(p.GPUs), MaxGPUs)
	}
	addresses, uuids, minors := map[Address]int{}, map[string]int{}, map[int]int{}
	for i, g := range p.GPUs {
		path, n := fmt.Sprintf("gpus[%d]", i), at[i].node
		g.check(d, path, n)
		if g.PCI.Address != (Address{}) {
			unique(d, path+".pci.address", n, addresses, g.PCI.Address, i)
		}
		if id, e := g.Calls.GetUUID.Get(); e == "" {
			unique(d, path+".calls.GetUUID", n, uuids, id, i)
		}
		if minor, e := g.Calls.GetMinorNumber.Or(i).Get(); e == "" {
			unique(d, path+".calls.GetMinorNumber", n, minors, minor, i)
		}
	}
}

func unique[K comparable](d *decoder, path string, n *yaml.Node, seen map[K]int, key K, i int) {
	if first, twice := seen[key]; twice {
		d.problem(path, n, "%v is also that of gpus[%d]", key, first)
		return
	}
	seen[key] = i
}

func (g *GPU) check(d *decoder, path string, n *yaml.Node) {
	if g.PCI.Address == (Address{}) {
		d.problem(path+".pci.address", n, "missing")
	}
	if !rootFormat.MatchString(g.PCI.Root) {
		d.problem(path+".pci.root", n, "%q: want a root complex such as pci0000:15", g.PCI.Root)
	}
	if g.PCI.NUMANode < -1 || g.PCI.NUMANode > 1023 {
		d.problem(path+".pci.numaNode", n, "%d: want -1 (the machine does not say) to 1023", g.PCI.NUMANode)
	}
	if g.PCI.DeviceID > 0xffff {
		d.problem(path+".pci.deviceId", n, "%#x: want at most 0xffff", g.PCI.DeviceID)
	}
	if id, e := g.Calls.GetUUID.Get(); e == "" && !uuidFormat.MatchString(id) {
		d.problem(path+".calls.GetUUID", n, "%q: want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", id)
	}
	if m, e := g.Calls.GetMinorNumber.Get(); e == "" && (m < 0 || m > maxMinor) {
		d.problem(path+".calls.GetMinorNumber", n, "%d: want 0 to %d", m, maxMinor)
	}
	if m, e := g.Calls.GetMemoryInfo.Get(); e == "" && (m.Total == 0 || m.Reserved+m.Used > m.Total) {
		d.problem(path+".calls.GetMemoryInfo", n, "want a total of at least reserved and used together")
	}
	g.checkMIG(d, path, n)
	if f, e := g.Calls.GetGpuFabricInfo.Get(); e == "" && !hexUUIDFormat.MatchString(f.ClusterUUID) {
		d.problem(path+".calls.GetGpuFabricInfo.clusterUuid", n, "%q: want xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", f.ClusterUUID)
	}
}

// YAML is the text the profile was read from.
func (p Profile) YAML() string { return p.source }

// Driver is the version of the simulated driver: "580.95.05".
func (p Profile) Driver() string {
	version, _ := p.System.DriverVersion.Get()
	return version
}

// same says whether both describe the same machine, however they are written.
func (p Profile) same(other Profile) bool {
	p.source, other.source = "", ""
	return reflect.DeepEqual(p, other)
}

//go:embed profiles/*.yaml
var builtIn embed.FS

// Names are the names of the built-in profiles, in order.
func Names() []string { return namesIn(builtIn) }

// namesIn are the names of the YAML files in the directories of a file system, without directory and ending, in order.
func namesIn(files fs.FS) []string {
	names, err := fs.Glob(files, "*/*.yaml")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for i, name := range names {
		names[i] = strings.TrimSuffix(path.Base(name), ".yaml")
	}
	slices.Sort(names)
	return names
}

// BuiltIn is the built-in profile of that name.
func BuiltIn(name string) (Profile, error) {
	text, err := builtIn.ReadFile("profiles/" + name + ".yaml")
	if err != nil {
		return Profile{}, fmt.Errorf("no profile %q; built in are %s", name, strings.Join(Names(), ", "))
	}
	p, err := ParseProfile(text)
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}
