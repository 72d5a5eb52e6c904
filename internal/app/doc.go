// SPDX-License-Identifier: Apache-2.0

// Package app is the program of a node: its command line and the wiring of its packages. The driver and the simulation
// are this program with different platforms.
//
// Main runs the Command of a Platform, which opens the Machine: NVIDIA for GPUs, the simulator's for simulated ones.
// The options are the flags; run turns them into values, connects plugin.Plugin with them, and ends when it does.
// The commands check, record and health are for people, and share flags with the plugin. installHooks copies the
// programs that container runtimes start to a directory of the host.
//
// What must hold:
//   - Every flag can be given as a variable, and the command line wins (TestFlagsFromTheEnvironment).
//   - A wrong flag is refused with the flag, the value and what is accepted (TestWrongFlags).
//   - Exit codes tell an unhealthy machine and a wrong command apart (TestExitCodes).
//   - The hooks can be run by each container runtime, also for pods with hostUsers: false, or the log says why not
//     (TestInstallHooks, TestHooksElsewhere, TestHooksInAUserNamespace).
package app
