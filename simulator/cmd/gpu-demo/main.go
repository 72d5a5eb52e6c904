// SPDX-License-Identifier: Apache-2.0

// Command gpu-demo is the workload of the demos: it prints which GPUs its container can use. It has no dependencies, so
// it also serves as a first test on a real cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/gpudra/gpu-dra-driver/simulator/cuda"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

const usage = `gpu-demo prints which GPUs its container can use.

  gpu-demo show [--stay]      nvidia-smi -L and the device nodes of the container; --stay then holds them until SIGTERM
  gpu-demo alloc SIZE [--device=N] [--stay] [--unset-mps] [--unset-limits]
                              ask a simulated GPU for memory such as 5Gi as a CUDA program would: through MPS where the
                              container's variables say so. Prints what was granted, or CUDA's error, whose number is the
                              exit code. --stay holds it until SIGTERM; the others act as if variables were not set
  gpu-demo probe [--stay]     run into the limits within which the container has its simulated GPU, and print them
  gpu-demo policy [--stay]    the time slice of the container's GPUs
  gpu-demo sleep [DURATION]   hold the container's GPUs until SIGTERM, or for a time such as 30s
  gpu-demo open MAJOR MINOR   make a character device with these numbers and open it; prints OK or the errno's name
  gpu-demo find DIR...        the files below each directory, one path a line, with the numbers of a device node
  gpu-demo cat FILE...        what the files say
  gpu-demo rm FILE...         remove files
  gpu-demo post URL BODY      send a request without a credential, and print the status and the answer; with a third
                              argument the body ends after its first byte, and the connection stays open for the rest
  gpu-demo give TEXT          give a file descriptor behind which is the text to each client of a socket in the claim's
                              directory for local IPC, until SIGTERM
  gpu-demo take [--stay]      take that descriptor, and print the text
  gpu-demo engine             stand in for the server of Lupine, which carries GPUs over the network, until SIGTERM
  gpu-demo remote [--stay]    stand in for its client: show in the container of the server; --stay then holds the connection
  gpu-demo nothing DRIVER     be the node's part of a DRA driver that has nothing to prepare, until SIGTERM and its last claim
                              is gone; /tmp/registered is there when the kubelet knows it
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-demo:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode is the number of a CUDA error, otherwise 1.
func exitCode(err error) int {
	var e *cuda.Error
	if errors.As(err, &e) {
		return e.Number()
	}
	return 1
}

// errUsage means that the arguments match none in usage.
var errUsage = fmt.Errorf("unknown arguments\n\n%s", strings.TrimSpace(usage))

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	command, args := args[0], args[1:]
	switch {
	case command == "show":
		return staying(ctx, args, func() error { return show(ctx, hostDevices, out) })
	case command == "probe":
		return staying(ctx, args, func() error { return probe(ctx, smi.Here(), out) })
	case command == "policy":
		return staying(ctx, args, func() error { return policy(ctx, out) })
	case command == "alloc" && len(args) > 0:
		return alloc(ctx, args, smi.Here(), out)
	case command == "sleep" && len(args) <= 1:
		return sleep(ctx, args)
	case command == "open" && len(args) == 2:
		return openNumbers(args[0], args[1], out)
	case command == "find" && len(args) > 0:
		return find(args, out)
	case command == "cat" && len(args) > 0:
		return cat(args, out)
	case command == "rm" && len(args) > 0:
		return remove(args)
	case command == "post" && len(args) == 2:
		return post(ctx, args[0], args[1], strings.NewReader(args[1]), out)
	case command == "post" && len(args) == 3:
		return postSlowly(ctx, args[0], args[1], out)
	case command == "give" && len(args) == 1:
		return give(ctx, args[0], out)
	case command == "take":
		return staying(ctx, args, func() error { return take(ctx, out) })
	case command == "engine" && len(args) == 0:
		return engine(ctx)
	case command == "remote":
		return showRemote(ctx, args, out)
	case command == "nothing" && len(args) == 1:
		return newNothing(kubeletDir, args[0], registeredFile).serve(ctx, kubeletDir)
	case command == "help" || command == "--help" || command == "-h":
		_, err := io.WriteString(out, usage)
		return err
	}
	return errUsage
}

// staying runs a command, then holds the container's GPUs if the arguments request it.
func staying(ctx context.Context, args []string, do func() error) error {
	stay := slices.Equal(args, []string{"--stay"})
	if len(args) > 0 && !stay {
		return errUsage
	}
	if err := do(); err != nil || !stay {
		return err
	}
	return sleep(ctx, nil)
}
