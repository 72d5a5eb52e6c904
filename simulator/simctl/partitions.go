// SPDX-License-Identifier: Apache-2.0

package simctl

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func migCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "mig GPU on|off",
		Short: "Put a GPU into MIG mode, or take it out",
		Long: "Put a GPU into MIG mode, or take it out, as an administrator does, with the reset that older GPUs " +
			"need. A GPU that has processes or\n" +
			"partitions refuses.",
		Example: "  simctl mig gpu-1b-00-0 on",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			mode, ok := map[string]hwprofile.Switch{"on": hwprofile.Enabled, "off": hwprofile.Disabled}[args[1]]
			if !ok {
				return fmt.Errorf("MIG mode %q: want on or off", args[1])
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			return n.SwitchMIG(args[0], mode)
		},
	}
}

func partitionCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "partition GPU create|delete PROFILE[@START]|all",
		Short: "Make or remove partitions of a GPU by hand",
		Long: "Make or remove partitions of a GPU by hand. create makes a GPU instance with a compute instance that " +
			"has all of it, at the memory\n" +
			"slice START or at the first place that is free, and prints it as print does; the GPU must be in MIG " +
			"mode. delete removes the one\n" +
			"at PROFILE@START, or all, whoever uses them: processes on them are gone, too, and no claim is asked.",
		Example: "  simctl partition gpu-1b-00-0 create 1g.10gb@4\n  simctl partition 0 create 3g.40gb\n  simctl " +
			"partition 0 delete all",
		Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			gpu, verb, place := args[0], args[1], args[2]
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			switch verb {
			case "create":
				made, err := n.CreatePartition(gpu, place)
				if err == nil {
					_, err = fmt.Fprintln(c.OutOrStdout(), made)
				}
				return err
			case "delete":
				if place == "all" {
					place = ""
				}
				return n.DeletePartition(gpu, place)
			}
			return fmt.Errorf("partition %q: want create or delete", verb)
		},
	}
}

func processCommand(dir *string) *cobra.Command {
	var memory string
	c := &cobra.Command{
		Use:   "process GPU|PARTITION add|remove NAME",
		Short: "Put a process on a GPU or a partition, or take it away",
		Long: "Put a process on a GPU or a partition, or take it away. There is no such process; NVML says that " +
			"there is. It keeps the MIG mode\n" +
			"from changing and the partition from being destroyed. A partition is given as print shows it, " +
			"gpu-1b-00-0/1g.10gb@4, or by its UUID.",
		Example: "  simctl process gpu-1b-00-0 add dcgm-exporter\n  simctl process 0/1g.10gb@4 add train --memory " +
			"5Gi\n" +
			"  simctl process gpu-1b-00-0 remove dcgm-exporter",
		Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			where, verb, name := args[0], args[1], args[2]
			bytes, err := parseBytes("memory", memory)
			if err != nil {
				return err
			}
			n, err := node.Attach(*dir)
			if err != nil {
				return err
			}
			switch verb {
			case "add":
				return n.AddProcess(where, name, bytes)
			case "remove":
				return n.RemoveProcess(where, name)
			}
			return fmt.Errorf("process %q: want add or remove", verb)
		},
	}
	c.Flags().StringVar(&memory, "memory", "0", "so much memory an added process holds")
	return c
}
