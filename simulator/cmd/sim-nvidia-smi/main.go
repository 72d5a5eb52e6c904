// SPDX-License-Identifier: Apache-2.0

// sim-nvidia-smi is nvidia-smi for simulated GPUs. It is static, so that it runs in any container.
package main

import (
	"os"
	"time"

	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

func main() {
	os.Exit(smi.Run(smi.Here(), os.Args[1:], time.Now(), os.Stdout, os.Stderr))
}
