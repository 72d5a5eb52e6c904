// SPDX-License-Identifier: Apache-2.0

package hwprofile

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// GPUInstanceProfile is the answer of GetGpuInstanceProfileInfo: the resources of a kind of partition.
type GPUInstanceProfile struct {
	// the ID in calls that create instances; not NVML's number of the profile
	ID                  int    `yaml:"id"`
	Name                string `yaml:"name"`       // "1g.10gb+me"
	SliceCount          int    `yaml:"sliceCount"` // compute slices
	InstanceCount       int    `yaml:"instanceCount"`
	MultiprocessorCount int    `yaml:"multiprocessorCount"`
	CopyEngineCount     int    `yaml:"copyEngineCount"`
	DecoderCount        int    `yaml:"decoderCount"`
	EncoderCount        int    `yaml:"encoderCount"`
	JPEGCount           int    `yaml:"jpegCount"`
	OFACount            int    `yaml:"ofaCount"`
	MemorySizeMB        uint64 `yaml:"memorySizeMB"`
}

// Span is a range of memory slices of a GPU, or of compute slices of a GPU instance.
type Span struct {
	Start int `yaml:"start"`
	Size  int `yaml:"size"`
}

// Overlaps reports whether the spans share a slice.
func (s Span) Overlaps(other Span) bool {
	return s.Start < other.Start+other.Size && other.Start < s.Start+s.Size
}

// GPUInstance is an initial GPU instance: a part of the GPU's memory and engines.
type GPUInstance struct {
	ID      int               `yaml:"id"`
	Profile int               `yaml:"profile"` // NVML's number of it
	Span    Span              `yaml:"span"`
	Compute []ComputeInstance `yaml:"compute"` // by ID
}

// ComputeInstance is a part of a GPU instance's multiprocessors. Programs see it as a device.
type ComputeInstance struct {
	ID      int    `yaml:"id"`
	Profile int    `yaml:"profile"` // NVML's number of it
	Span    Span   `yaml:"span"`
	UUID    string `yaml:"uuid"` // "MIG-…", unique
}

// ComputeInstanceProfile is the answer of GetComputeInstanceProfileInfo. It shares the engines of the GPU instance.
type ComputeInstanceProfile struct {
	ID                  int `yaml:"id"`
	SliceCount          int `yaml:"sliceCount"`
	InstanceCount       int `yaml:"instanceCount"`
	MultiprocessorCount int `yaml:"multiprocessorCount"`
}

// The answers of the calls about MIG by NVML's numbers of the profiles. A machine's profile may use the name of a
// built-in table instead.
type (
	// GPUInstanceProfiles are what GetGpuInstanceProfileInfo answers.
	GPUInstanceProfiles map[int]GPUInstanceProfile
	// GPUInstancePlacements are what GetGpuInstancePossiblePlacements answers.
	GPUInstancePlacements map[int][]Span
	// ComputeInstanceProfiles are what GetComputeInstanceProfileInfo answers, by the GPU instance's profile and the
	// compute instance's.
	ComputeInstanceProfiles map[int]map[int]ComputeInstanceProfile
)

// partitionTable has a GPU model's answers to the calls about MIG.
type partitionTable struct {
	Profiles   map[int]GPUInstanceProfile             `yaml:"GetGpuInstanceProfileInfo"`
	Placements map[int][]Span                         `yaml:"GetGpuInstancePossiblePlacements"`
	Compute    map[int]map[int]ComputeInstanceProfile `yaml:"GpuInstanceGetComputeInstanceProfileInfo"`
}

func (p *GPUInstanceProfiles) decode(d *decoder, path string, n *yaml.Node) {
	tabled(d, path, n, p, func(t partitionTable) GPUInstanceProfiles { return t.Profiles })
}

func (p *GPUInstancePlacements) decode(d *decoder, path string, n *yaml.Node) {
	tabled(d, path, n, p, func(t partitionTable) GPUInstancePlacements { return t.Placements })
}

func (p *ComputeInstanceProfiles) decode(d *decoder, path string, n *yaml.Node) {
	tabled(d, path, n, p, func(t partitionTable) ComputeInstanceProfiles { return t.Compute })
}

// tabled decodes an answer, or takes it from the named table.
func tabled[T any](d *decoder, path string, n *yaml.Node, to *T, pick func(partitionTable) T) {
	if n.Kind != yaml.ScalarNode {
		d.table(path, n, reflect.ValueOf(to).Elem())
		return
	}
	t, known := d.tables[n.Value]
	if !known {
		var err error
		if t, err = readTable(n.Value); err != nil {
			d.problem(path, n, "%v", err)
			return
		}
		if d.tables == nil {
			d.tables = map[string]partitionTable{}
		}
		d.tables[n.Value] = t
	}
	*to = pick(t)
}

//go:embed mig/*.yaml
var tables embed.FS

// Tables returns the names of the built-in tables of MIG profiles, sorted.
func Tables() []string { return FileNames(tables) }

func readTable(name string) (partitionTable, error) {
	var t partitionTable
	text, err := tables.ReadFile("mig/" + name + ".yaml")
	if err != nil {
		return t, fmt.Errorf("no table %q of MIG profiles; built in are %s", name, strings.Join(Tables(), ", "))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return t, fmt.Errorf("table %s of MIG profiles: %w", name, err)
	}
	d := &decoder{}
	d.value("", doc.Content[0], reflect.ValueOf(&t).Elem())
	return t, d.err()
}

// checkMIG reports contradictions in the answers about MIG.
func (g *GPU) checkMIG(d *decoder, path string, n *yaml.Node) {
	placements, _ := g.Calls.GetGpuInstancePossiblePlacements.Get()
	compute, _ := g.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	profiles, _ := g.Calls.GetGpuInstanceProfileInfo.Get()
	for _, number := range slices.Sorted(maps.Keys(profiles)) {
		if len(placements[number]) == 0 && g.Calls.GetGpuInstancePossiblePlacements.err == "" {
			d.problem(path+".calls.GetGpuInstancePossiblePlacements", n, "profile %d has no placement", number)
		}
		if len(compute[number]) == 0 && g.Calls.GpuInstanceGetComputeInstanceProfileInfo.err == "" {
			d.problem(path+".calls.GpuInstanceGetComputeInstanceProfileInfo", n,
				"profile %d has no compute instance profile", number)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(placements)) {
		for _, at := range placements[number] {
			if at.Start < 0 || at.Size < 1 {
				d.problem(path+".calls.GetGpuInstancePossiblePlacements", n,
					"profile %d: want a start of at least 0 and a size of at least 1", number)
			}
		}
	}
	if mode, _ := g.Calls.GetMigMode.Get(); mode.Current&^1 != 0 || mode.Pending&^1 != 0 {
		d.problem(path+".calls.GetMigMode", n, "want 0 or 1")
	}
	g.checkInstances(d, path+".gpuInstances", n)
}

// checkInstances reports impossible initial GPU instances.
func (g *GPU) checkInstances(d *decoder, path string, n *yaml.Node) {
	placements, _ := g.Calls.GetGpuInstancePossiblePlacements.Get()
	compute, _ := g.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	if mode, _ := g.Calls.GetMigMode.Get(); len(g.Instances) > 0 && mode.Current == 0 {
		d.problem(path, n, "the GPU is not in MIG mode")
	}
	ids := map[int]int{}
	for i, instance := range g.Instances {
		at := fmt.Sprintf("%s[%d]", path, i)
		unique(d, at+".id", n, ids, instance.ID, i)
		if !slices.Contains(placements[instance.Profile], instance.Span) {
			d.problem(at, n, "profile %d cannot be at %d with a size of %d", instance.Profile, instance.Span.Start,
				instance.Span.Size)
		}
		for j, ci := range instance.Compute {
			if _, ok := compute[instance.Profile][ci.Profile]; !ok {
				d.problem(fmt.Sprintf("%s.compute[%d].profile", at, j), n,
					"%d is no compute instance profile of profile %d", ci.Profile, instance.Profile)
			}
			if !strings.HasPrefix(ci.UUID, "MIG-") {
				d.problem(fmt.Sprintf("%s.compute[%d].uuid", at, j), n,
					"%q: want MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", ci.UUID)
			}
		}
	}
}

// FileNames returns the names of the YAML files in the directories of a file system, without directory and extension,
// sorted.
func FileNames(files fs.FS) []string {
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
