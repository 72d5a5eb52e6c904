// SPDX-License-Identifier: Apache-2.0

// mps-supervisor runs the MPS daemons that the driver requests on its node. It is a separate program, so that daemons
// outlive an update of the driver. It is small, because it runs on every node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps/supervise"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == supervise.WithSharedMemory {
		fail(supervise.ExecWithSharedMemory(os.Args[2:]))
	}
	dir := flag.String("dir", "", "directory in which the driver says which daemons it wants, the same path on the "+
		"host (required)")
	root := flag.String("driver-root", "/driver-root", "root of NVIDIA's driver, as it is seen by this program")
	shm := flag.String("shm", "", "directory of the host that daemons without shared memory of their own have as "+
		"/dev/shm, as it is seen by this program; empty: none")
	flag.Parse()
	if err := run(*dir, *root, *shm); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mps-supervisor:", err)
	os.Exit(1)
}

func run(dir, root, shm string) error {
	if dir == "" || flag.NArg() > 0 {
		return errors.New("usage: mps-supervisor --dir DIRECTORY [--driver-root DIRECTORY] [--shm DIRECTORY]")
	}
	debug.SetGCPercent(25) // it is mostly idle and uses little memory
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	log.Info("supervising MPS daemons", "dir", dir, "driver-root", root)
	return supervise.Run(ctx, supervise.SupervisorConfig{Dir: mps.Dir(dir), DriverRoot: root, SharedMemory: shm,
		Log: log})
}
