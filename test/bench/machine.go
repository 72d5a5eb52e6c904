// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// thisMachine describes the machine and the commit of the measurement.
func thisMachine(ctx context.Context, b *bench) string {
	kubernetes := "?"
	if version, err := b.client.Discovery().ServerVersion(); err == nil {
		kubernetes = strings.TrimPrefix(version.GitVersion, "v")
	}
	return fmt.Sprintf("Measured on %s at commit %s: %d cores (%s), %s, %s, Linux %s, %s, Kubernetes %s.",
		time.Now().UTC().Format(time.DateOnly), commit(ctx), runtime.NumCPU(), processor(), installedMemory(),
		distribution(), kernel(), goVersion(), kubernetes)
}

func goVersion() string { return "Go " + strings.TrimPrefix(runtime.Version(), "go") }

func commit(ctx context.Context) string {
	id, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	text := strings.TrimSpace(string(id))
	// The results themselves do not count as a change.
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--", ".",
		":!docs/benchmarks.md").Output()
	if err != nil || len(changed) > 0 {
		text += " with changes"
	}
	return text
}

func processor() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func installedMemory() string {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "unknown memory"
	}
	total := float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	return strconv.FormatFloat(math.Round(total), 'f', 0, 64) + " GiB"
}

func distribution() string {
	data, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return "Linux"
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// busy returns the processor time that the machine has used so far, without idle, iowait and steal.
func busy() (time.Duration, error) {
	const tick = 10 * time.Millisecond // proc(5), USER_HZ
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var total time.Duration
	for i, field := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 7 { // the name, idle, iowait, steal; guests are in user
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}
