// SPDX-License-Identifier: Apache-2.0

// dra-kubelet-plugin-sim is dra-kubelet-plugin with simulated GPUs instead of NVIDIA's driver, plus the command simctl,
// which changes them.
package main

import (
	"os"

	"github.com/gpudra/gpu-dra-driver/internal/app"
	"github.com/gpudra/gpu-dra-driver/simulator/simctl"
)

func main() { os.Exit(app.Main("dra-kubelet-plugin-sim", &simulation{}, simctl.Command())) }
