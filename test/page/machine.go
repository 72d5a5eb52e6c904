// SPDX-License-Identifier: Apache-2.0

package page

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

// Machine is Made, and describes this machine and the versions, in a sentence.
func Machine(ctx context.Context, file, kubernetes string) string {
	return fmt.Sprintf("%s: %d cores (%s), %s, %s, Linux %s, Go %s, Kubernetes %s.", Made(ctx, file),
		runtime.NumCPU(), processor(), installedMemory(), distribution(), kernel(),
		strings.TrimPrefix(runtime.Version(), "go"), kubernetes)
}

// Made describes today and the commit. Changes of the file, in which it is inserted, do not count as changes of the
// commit. What the machine decides needs Machine.
func Made(ctx context.Context, file string) string {
	return fmt.Sprintf("Measured on %s at commit %s", time.Now().UTC().Format(time.DateOnly), commit(ctx, file))
}

func commit(ctx context.Context, file string) string {
	id, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	text := strings.TrimSpace(string(id))
	// The results themselves do not count as a change.
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--", ":/",
		":!"+file).Output()
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
