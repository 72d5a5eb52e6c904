// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/check/host"
)

// Print writes the report as text, the problems last.
func (r Report) Print(out io.Writer) error {
	p := printer{out: out}
	p.driver(r.Driver)
	p.host(r.Host)
	for _, g := range r.GPUs {
		p.gpu(g)
	}
	p.virtualMachines(r.VirtualMachines)
	p.document("What would be published (without a node configuration, and without claims)", r.Slices,
		len(r.Slices) > 0)
	p.document("CDI spec of one GPU", r.CDI, r.CDI != nil)
	p.problems(r.Problems)
	return p.err
}

// printer keeps the first error of its writes.
type printer struct {
	out io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format, args...)
	}
}

func (p *printer) row(name string, value any) {
	text := fmt.Sprint(value)
	p.printf("  %-22s %s\n", name, cmp.Or(text, "-"))
}

func (p *printer) driver(d Driver) {
	p.printf("Driver\n")
	root := d.Root
	if d.Mount != d.Root {
		root += " (seen here as " + d.Mount + ")"
	}
	if d.Target != "" {
		root += " -> " + d.Target
	}
	p.row("root", root)
	p.row("library", d.Library)
	p.row("versions installed", strings.Join(d.Installed, ", "))
	p.row("kernel module", cmp.Or(d.Module, "not loaded"))
	p.row("driver, NVML, CUDA", strings.Join([]string{cmp.Or(d.Version, "-"), cmp.Or(d.NVML, "-"), cmp.Or(d.CUDA, "-")},
		", "))
	p.row("nvidia-smi", d.NvidiaSMI)
	p.row("MPS", d.MPSControl)
	p.row("CDI hook", d.CDIHook)
	p.row("persistence daemon", yes(d.Persistence))
	p.row("MIG device nodes", yes(d.MIGDeviceNodes))
}

func (p *printer) host(h Host) {
	p.printf("\nHost\n")
	p.row("root", cmp.Or(h.Root, "not looked at (--host-root)"))
	p.row("kernel", h.Kernel)
	p.row("cgroup", fmt.Sprintf("v%d", h.Cgroup))
	p.row("PIDs of the host", yes(h.AllPIDs))
	p.row("container runtime", strings.TrimSpace(h.Runtime.Name+" "+h.Runtime.Version))
	p.row("its configuration", strings.Join(h.Runtime.Config, ", "))
	p.row("CDI", h.Runtime.CDI)
	p.row("CDI specs in", strings.Join(h.Runtime.SpecDirs, ", "))
}

func yes(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }

func (p *printer) gpu(g GPU) {
	p.printf("\nGPU %d %s\n", g.Index, g.Name)
	if g.Error != "" {
		p.row("not published", g.Error)
		p.unanswered(g)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(g.Attributes)) {
		p.row(strings.TrimPrefix(name, "resource.kubernetes.io/"), g.Attributes[name])
	}
	p.row("memory", fmt.Sprintf("%d MiB", g.Memory>>20))
	p.row("MPS limits", yes(g.MPSLimits))
	if g.VGPULicense != "" {
		p.row("vGPU license", g.VGPULicense)
	}
	if g.MIG.Capable {
		p.row("MIG mode", fmt.Sprintf("%s; %s", map[bool]string{true: "on", false: "off"}[g.MIG.Enabled],
			map[bool]string{true: "changes without a reset", false: "changes with a reset"}[g.MIG.Switchable]))
		p.row("partitions offered", g.MIG.Offered)
		p.row("MIG profiles", strings.Join(g.MIG.Profiles, ", "))
		for _, part := range g.MIG.Partitions {
			p.row("partition", fmt.Sprintf("%s at %d, %s", part.Profile, part.Start, part.UUID))
		}
	}
	p.row("device nodes", strings.Join(g.Nodes, ", "))
	p.unanswered(g)
}

func (p *printer) virtualMachines(all []Passthrough) {
	if len(all) > 0 {
		p.printf("\nVirtual machines\n")
	}
	for _, g := range all {
		can := fmt.Sprintf("can have it: IOMMU group %d, driver %s", g.Group, cmp.Or(g.Driver, "none"))
		p.row(g.Name, cmp.Or(g.Refusal, can))
		for _, v := range g.VGPUs {
			p.row("", "vGPU: "+v)
		}
	}
	has := func(g Passthrough) bool { return len(g.VGPUs) > 0 }
	switch {
	case slices.ContainsFunc(all, has):
		p.row("vGPUs", "the guest needs a license of NVIDIA's vGPU software")
	case len(all) > 0:
		p.row("vGPUs", "none: the kernel shows no types. It does with NVIDIA's driver for hosts of vGPUs, on models "+
			"that have them, and from Ampere on once virtual functions are enabled (sriov-manage -e)")
	}
}

// unanswered groups calls by the error of NVML.
func (p *printer) unanswered(g GPU) {
	byCode := map[string][]string{}
	for _, call := range slices.Sorted(maps.Keys(g.Unanswered)) {
		byCode[g.Unanswered[call]] = append(byCode[g.Unanswered[call]], call)
	}
	for _, code := range slices.Sorted(maps.Keys(byCode)) {
		p.row(strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(code, "ERROR_"), "_", " ")),
			strings.Join(byCode[code], " "))
	}
}

func (p *printer) document(title string, content any, there bool) {
	if !there {
		return
	}
	text, err := yaml.Marshal(content)
	if err != nil && p.err == nil {
		p.err = err
	}
	p.printf("\n%s\n\n%s", title, text)
}

func (p *printer) problems(all []host.Problem) {
	counts := map[host.Severity]int{}
	for _, problem := range all {
		counts[problem.Severity]++
		p.printf("\n%s %s: %s\n  remedy: %s\n", problem.Severity, problem.ID, problem.What, problem.Remedy)
	}
	p.printf("\n%s, %s\n", counted(counts[host.Error], "error"), counted(counts[host.Warning], "warning"))
}

// counted returns the number with the word, in the plural unless it is one.
func counted(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
