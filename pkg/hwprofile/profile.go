// SPDX-License-Identifier: Apache-2.0

package hwprofile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Profile describes a machine before any change: the answers of NVML and the PCI bus. ParseProfile or BuiltIn reads it
// from YAML; it is immutable.
type Profile struct {
	Name        string
	Description string
	Kernel      string // of the recorded machine, for people
	System      System
	GPUs        []GPU

	source string // the YAML it was parsed from
}

// System has the answers of NVML's calls about the machine.
type System struct {
	DriverVersion Answer[string] `yaml:"SystemGetDriverVersion"`
	NVMLVersion   Answer[string] `yaml:"SystemGetNVMLVersion"`
	CUDAVersion   Answer[int]    `yaml:"SystemGetCudaDriverVersion"` // 1000*major + 10*minor
}

// GPU is one GPU of a profile.
type GPU struct {
	PCI   PCI   `yaml:"pci"`
	Calls Calls `yaml:"calls"`
	// Instances are the initial GPU instances, by ID.
	Instances []GPUInstance `yaml:"gpuInstances"`
}

// PCI is the GPU's position on the bus and its PCI identification.
type PCI struct {
	Address   Address   `yaml:"address"`
	Root      string    `yaml:"root"`     // the root complex, "pci0000:15"
	Bridges   []Address `yaml:"bridges"`  // from the root complex to the GPU
	NUMANode  int       `yaml:"numaNode"` // -1: unknown
	DeviceID  uint32    `yaml:"deviceId"` // 0x2330; the vendor is always NVIDIA, 0x10de
	Subsystem uint32    `yaml:"subsystemId"`
	// HostDriver is the version that a vGPU has in its configuration space: "580.95.05"; empty: it is none.
	HostDriver string `yaml:"hostDriver"`
}

// Vendor is NVIDIA's PCI vendor id.
const Vendor = 0x10de

// Address is a PCI address in the format of profiles: "0000:1b:00.0".
type Address struct{ gpu.PCIAddress }

// ParseAddress parses an address in the format of profiles.
func ParseAddress(s string) (Address, error) {
	parsed, err := gpu.ParsePCIAddress(s)
	if err != nil || !addressFormat.MatchString(s) {
		return Address{}, fmt.Errorf("%q is no PCI address such as 0000:1b:00.0", s)
	}
	return Address{parsed}, nil
}

// MarshalText formats the address as in profiles.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses the output of MarshalText.
func (a *Address) UnmarshalText(text []byte) error {
	parsed, err := ParseAddress(string(text))
	*a = parsed
	return err
}

// Compare orders addresses in NVML's order of GPUs.
func (a Address) Compare(b Address) int { return a.PCIAddress.Compare(b.PCIAddress) }

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

// maxHostDriver is the room in the configuration space.
const maxHostDriver = 10

// MaxMinor is the last minor number of a GPU; higher ones belong to device nodes without a GPU.
const MaxMinor = 247

// MaxGPUs is the maximum number of GPUs of a simulated node.
const MaxGPUs = 64

// file is the layout of a profile in YAML. Its defaults apply to all GPUs. A call or field of a GPU replaces the
// default's whole answer.
type file struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	Kernel      string `yaml:"kernel"`
	System      System `yaml:"system"`
	Defaults    GPU    `yaml:"defaults"`
	GPUs        []raw  `yaml:"gpus"`
}

// raw is a part of a file that is decoded later.
type raw struct{ node *yaml.Node }

func (r *raw) decode(_ *decoder, _ string, n *yaml.Node) { r.node = n }

// ParseProfile parses a profile strictly: the error names every unknown field or call, bad value and contradiction with
// its line, its path and the accepted values.
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

// InRack returns the profile with the GPUs in the NVLink fabric of the named rack: the cluster UUID follows from the
// name. Error: no GPU is in a fabric of several nodes.
func (p Profile) InRack(name string) (Profile, error) {
	hash := sha256.Sum256([]byte("rack " + name))
	u := hex.EncodeToString(hash[:16])
	rack := fmt.Sprintf("%s-%s-%s-%s-%s", u[:8], u[8:12], u[12:16], u[16:20], u[20:])
	text := p.source
	for _, g := range p.GPUs {
		if f, e := g.Calls.GetGpuFabricInfo.Get(); e == "" && f.ClusterUUID != noCluster {
			text = strings.ReplaceAll(text, f.ClusterUUID, rack)
		}
	}
	if text == p.source {
		return Profile{}, fmt.Errorf("profile %s: no GPU is in an NVLink fabric of several nodes", p.Name)
	}
	return ParseProfile([]byte(text))
}

// noCluster is the cluster UUID of a fabric that ends at the node.
const noCluster = "00000000-0000-0000-0000-000000000000"

// check reports missing and contradicting values.
func (p *Profile) check(d *decoder, top *yaml.Node, at []raw) {
	if p.Name == "" {
		d.problem("name", top, "missing")
	}
	if v, e := p.System.DriverVersion.Get(); e != "" || !IsDriverVersion(v) {
		d.problem("system.SystemGetDriverVersion", top, "want a version such as 580.95.05: it names the driver's "+
			"libraries")
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
	if len(g.PCI.HostDriver) > maxHostDriver {
		d.problem(path+".pci.hostDriver", n, "%q: want at most %d characters", g.PCI.HostDriver, maxHostDriver)
	}
	if l, e := g.Calls.GetGridLicensableFeatures.Get(); e == "" && l.Expiry != "" {
		if _, err := time.Parse(time.RFC3339, l.Expiry); err != nil {
			d.problem(path+".calls.GetGridLicensableFeatures.expiry", n, "%q: want a time such as "+
				"2027-01-31T00:00:00Z", l.Expiry)
		}
	}
	if id, e := g.Calls.GetUUID.Get(); e == "" && !uuidFormat.MatchString(id) {
		d.problem(path+".calls.GetUUID", n, "%q: want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", id)
	}
	if m, e := g.Calls.GetMinorNumber.Get(); e == "" && (m < 0 || m > MaxMinor) {
		d.problem(path+".calls.GetMinorNumber", n, "%d: want 0 to %d", m, MaxMinor)
	}
	if m, e := g.Calls.GetMemoryInfo.Get(); e == "" && (m.Total == 0 || m.Reserved+m.Used > m.Total) {
		d.problem(path+".calls.GetMemoryInfo", n, "want a total of at least reserved and used together")
	}
	g.checkMIG(d, path, n)
	if f, e := g.Calls.GetGpuFabricInfo.Get(); e == "" && !hexUUIDFormat.MatchString(f.ClusterUUID) {
		d.problem(path+".calls.GetGpuFabricInfo.clusterUuid", n, "%q: want xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
			f.ClusterUUID)
	}
}

// IsDriverVersion reports whether the text is a driver version, such as 580.95.05.
func IsDriverVersion(text string) bool { return versionFormat.MatchString(text) }

// YAML returns the text the profile was parsed from.
func (p Profile) YAML() string { return p.source }

// Driver returns the version of the simulated driver: "580.95.05".
func (p Profile) Driver() string {
	version, _ := p.System.DriverVersion.Get()
	return version
}

// Same reports whether both describe the same machine, even in different YAML.
func (p Profile) Same(other Profile) bool {
	p.source, other.source = "", ""
	return reflect.DeepEqual(p, other)
}
