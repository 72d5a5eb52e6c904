// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// runReset is nvidia-smi --gpu-reset. The messages and the exit code are from reports of drivers 535 to 580.
func runReset(v *node.View, root string, o options, out, errOut io.Writer) int {
	n, gpus, err := administered(v, root, o.ids)
	if err != nil && !errors.Is(err, errNotFound) {
		return explain(err, out, errOut)
	}
	if len(gpus) == 0 {
		fmt.Fprintln(out, "No devices were found")
		return exitNotFound
	}
	var refused []string
	used := 0
	for _, g := range gpus {
		e := noPermission
		if n != nil {
			e = change(n, g, node.AllCalls, func() error { return n.Reset(g.UUID) })
		}
		switch e {
		case "":
			fmt.Fprintf(out, "GPU %s was successfully reset.\n", busID(g))
			continue
		case hwprofile.InUse:
			used++
		}
		refused = append(refused, fmt.Sprintf("  GPU %s: %s\n", busID(g), refusal(e)))
	}
	if len(refused) == 0 {
		return exitOK
	}
	fmt.Fprintf(out, "The following GPUs could not be reset:\n%s", strings.Join(refused, ""))
	if used > 0 {
		devices, these := "1 device is", "this device"
		if used > 1 {
			devices, these = fmt.Sprintf("%d devices are", used), "these devices"
		}
		fmt.Fprintf(out, "\n%s currently being used by one or more other processes (e.g., Fabric Manager, CUDA "+
			"application, graphics application such as an X server, or a monitoring application such as another "+
			"instance of nvidia-smi). Please first kill all processes using %s and all compute applications running "+
			"in the system.\n", devices, these)
	}
	return exitUnknownError
}
