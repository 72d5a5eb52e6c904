// SPDX-License-Identifier: Apache-2.0

// dra-kubelet-plugin serves the GPUs of one node to Kubernetes.
package main

import (
	"os"

	"github.com/gpudra/gpu-dra-driver/internal/app"
)

func main() { os.Exit(app.Main("dra-kubelet-plugin", &app.NVIDIA{})) }
