// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a Kubernetes cluster of several nodes on one machine, without Docker.
package main

import (
	"os"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
