// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func TestReset(t *testing.T) {
	const refused, first, second = "The following GPUs could not be reset:\n", "  GPU 00000000:3B:00.0: ",
		"  GPU 00000000:AF:00.0: "
	const used = "In use by another client\n"
	kill := func(devices, these string) string {
		return "\n" + devices + " currently being used by one or more other processes (e.g., Fabric Manager, CUDA " +
			"application, graphics application such as an X server, or a monitoring application such as another " +
			"instance of nvidia-smi). Please first kill all processes using " + these + " and all compute " +
			"applications running in the system.\nexit 255\n"
	}
	opened := func(t *testing.T, n *simulator.Node) {
		if ret := n.NVML().Init(); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		t.Cleanup(func() { n.NVML().Shutdown() })
	}
	for _, tt := range []struct {
		name, args string
		before     func(t *testing.T, n *simulator.Node)
		want       string
		sick       int // GPUs that still want a reset, of two
	}{
		{"one", "--gpu-reset -i 1", nil, "GPU 00000000:AF:00.0 was successfully reset.\nexit 0\n", 1},
		{"in short", "-r -i 0000:3b:00.0", nil, "GPU 00000000:3B:00.0 was successfully reset.\nexit 0\n", 1},
		{"all", "-r", nil, "GPU 00000000:3B:00.0 was successfully reset.\nGPU 00000000:AF:00.0 was successfully " +
			"reset.\nexit 0\n", 0},
		{"NVML is open", "-r -i 0", opened, refused + first + used + kill("1 device is", "this device"), 2},
		{"NVML is open, all", "-r", opened, refused + first + used + second + used +
			kill("2 devices are", "these devices"), 2},
		{"a process", "-r", func(t *testing.T, n *simulator.Node) { must(t, n.AddProcess("1", "train", 0)) },
			"GPU 00000000:3B:00.0 was successfully reset.\n" + refused + second + used +
				kill("1 device is", "this device"), 1},
		{"in a container", "container -r -i 0", nil, refused + first + "Insufficient Permissions\nexit 255\n", 2},
		{"a lost GPU", "-r -i 0", func(t *testing.T, n *simulator.Node) { must(t, n.Unplug("0")) },
			refused + first + "GPU is lost\nexit 255\n", 2},
		{"no such GPU", "-r -i 2", nil, "No devices were found\nexit 6\n", 2},
		{"without the driver", "-r -i 0", func(t *testing.T, n *simulator.Node) { must(t, n.Unload()) },
			"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest " +
				"NVIDIA driver is installed and running.\nexit 9\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := laidOut(t, "t4-x2")
			change, err := node.ParseHealth([]string{"recovery-action=reset"})
			must(t, err)
			for _, which := range []string{"0", "1"} {
				must(t, n.ChangeHealth(which, change))
			}
			if tt.before != nil {
				tt.before(t, n)
			}
			root, args := n.DriverRoot(), strings.Fields(tt.args)
			if args[0] == "container" {
				root, args = container(t, n, 0), args[1:]
			}
			if got := run(root, args...); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
			if got := strings.Count(n.String(), "recovery-action=reset"); got != tt.sick {
				t.Errorf("%d GPUs want a reset, want %d:\n%s", got, tt.sick, n)
			}
		})
	}
}
