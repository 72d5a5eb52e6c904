// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile/record"
)

// recordCommand is the command "record".
func recordCommand(p Platform, flags *pflag.FlagSet) *cobra.Command {
	var (
		output string
		name   string
		mask   bool
	)
	cmd := toolCommand(&cobra.Command{
		Use:   "record",
		Short: "Write what NVML says of this machine, as a profile that can be simulated",
		Long: "Write what NVML says of this machine, errors among it, as a profile that can be simulated: for a bug " +
			"report.\nNothing is changed, and nothing is sent anywhere.",
	}, flags, func(cmd *cobra.Command) error {
		c, err := p.Attach()
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
	cmd.Flags().StringVar(&output, "output", "", "write to this file; empty: to the standard output")
	cmd.Flags().StringVar(&name, "name", "recorded", "name of the profile")
	cmd.Flags().BoolVar(&mask, "mask", false, "hide UUIDs and serial numbers: each is replaced by another, the same "+
		"by the same")
	return cmd
}
