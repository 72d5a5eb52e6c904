// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

// localMachine is the machine that check and record look at: this one, or a simulated one.
type localMachine struct {
	driver      nvml.DriverRoot
	simulateDir string
}

func (m *localMachine) addFlags(f *pflag.FlagSet) {
	f.StringVar(&m.driver.Host, "driver-root", "/", "root of NVIDIA's driver on the host")
	f.StringVar(&m.driver.HostDev, "host-dev-mount", "/", "where the host's root is seen by this program as far as /dev goes; the driver's device nodes are looked for there when the driver root has none")
	f.StringVar(&m.driver.Here, "driver-root-mount", "", "where that root is seen by this program (default /driver-root, in the driver's container, and otherwise the root itself)")
	f.StringVar(&m.simulateDir, "simulate-dir", "", "look at the simulated GPUs in this directory instead")
}

// driverRootMount is where the driver's container has the driver root.
const driverRootMount = "/driver-root"

// config is how the driver would look at the machine. Its Library is nil where the driver root has none: then the error says why.
func (m localMachine) config() (nvml.Config, error) {
	if m.simulateDir != "" {
		return m.simulated()
	}
	c := nvml.Config{Sysfs: "/sys", Proc: "/proc", Driver: m.driver}
	if c.Driver.Here == "" {
		c.Driver.Here = c.Driver.Host
		if _, err := os.Stat(driverRootMount); err == nil {
			c.Driver.Here = driverRootMount
		}
	}
	library, err := c.Driver.Library()
	if err != nil {
		return c, err
	}
	c.Library = nvmllib.New(nvmllib.WithLibraryPath(library))
	return c, nil
}

func (m localMachine) simulated() (nvml.Config, error) {
	machine, err := sim.Attach(m.simulateDir)
	if err != nil {
		return nvml.Config{}, err
	}
	root := machine.DriverRoot()
	return nvml.Config{Library: machine.NVML(), Sysfs: filepath.Join(root, "sys"), Proc: machine.Proc(), Driver: nvml.DriverRoot{Host: root, Here: root}}, nil
}

// kernel is the release of the running kernel, "" when it does not say.
func kernel() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// errUsage means that the command line makes no sense.
var errUsage = errors.New("see --help")

// fromPlugin are the flags that the plugin has too, and that are therefore in its container's environment. Others are not taken from
// there: NAME and OUTPUT may mean anything in the shell of whoever looks after a machine.
var fromPlugin = []string{"cdi-dir", "cdi-hook", "driver-name", "driver-root", "driver-root-mount", "host-dev-mount", "node-name", "plugin-dir"}

// shared are those of a command's flags that the plugin has too.
func shared(all *pflag.FlagSet) *pflag.FlagSet {
	out := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range fromPlugin {
		if f := all.Lookup(name); f != nil {
			out.AddFlag(f)
		}
	}
	return out
}

// tool gives a command for people the flags of the plugin's environment, and tells mistakes on its command line from failures.
func tool(cmd *cobra.Command, run func(cmd *cobra.Command) error) *cobra.Command {
	usage := func(err error) error {
		if err == nil {
			return nil
		}
		return errors.Join(err, errUsage)
	}
	cmd.SilenceUsage = true
	cmd.Args = func(cmd *cobra.Command, args []string) error { return usage(cobra.NoArgs(cmd, args)) }
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := fromEnvironment(shared(cmd.Flags())); err != nil {
			return usage(err)
		}
		return run(cmd)
	}
	return cmd
}
