// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const migUsage = `
    mig -- Multi Instance GPU management. Of the real program's options the simulated one has those that list.

    Usage: nvidia-smi mig [options]

    [-i | --id]: GPU device ID's. Provide comma separated values for more than one device
    [-lgip | --list-gpu-instance-profiles]: profiles, how many of each fit now, and what they have
    [-lgipp | --list-gpu-instance-possible-placements]: where they can be
    [-lgi | --list-gpu-instances]: those that are there
    [-h | --help]: this text

`

// migListings are the listings by option.
var migListings = map[string]func(out io.Writer, gpus []gpu) int{
	"-lgip": listProfiles, "--list-gpu-instance-profiles": listProfiles,
	"-lgipp": listPlacements, "--list-gpu-instance-possible-placements": listPlacements,
	"-lgi": listInstances, "--list-gpu-instances": listInstances,
}

// runMIG is nvidia-smi mig.
func runMIG(m Machine, args []string, out, errOut io.Writer) int {
	var list func(io.Writer, []gpu) int
	ids := ""
	for len(args) > 0 {
		name := args[0]
		args = args[1:]
		switch f, known := migListings[name]; {
		case known:
			list = f
		case (name == "-i" || name == "--id") && len(args) > 0:
			ids, args = args[0], args[1:]
		case name == "-h" || name == "--help":
			fmt.Fprint(out, migUsage)
			return exitOK
		default:
			fmt.Fprintf(errOut, "nvidia-smi mig: option %q is not one that the simulated nvidia-smi has; see "+
				"nvidia-smi mig -h\n", name)
			return exitUsage
		}
	}
	if list == nil {
		fmt.Fprint(out, migUsage)
		return exitOK
	}
	v, root, err := m.findLibrary()
	if err != nil {
		return explain(err, out, errOut)
	}
	gpus, err := choose(reachable(v, root), ids)
	if err != nil || len(gpus) == 0 {
		fmt.Fprintln(out, "No devices were found")
		return exitNotFound
	}
	gpus = slices.DeleteFunc(gpus, func(g gpu) bool { return !g.Partitioned() || g.State.Unplugged })
	if len(gpus) == 0 {
		fmt.Fprintln(out, "No MIG-enabled devices found.")
		return exitNotFound
	}
	return list(out, gpus)
}

// byName returns NVML's numbers of the GPU's profiles in the order of the real listing: small ones first, variants
// after their plain profile.
func byName(profiles hwprofile.GPUInstanceProfiles) []int {
	var numbers []int
	for number := range profiles {
		numbers = append(numbers, number)
	}
	slices.SortFunc(numbers, func(a, b int) int {
		p, q := profiles[a], profiles[b]
		if p.SliceCount != q.SliceCount {
			return p.SliceCount - q.SliceCount
		}
		if p.MemorySizeMB != q.MemorySizeMB {
			return int(p.MemorySizeMB) - int(q.MemorySizeMB)
		}
		return a - b
	})
	return numbers
}

func listProfiles(out io.Writer, gpus []gpu) int {
	const width = 79
	line := "+" + strings.Repeat("-", width) + "+"
	fmt.Fprintln(out, line)
	fmt.Fprintf(out, "|%-*s|\n", width, " GPU instance profiles:")
	fmt.Fprintf(out, "|%-*s|\n", width, " GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC")
	fmt.Fprintf(out, "|%-*s|\n", width, "                                Free/Total   GiB              CE    JPEG  OFA")
	fmt.Fprintln(out, "|"+strings.Repeat("=", width)+"|")
	for _, g := range gpus {
		profiles, _ := g.Calls.GetGpuInstanceProfileInfo.Get()
		for _, number := range byName(profiles) {
			p := profiles[number]
			free, _ := g.RemainingCapacity(p.ID)
			count := fmt.Sprintf("%d/%d", free, p.InstanceCount)
			fmt.Fprintf(out, "|%-*s|\n", width,
				fmt.Sprintf("%4d  MIG %-14s %3d     %-10s %-10.2f No     %-6d %-5d %-4d",
					g.Index, p.Name, p.ID, count, float64(p.MemorySizeMB)/1024, p.MultiprocessorCount, p.DecoderCount,
					p.EncoderCount))
			fmt.Fprintf(out, "|%-*s|\n%s\n", width, fmt.Sprintf("%63s%-5d %-5d %-4d", "", p.CopyEngineCount,
				p.JPEGCount, p.OFACount), line)
		}
	}
	return exitOK
}

func listPlacements(out io.Writer, gpus []gpu) int {
	for _, g := range gpus {
		profiles, _ := g.Calls.GetGpuInstanceProfileInfo.Get()
		for _, number := range byName(profiles) {
			places, err := g.Placements(profiles[number].ID)
			if err != nil || len(places) == 0 {
				continue
			}
			var starts []string
			for _, p := range places {
				starts = append(starts, strconv.Itoa(p.Start))
			}
			word := "Placements"
			if len(starts) == 1 {
				word = "Placement "
			}
			fmt.Fprintf(out, "GPU %2d Profile ID %2d %s: {%s}:%d\n", g.Index, profiles[number].ID, word,
				strings.Join(starts, ","), places[0].Size)
		}
	}
	return exitOK
}

func listInstances(out io.Writer, gpus []gpu) int {
	const width = 57
	line := "+" + strings.Repeat("-", width) + "+"
	var rows []string
	for _, g := range gpus {
		profiles, _ := g.Calls.GetGpuInstanceProfileInfo.Get()
		instances := slices.Clone(g.MIG().Instances)
		order := byName(profiles)
		slices.SortStableFunc(instances, func(a, b node.GPUInstance) int {
			return slices.Index(order, a.Profile) - slices.Index(order, b.Profile)
		})
		for _, is := range instances {
			p := profiles[is.Profile]
			rows = append(rows, fmt.Sprintf("|%-*s|", width, fmt.Sprintf("%4d  %-18s%6d%9d%11d:%d", g.Index,
				"MIG "+p.Name, p.ID, is.ID, is.Span.Start, is.Span.Size)), line)
		}
	}
	if len(rows) == 0 {
		fmt.Fprintln(out, "No GPU instances found: Not Found")
		return exitNotFound
	}
	fmt.Fprintln(out, line)
	fmt.Fprintf(out, "|%-*s|\n", width, " GPU instances:")
	fmt.Fprintf(out, "|%-*s|\n", width, " GPU   Name               Profile  Instance   Placement")
	fmt.Fprintf(out, "|%-*s|\n", width, "                            ID       ID       Start:Size")
	fmt.Fprintln(out, "|"+strings.Repeat("=", width)+"|")
	fmt.Fprintln(out, strings.Join(rows, "\n"))
	return exitOK
}
