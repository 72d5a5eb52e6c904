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

	"github.com/gpudra/gpu-dra-driver/internal/doctor/host"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
)

// machine are the flags that say which machine is meant.
func (e *examiner) machine() []string {
	if e.simulateDir != "" {
		return []string{"--simulate-dir", e.simulateDir}
	}
	return []string{"--driver-root", e.driverRoot, "--driver-root-mount", e.driverRoot}
}

// ask runs a command of the driver's program.
func (e *examiner) ask(ctx context.Context, machine []string, command ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, e.plugin, append(command, machine...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err != nil && errOut.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.Bytes(), err
}

// doctor runs the driver's own check. What it finds of the container runtime of Kubernetes does not matter here.
func (e *examiner) doctor(ctx context.Context) {
	const what = "dra-kubelet-plugin check"
	text, err := e.ask(ctx, e.machine(), "check", "--json", "--host-root", "/", "--node-name", "hardware-check", "--cdi-hook", e.hook)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.say(failed, what, "%v", err)
		return
	}
	if jsonErr := json.Unmarshal(text, &e.report); jsonErr != nil {
		e.say(failed, what, "%v", errors.Join(err, jsonErr))
		return
	}
	e.json = text
	for _, p := range e.report.Problems {
		switch {
		case p.ID == host.CDIOff.ID, p.ID == host.CDIUnsupported.ID, p.ID == host.CDIDirUnread.ID, p.ID == host.RuntimeUnknown.ID:
			e.say(skipped, "container runtime of Kubernetes", "%s", p.What)
		case p.Severity == host.Error:
			e.say(failed, what, "%s: %s", p.ID, p.What)
		default:
			e.say(verified, what, "with a warning: %s: %s", p.ID, p.What)
		}
	}
	e.say(verified, what, "%d GPUs, %d slices", len(e.report.GPUs), len(e.report.Slices))
}

// recording records the machine, and simulates what was recorded: it must publish the same.
func (e *examiner) recording(ctx context.Context) {
	const what = "dra-kubelet-plugin record"
	masked, err := e.ask(ctx, e.machine(), "record", "--mask")
	e.record = masked
	var plain []byte
	if err == nil {
		plain, err = e.ask(ctx, e.machine(), "record")
	}
	var profile sim.Profile
	if err == nil {
		profile, err = sim.ParseProfile(plain)
	}
	e.expect(err, what, "%d bytes", len(plain))
	if err != nil {
		return
	}
	same, err := e.replay(ctx, profile)
	switch {
	case errors.Is(err, os.ErrPermission):
		e.say(skipped, "the recording, simulated", "%v", err)
	case err == nil && !same:
		e.say(failed, "the recording, simulated", "it publishes something else")
	default:
		e.expect(err, "the recording, simulated", "it publishes the same slices")
	}
}

// replay says whether a simulation of the profile publishes what the machine does.
func (e *examiner) replay(ctx context.Context, profile sim.Profile) (bool, error) {
	dir := filepath.Join(e.dir, "replay")
	n, err := sim.Open(dir, profile)
	if err != nil {
		return false, err
	}
	if err := n.LayOut(sim.Programs{}); err != nil {
		return false, err
	}
	var replayed struct {
		Slices json.RawMessage `json:"resourceSlices"`
	}
	var was struct {
		Slices json.RawMessage `json:"resourceSlices"`
	}
	text, err := e.ask(ctx, []string{"--simulate-dir", dir}, "check", "--json", "--node-name", "hardware-check")
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, err
	}
	err = errors.Join(json.Unmarshal(text, &replayed), json.Unmarshal(e.json, &was))
	return bytes.Equal(replayed.Slices, was.Slices), err
}
