// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Exit codes of the real program.
const (
	exitOK           = 0
	exitUsage        = 2
	exitNotFound     = 6
	exitNoDriver     = 9
	exitNoLibrary    = 12
	exitGPULost      = 15
	exitUnknownError = 255
)

const usage = `The simulated nvidia-smi: about the simulated GPUs that this process can reach.

    nvidia-smi                          a table
    nvidia-smi -L, --list-gpus          a line for each GPU and for each partition
    nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]
    nvidia-smi -q -x                    what each GPU is, as XML; of the real document a part
    nvidia-smi -c, --compute-mode=MODE  0/DEFAULT, 2/PROHIBITED, 3/EXCLUSIVE_PROCESS; on the node only
    nvidia-smi -r, --gpu-reset          reset the GPUs; on the node only, and while no process has NVML open
    nvidia-smi compute-policy           the time slice; see nvidia-smi compute-policy -h
    nvidia-smi mig -lgip|-lgipp|-lgi    profiles of partitions, where they can be, and those that are there
    nvidia-smi -i, --id=ID,...          only these: index, UUID, serial number or PCI address
    nvidia-smi --version
    nvidia-smi -h, --help               this text and the fields
`

// options are the options of the command line.
type options struct {
	list, version, help bool
	full, xml, reset    bool
	query, format, ids  string
	computeMode         string
}

// Run runs the program and returns the exit code. now is for the table.
func Run(m Machine, args []string, now time.Time, out, errOut io.Writer) int {
	if len(args) > 0 && args[0] == "compute-policy" {
		return runPolicy(m, args[1:], out, errOut)
	}
	if len(args) > 0 && args[0] == "mig" {
		return runMIG(m, args[1:], out, errOut)
	}
	o, err := parse(args)
	if err == nil && o.query != "" {
		_, _, err = parseQuery(o)
	}
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitUsage
	}
	if o.help {
		fmt.Fprintf(out, "%s\nFields: %s\n", usage, strings.Join(fieldNames(), ", "))
		return exitOK
	}
	v, root, err := m.findLibrary()
	if err != nil {
		return explain(err, out, errOut)
	}
	if o.computeMode != "" {
		return runComputeMode(v, root, o, out, errOut)
	}
	if o.reset {
		return runReset(v, root, o, out, errOut)
	}
	if o.version {
		printVersion(out, v)
		return exitOK
	}
	gpus, err := choose(reachable(v, root), o.ids)
	if err != nil || len(gpus) == 0 {
		fmt.Fprintln(out, "No devices were found")
		return exitNotFound
	}
	return show(o, v, gpus, now, out)
}

// explain prints why there is nothing to show or to change.
func explain(err error, out, errOut io.Writer) int {
	if errors.Is(err, errNoLibrary) {
		fmt.Fprintln(out, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that "+
			"the NVIDIA Display Driver "+
			"is properly installed and present in your system.\nPlease also try adding directory that contains "+
			"libnvidia-ml.so to your system PATH.")
		return exitNoLibrary
	}
	if errors.Is(err, errNoDriver) {
		fmt.Fprintln(out, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "+
			"that the latest NVIDIA driver is installed and running.")
		return exitNoDriver
	}
	fmt.Fprintln(out, "Failed to initialize NVML: Unknown Error")
	fmt.Fprintln(errOut, err)
	return exitUnknownError
}

// show writes what the options request. Like the real program, it writes no table and no query if a GPU is not
// accessible.
func show(o options, v *node.View, gpus []gpu, now time.Time, out io.Writer) int {
	lost := slices.IndexFunc(gpus, func(g gpu) bool { return g.State.Unplugged })
	switch {
	case lost >= 0 && !o.list:
		printLost(out, gpus[lost], hwprofile.LostGPU)
		return exitGPULost
	case o.query != "":
		fields, f, _ := parseQuery(o) // validated before
		printQuery(out, v, gpus, fields, f)
	case o.full:
		printXML(out, v, gpus, now)
	case o.list:
		return printList(out, gpus)
	default:
		printTable(out, v, gpus, now)
	}
	return exitOK
}

// parse parses the command line. Long options take their value after "=" or as the next argument.
func parse(args []string) (options, error) {
	var o options
	values := map[string]*string{"--query-gpu": &o.query, "--format": &o.format, "-i": &o.ids, "--id": &o.ids,
		"-c": &o.computeMode, "--compute-mode": &o.computeMode}
	flags := map[string]*bool{"-L": &o.list, "--list-gpus": &o.list, "--version": &o.version, "-h": &o.help,
		"--help": &o.help,
		"-q":     &o.full, "--query": &o.full, "-x": &o.xml, "--xml-format": &o.xml,
		"-r": &o.reset, "--gpu-reset": &o.reset}
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		if flag, ok := flags[name]; ok && !given {
			*flag = true
			continue
		}
		to, ok := values[name]
		if !ok {
			return o,
				fmt.Errorf("nvidia-smi: option %q is not one that the simulated nvidia-smi has; see nvidia-smi -h",
					name)
		}
		if !given {
			if len(args) == 0 {
				return o, fmt.Errorf("nvidia-smi: option %s: its value is missing", name)
			}
			value, args = args[0], args[1:]
		}
		if value == "" {
			return o, fmt.Errorf("nvidia-smi: option %s: its value is missing", name)
		}
		*to = value
	}
	if o.full != o.xml {
		return o, errors.New("nvidia-smi: the simulated nvidia-smi has -q and -x only together")
	}
	if o.format != "" && o.query == "" {
		return o, errors.New("nvidia-smi: --format is for --query-gpu")
	}
	return o, nil
}

// printList is nvidia-smi -L.
func printList(out io.Writer, gpus []gpu) int {
	exit := exitOK
	for _, g := range gpus {
		name, e := ask(g, "GetName", g.Calls.GetName)
		if e == "" {
			_, e = ask(g, "GetUUID", g.Calls.GetUUID.Or(g.UUID))
		}
		if e != "" {
			printLost(out, g, e)
			exit = exitGPULost
			continue
		}
		fmt.Fprintf(out, "GPU %d: %s (UUID: %s)\n", g.Index, name, g.UUID)
		for i, p := range g.partitions {
			fmt.Fprintf(out, "  MIG %-11s Device %2d: (UUID: %s)\n", p.Name, i, p.Compute.UUID)
		}
	}
	return exit
}

func printLost(out io.Writer, g gpu, e hwprofile.Error) {
	fmt.Fprintf(out, "Unable to determine the device handle for GPU%d: %s: %s\n", g.Index,
		strings.ToUpper(g.PCI.Address.String()), describe(e))
}

func printVersion(out io.Writer, v *node.View) {
	driver := v.Profile.Driver()
	short := strings.Join(strings.SplitN(driver, ".", 3)[:2], ".")
	fmt.Fprintf(out, "NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version     "+
		"   : %s\n",
		driver, short, driver, cudaVersion(v))
}

func cudaVersion(v *node.View) string {
	n, e := v.Profile.System.CUDAVersion.Get()
	if e != "" {
		return "N/A"
	}
	return fmt.Sprintf("%d.%d", n/1000, n%1000/10)
}

// describe returns the real program's message for the error.
func describe(e hwprofile.Error) string {
	switch e {
	case hwprofile.NotSupported:
		return "N/A"
	case hwprofile.LostGPU:
		return "GPU is lost"
	case hwprofile.InUse:
		return "In use by another client"
	case "ERROR_NO_PERMISSION":
		return "Insufficient Permissions"
	}
	return "Unknown Error"
}
