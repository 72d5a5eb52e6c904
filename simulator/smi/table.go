// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const rule = "+-----------------------------------------+------------------------+----------------------+"

// printTable is nvidia-smi without arguments.
func printTable(out io.Writer, v *node.View, gpus []gpu, now time.Time) {
	wide := "+" + strings.Repeat("-", len(rule)-2) + "+"
	fmt.Fprintln(out, now.Format("Mon Jan _2 15:04:05 2006"))
	fmt.Fprintln(out, wide)
	fmt.Fprintf(out, "| NVIDIA-SMI %-23sDriver Version: %-15sCUDA Version: %-9s|\n", v.Profile.Driver(),
		v.Profile.Driver(), cudaVersion(v))
	fmt.Fprintln(out, rule)
	fmt.Fprintln(out, "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
	fmt.Fprintln(out, "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
	fmt.Fprintln(out, "|                                         |                        |               MIG M. |")
	fmt.Fprintln(out, "|"+strings.ReplaceAll(strings.Trim(rule, "+"), "-", "=")+"|")
	for _, g := range gpus {
		printRows(out, v, g)
	}
	fmt.Fprintf(out, "\n%s\n", wide)
	fmt.Fprintf(out, "| %-*s|\n", len(rule)-3, "Processes:")
	fmt.Fprintln(out, "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
	fmt.Fprintln(out, "|        ID   ID                                                               Usage      |")
	fmt.Fprintln(out, "|"+strings.Repeat("=", len(rule)-2)+"|")
	printProcesses(out, gpus)
	fmt.Fprintln(out, wide)
}

// printProcesses prints the processes of the node. Like the real program, it omits those that it cannot see, as in a
// container with its own PID namespace: it looks up each by PID and name.
func printProcesses(out io.Writer, gpus []gpu) {
	found := false
	for _, g := range gpus {
		for _, p := range visibleProcesses(g.State.Processes) {
			found = true
			printProcess(out, g, "N/A", "N/A", p)
		}
		for _, partition := range g.partitions {
			for _, p := range visibleProcesses(partition.Compute.Processes) {
				found = true
				printProcess(out, g, strconv.Itoa(partition.Instance.ID), strconv.Itoa(partition.Compute.ID), p)
			}
		}
	}
	if !found {
		fmt.Fprintf(out, "|  %-*s|\n", len(rule)-4, "No running processes found")
	}
}

func visibleProcesses(all []node.Process) []node.Process {
	return slices.DeleteFunc(slices.Clone(all), func(p node.Process) bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
		return err != nil || strings.TrimSpace(string(name)) != p.Name
	})
}

func printProcess(out io.Writer, g gpu, instance, compute string, p node.Process) {
	fmt.Fprintf(out, "| %4d %5s %4s %15d    M+C   %-35.35s %10s |\n", g.Index, instance, compute, p.PID, p.Name,
		fmt.Sprintf("%dMiB", p.Memory>>20))
}

func printRows(out io.Writer, v *node.View, g gpu) {
	get := func(name string) string {
		for _, f := range fields {
			if f.name == name {
				text := f.value(v, g)
				if text == "[N/A]" {
					return "N/A"
				}
				if strings.HasPrefix(text, "[") {
					return "ERR!"
				}
				return text
			}
		}
		panic("no field " + name)
	}
	number := func(name, unit string) string {
		text := get(name)
		if text == "N/A" || text == "ERR!" {
			return text
		}
		whole, _, _ := strings.Cut(text, ".")
		return whole + unit
	}
	onOff := map[string]string{"Enabled": "On", "Disabled": "Off"}
	short := func(text string) string {
		if s, ok := onOff[text]; ok {
			return s
		}
		return text
	}
	ecc := get("ecc.mode.current")
	switch ecc {
	case "Enabled":
		ecc = "0"
	case "Disabled":
		ecc = "Off"
	}
	mode := get("compute_mode")
	if mode == hwprofile.ComputeModeExclusiveProcess.String() {
		mode = "E. Process"
	}
	fmt.Fprintf(out, "| %3d  %-30.30s %-4s| %18s %3s | %20s |\n", g.Index, get("name"), short(get("persistence_mode")),
		busID(g),
		short(get("display_active")), ecc)
	fmt.Fprintf(out, "| %-4s %4s    %-4s %13s / %5s | %10s / %9s | %7s %12s |\n", number("fan.speed", "%"),
		number("temperature.gpu", "C"), get("pstate"),
		number("power.draw", "W"), number("power.limit", "W"), number("memory.used", "MiB"),
		number("memory.total", "MiB"),
		number("utilization.gpu", "%"), mode)
	fmt.Fprintf(out, "| %39s | %22s | %20s |\n%s\n", "", "", get("mig.mode.current"), rule)
}
