// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Runs the rows of the idle watching for a moment. It does not check their times.
func TestWatchingCost(t *testing.T) {
	machine, found, err := partitionedMachine(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(len(found.Devices), len(found.Devices)+len(inventory.Defaults(found.Devices))); got != "8 64" {
		t.Errorf("got %s GPUs and devices, want 8 64", got)
	}
	for _, library := range []nvmllib.Interface{nil, waitingLibrary{machine.NVML()}, machine.NVML()} {
		if _, err := watchingTime(t.Context(), machine, library, found, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
	}
}
