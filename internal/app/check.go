// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/internal/check/host"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// errUnhealthy means that the report contains errors. It is not printed.
var errUnhealthy = errors.New("something keeps pods from GPUs")

// checkCommand is the command "check".
func checkCommand(p Platform, flags *pflag.FlagSet) *cobra.Command {
	var (
		o      = options{}
		root   string
		asJSON bool
	)
	cmd := toolCommand(&cobra.Command{
		Use:   "check",
		Short: "Print what the driver sees on this machine, and what is in its way",
		Long: "Print what the driver sees on this machine, what it would publish, and what is in its way, each with " +
			"its remedy. No cluster is\nneeded, and nothing is changed.\n\n" +
			"Exit code 0: nothing keeps pods from GPUs, though there may be warnings; 1: something does; 2: the " +
			"command line is wrong.",
	}, flags, func(cmd *cobra.Command) error {
		c, err := p.Attach()
		if err != nil && !errors.Is(err, driverroot.ErrNoDriver) {
			return err
		}
		c.ContainersOnly = !o.virtualMachines
		dir := o.directory()
		report := check.Run(check.Target{
			Machine: c, DriverName: o.driverName, NodeName: o.nodeName, CDIDir: o.cdiDir,
			CDIHook: o.cdiHook, PluginDir: dir, HooksDir: o.hooksDir, Writes: []string{dir, "/dev/shm"},
			Host: host.Root(root), Kernel: kernel(), Cgroups: "/sys/fs/cgroup", Writable: host.Writable,
		})
		if err := print(cmd, report, asJSON); err != nil {
			return err
		}
		if !report.Healthy() {
			return errUnhealthy
		}
		return nil
	})
	f := cmd.Flags()
	hostname, _ := os.Hostname() //nolint:errcheck // the flag is empty then
	o.addDirectoryFlags(f)
	o.addVirtualMachines(f)
	f.StringVar(&o.nodeName, "node-name", hostname, "name of this node, as in what would be published")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where container runtimes look for CDI specs")
	f.StringVar(&o.cdiHook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "NVIDIA's CDI hook program")
	f.StringVar(&o.hooksDir, "hooks-dir", "", "where the host has the CDI hook programs; empty: not looked at")
	f.StringVar(&root, "host-root", "", "where the root of the host is seen by this program, / on the host itself; "+
		"empty: its container runtime is not looked at")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON: docs/reference/check.md describes it")
	return cmd
}

func print(cmd *cobra.Command, r check.Report, asJSON bool) error {
	if !asJSON {
		return r.Print(cmd.OutOrStdout())
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
