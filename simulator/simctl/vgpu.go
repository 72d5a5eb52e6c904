// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/simulator"
)

func vgpuCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "vgpu GPU TYPE UUID | vgpu remove UUID",
		Short: "Make a mediated device on a GPU, as an administrator does, or remove it",
		Long: "Make a mediated device on a GPU, as an administrator does, or remove it. This makes a device node, so " +
			"it needs the plugin's container,\nwhich is privileged, or root on the node.",
		Example: "  simctl vgpu 0 A16-4Q 6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10\n" +
			"  simctl vgpu remove 6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10",
		Args: cobra.RangeArgs(2, 3),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := simulator.Attach(*dir)
			if err != nil {
				return err
			}
			sys := filepath.Join(n.DriverRoot(), "sys")
			if args[0] == "remove" && len(args) == 2 {
				return n.WriteSysfs(filepath.Join(sys, "bus/mdev/devices", args[1], "remove"), "1")
			}
			v, err := n.View()
			if err != nil {
				return err
			}
			c, err := v.GPU(args[0])
			if err != nil {
				return err
			}
			var names []string
			for _, t := range c.VGPUTypes() {
				_, name, _ := strings.Cut(t.Name, " ")
				names = append(names, name)
				if name == args[1] && len(args) == 3 {
					return n.WriteSysfs(filepath.Join(sys, "bus/pci/devices", c.PCI.Address.String(),
						"mdev_supported_types", t.ID, "create"), args[2])
				}
			}
			return fmt.Errorf("vGPU type %q and UUID %q of %s: want a UUID, and a type of [%s]", args[1],
				strings.Join(args[2:], ""), c.Name, strings.Join(names, ", "))
		},
	}
}
