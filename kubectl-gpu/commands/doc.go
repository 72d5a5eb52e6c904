// SPDX-License-Identifier: Apache-2.0

// Package commands has the commands of kubectl-gpu, a plugin of kubectl. It reads the cluster with the rights of the
// user.
//
// Command (command.go) builds the command tree; each command has a function of plugin, which has the connection and the
// streams. ls, describe, models and reserve read a cluster.Snapshot, make GPUs of it (gpusOf in gpus.go), and print a
// table, JSON or YAML (output.go). reader and keptDevices drop what a command does not show while slices are read. why
// and fits print answers of package why; defrag plans with package moves. top reads metrics of the plugins' pods
// through the API server. ui serves a page on 127.0.0.1: board.follow (uiboard.go) watches the cluster, board.update
// makes a boardState, and pageServer (uiserver.go) sends changes as server-sent events.
//
// What must hold:
//   - Two commands change something. defrag --apply creates DeviceTaintRules, evicts pods and removes the rules; it
//     plans again before each eviction (mover in defragapply.go). reserve creates DeviceTaintRules, unless with
//     --dry-run.
//   - Rules of defrag are removed at its end, also after Ctrl-C (TestDefragInterrupted). A reservation that cannot be
//     kept as a whole leaves no rules (TestReserveUndone). What remains because removal fails is named in the error.
//   - What the user may not read is told, and what is unknown is not shown as 0: Amount.Used is nil then. Lists of GPUs
//     end with an error if ResourceSlices cannot be read.
//   - What is dropped while slices are read changes no output (TestSlimSlices).
//   - The page is served only for its own host and with the token (TestPageAccess, FuzzPage), and loads only its own
//     files (TestPageFiles).
//   - JSON and YAML are alone on standard output; warnings and progress are on standard error (TestDefragApplyJSON).
//
// Tests run commands against a fake API server and compare the output: TestLs, TestWhy, TestDefragApply, TestFollow.
package commands
