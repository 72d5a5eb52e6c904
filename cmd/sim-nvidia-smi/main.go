// SPDX-License-Identifier: Apache-2.0

// sim-nvidia-smi is the nvidia-smi of simulated GPUs. It is a static program, so that it runs in any container.
package main

import (
	"os"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/smi"
)

func main() {
	os.Exit(smi.Run(smi.Here(), os.Args[1:], time.Now(), os.Stdout, os.Stderr))
}
