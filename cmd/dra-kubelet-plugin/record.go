// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/record"
)

// recordCommand is the command "record".
func recordCommand() *cobra.Command {
	var (
		machine localMachine
		output  string
		name    string
		mask    bool
	)
	cmd := tool(&cobra.Command{
		Use:   "record",
		Short: "Write what NVML says of this machine, as a profile that can be simulated",
		Long: "Write what NVML says of this machine, errors among it, as a profile that can be simulated: for a bug report.\n" +
			"Nothing is changed, and nothing is sent anywhere.",
	}, func(cmd *cobra.Command) error {
		c, err := machine.config()
		if err != nil {
			return err
		}
		r, err := record.Read(record.Machine{Library: c.Library, Sysfs: c.Sysfs, Name: name, Kernel: kernel()})
		if err != nil {
			return err
		}
		if mask {
			r = r.Mask()
		}
		text, err := r.YAML()
		if err != nil {
			return err
		}
		if output != "" {
			return os.WriteFile(output, text, 0o644) //nolint:gosec // it is for others to read
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	})
	machine.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&output, "output", "", "write to this file; empty: to the standard output")
	cmd.Flags().StringVar(&name, "name", "recorded", "name of the profile")
	cmd.Flags().BoolVar(&mask, "mask", false, "hide UUIDs and serial numbers: each is replaced by another, the same by the same")
	return cmd
}
