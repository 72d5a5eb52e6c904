// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpudra/gpu-dra-driver/internal/check/host"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// driverToolArgs returns the driver's command for a machine and the flags that select the machine.
func (e *checker) driverToolArgs() []string {
	if e.simulateDir != "" {
		return []string{e.simulation, "--simulate-dir", e.simulateDir}
	}
	return []string{e.plugin, "--driver-root", e.driverRoot, "--driver-root-mount", e.driverRoot}
}

// driverTool runs a subcommand of the driver's command for a machine.
func (e *checker) driverTool(ctx context.Context, machine []string, command ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, machine[0], append(command, machine[1:]...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err != nil && errOut.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.Bytes(), err
}

// driverCheck runs the driver's own check. It ignores findings about the container runtime of Kubernetes.
func (e *checker) driverCheck(ctx context.Context) {
	const what = "dra-kubelet-plugin check"
	text, err := e.driverTool(ctx, e.driverToolArgs(), "check", "--json", "--host-root", "/",
		"--node-name", "hardware-check", "--cdi-hook", e.hook)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.add(failed, what, "%v", err)
		return
	}
	if jsonErr := json.Unmarshal(text, &e.report); jsonErr != nil {
		e.add(failed, what, "%v", errors.Join(err, jsonErr))
		return
	}
	e.json = text
	for _, p := range e.report.Problems {
		switch {
		case p.ID == host.CDIOff.ID, p.ID == host.CDIUnsupported.ID, p.ID == host.CDIDirUnread.ID,
			p.ID == host.RuntimeUnknown.ID:
			e.add(skipped, "container runtime of Kubernetes", "%s", p.What)
		case p.Severity == host.Error:
			e.add(failed, what, "%s: %s", p.ID, p.What)
		default:
			e.add(verified, what, "with a warning: %s: %s", p.ID, p.What)
		}
	}
	e.add(verified, what, "%d GPUs, %d slices", len(e.report.GPUs), len(e.report.Slices))
}

// recording records the machine and simulates the recording, which must publish the same devices.
func (e *checker) recording(ctx context.Context) {
	const what = "dra-kubelet-plugin record"
	masked, err := e.driverTool(ctx, e.driverToolArgs(), "record", "--mask")
	e.record = masked
	var plain []byte
	if err == nil {
		plain, err = e.driverTool(ctx, e.driverToolArgs(), "record")
	}
	var profile simulator.Profile
	if err == nil {
		profile, err = simulator.ParseProfile(plain)
	}
	e.expect(err, what, "%d bytes", len(plain))
	if err != nil {
		return
	}
	same, err := e.replay(ctx, profile)
	switch {
	case errors.Is(err, os.ErrPermission):
		e.add(skipped, "the recording, simulated", "%v", err)
	case err == nil && !same:
		e.add(failed, "the recording, simulated", "it publishes something else")
	default:
		e.expect(err, "the recording, simulated", "it publishes the same slices")
	}
}

// replay reports whether a simulation of the profile publishes the machine's devices.
func (e *checker) replay(ctx context.Context, profile simulator.Profile) (bool, error) {
	dir := filepath.Join(e.dir, "replay")
	n, err := simulator.Open(dir, profile)
	if err != nil {
		return false, err
	}
	if err := n.LayOut(simulator.Programs{}); err != nil {
		return false, err
	}
	var replayed struct {
		Slices json.RawMessage `json:"resourceSlices"`
	}
	var was struct {
		Slices json.RawMessage `json:"resourceSlices"`
	}
	text, err := e.driverTool(ctx, []string{e.simulation, "--simulate-dir", dir}, "check", "--json", "--node-name",
		"hardware-check")
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, err
	}
	err = errors.Join(json.Unmarshal(text, &replayed), json.Unmarshal(e.json, &was))
	return bytes.Equal(replayed.Slices, was.Slices), err
}
