// SPDX-License-Identifier: Apache-2.0

// kubectl-gpu is a plugin of kubectl that shows the GPUs of a cluster, and moves pods to free some.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // as kubectl logs in

	"github.com/gpudra/gpu-dra-driver/kubectl-gpu/commands"
)

// version is set when it is built: see the Makefile and deployments/container.
var version = "unknown"

// completion is the name under which kubectl calls the program to complete a command line.
const completion = "kubectl_complete-gpu"

func main() { os.Exit(run()) }

// run returns the exit status.
func run() int {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	cmd := commands.Command(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		version)
	if filepath.Base(os.Args[0]) == completion {
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, os.Args[1:]...))
	}
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}
