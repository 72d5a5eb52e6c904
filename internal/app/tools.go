// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// kernel returns the release of the running kernel; "" if it is unknown.
func kernel() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// errUsage means that the command line is invalid.
var errUsage = errors.New("see --help")

// pluginFlags are the flags that the plugin also has, so they are in its container's environment. Other flags are not
// read from the environment: NAME and OUTPUT may mean anything in a user's shell.
var pluginFlags = []string{"cdi-dir", "cdi-hook", "driver-name", "driver-root", "driver-root-mount", "host-dev-mount",
	"node-name", "plugin-dir"}

// shared returns those of a command's flags that the plugin also has.
func shared(all *pflag.FlagSet) *pflag.FlagSet {
	out := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range pluginFlags {
		if f := all.Lookup(name); f != nil {
			out.AddFlag(f)
		}
	}
	return out
}

// toolCommand completes a command for people: it reads flags of the plugin from the environment, and marks usage
// errors.
func toolCommand(cmd *cobra.Command, flags *pflag.FlagSet, run func(cmd *cobra.Command) error) *cobra.Command {
	usage := func(err error) error {
		if err == nil {
			return nil
		}
		return errors.Join(err, errUsage)
	}
	cmd.Flags().AddFlagSet(flags)
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
