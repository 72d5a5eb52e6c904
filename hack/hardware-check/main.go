// SPDX-License-Identifier: Apache-2.0

// Command hardware-check verifies the driver's assumptions on a machine with GPUs, without a cluster. It compares what
// would be published with nvidia-smi. It starts a container with the driver's CDI spec, and MPS daemons with clients.
// It prints a report in Markdown and leaves no files except those of -out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// totalTimeout limits the duration of the whole run.
const totalTimeout = 10 * time.Minute

// options are the flags.
type options struct {
	plugin       string
	simulation   string
	driverRoot   string
	simulateDir  string
	hook         string
	runtime      string
	rootfs       string
	out          string
	allowChanges bool
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == cudaClient { // a child of the step with MPS clients
		runCUDAClient(os.Args[2], os.Stdin, os.Stdout)
		return
	}
	var o options
	flag.StringVar(&o.plugin, "plugin", "_output/bin/dra-kubelet-plugin", "the driver's program (make build)")
	flag.StringVar(&o.simulation, "simulation", "_output/bin/dra-kubelet-plugin-sim",
		"the driver's program for simulated GPUs (make build); it replays the recording")
	flag.StringVar(&o.driverRoot, "driver-root", "/", "root of NVIDIA's driver")
	flag.StringVar(&o.simulateDir, "simulate-dir", "", "check the simulated GPUs in this directory instead")
	flag.StringVar(&o.hook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "NVIDIA's CDI hook program")
	flag.StringVar(&o.runtime, "runtime", "runc", "OCI runtime")
	flag.StringVar(&o.rootfs, "rootfs", "", "root file system of the containers; empty: that of this machine, behind "+
		"an overlay")
	flag.StringVar(&o.out, "out", "", "directory for report.md, check.json and recording.yaml (masked); empty: only "+
		"the report, on the standard output")
	flag.BoolVar(&o.allowChanges, "allow-changes", false, "also set a time slice and a compute mode of a GPU "+
		"that has the defaults, and set them back")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	err := run(ctx, o, os.Stdout)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hardware-check:", err)
		os.Exit(1)
	}
}

// errFailed means that an assumption of the driver does not hold; the report says which.
var errFailed = errors.New("something failed: see the report")

// run takes all steps, also after a failed one, and prints the report.
func run(ctx context.Context, o options, out io.Writer) error {
	dir, err := os.MkdirTemp("", "hardware-check-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e := &checker{options: o, dir: dir}
	e.driverCheck(ctx)
	e.recording(ctx)
	e.nvidiaSMI(ctx)
	e.containers(ctx)
	e.daemon(ctx)
	e.settings(ctx)
	if err := e.write(out); err != nil {
		return err
	}
	if e.count(failed) > 0 {
		return errFailed
	}
	return nil
}
