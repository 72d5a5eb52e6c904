// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
)

// Environment variables that NVIDIA documents.
const (
	PipeVariable    = "CUDA_MPS_PIPE_DIRECTORY"
	LogVariable     = "CUDA_MPS_LOG_DIRECTORY"
	ThreadsVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	MemoryVariable  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

	// DefaultPipe is the default pipe directory of daemon and clients.
	DefaultPipe = "/tmp/nvidia-mps"
)

// limits are the limits of a client. The zero value is no limits.
type limits struct {
	threads float64        // percent of the multiprocessors; 0: all
	memory  map[int]uint64 // bytes by device number; missing: all of it
}

func (l limits) percent() float64 {
	if l.threads == 0 {
		return 100
	}
	return l.threads
}

func (l limits) clone() limits { return limits{l.threads, maps.Clone(l.memory)} }

// lower returns the lower of both limits, one by one. A client that limits a device which is not there has no memory
// limit, as NVIDIA has measured with R615.
func (l limits) lower(other limits, devices int) limits {
	out := l.clone()
	out.threads = min(l.percent(), other.percent())
	for device := range l.memory {
		if device >= devices {
			out.memory = nil
			return out
		}
	}
	for device, bytes := range other.memory {
		if is, ok := out.memory[device]; !ok || bytes < is {
			out.set(device, bytes)
		}
	}
	return out
}

func (l *limits) set(device int, bytes uint64) {
	if l.memory == nil {
		l.memory = map[int]uint64{}
	}
	l.memory[device] = bytes
}

// parseLimits parses limits from the values of the variables, of which either may be empty.
func parseLimits(threads, memory string) (limits, error) {
	var l limits
	var err error
	if threads != "" {
		if l.threads, err = parsePercent(threads); err != nil {
			return l, err
		}
	}
	if memory == "" {
		return l, nil
	}
	for _, item := range strings.Split(memory, ",") {
		device, size, ok := strings.Cut(item, "=")
		number, err := strconv.Atoi(strings.TrimSpace(device))
		if !ok || err != nil || number < 0 {
			return l, fmt.Errorf("memory limit %q: want DEVICE=SIZE, the device by its number", item)
		}
		bytes, err := parseSize(strings.TrimSpace(size))
		if err != nil {
			return l, err
		}
		l.set(number, bytes)
	}
	return l, nil
}

func parsePercent(s string) (float64, error) {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil || !(p > 0 && p <= 100) {
		return 0, fmt.Errorf("active thread percentage %q: want more than 0 and at most 100", s)
	}
	return p, nil
}

// parseSize parses an integer followed by G or M, as NVIDIA documents it.
func parseSize(s string) (uint64, error) {
	shift := 20
	digits, ok := strings.CutSuffix(s, "M")
	if !ok {
		digits, ok = strings.CutSuffix(s, "G")
		shift = 30
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n > math.MaxUint64>>shift {
		return 0, fmt.Errorf("memory limit %q: want an integer followed by G or M", s)
	}
	return n << shift, nil
}

// commandSize parses the size in a command: MiB, or GiB if G follows the number; 0 if there is no number. Anything else
// that follows is ignored.
func commandSize(s string) uint64 {
	rest := strings.TrimLeft(s, "0123456789")
	n, err := strconv.ParseUint(strings.TrimSuffix(s, rest), 10, 32)
	if err != nil {
		return 0
	}
	if strings.HasPrefix(rest, "G") {
		return n << 30
	}
	return n << 20
}

// formatSize returns the size as the real program prints it: in whole GiB from 1 GiB on, without what is left over.
func formatSize(bytes uint64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%dG", bytes>>30)
	}
	return fmt.Sprintf("%dM", bytes>>20)
}
