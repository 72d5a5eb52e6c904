// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/internal/check"
)

// smiLog is the compared part of the output of nvidia-smi -q -x.
type smiLog struct {
	Driver string   `xml:"driver_version"`
	CUDA   string   `xml:"cuda_version"`
	GPUs   []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	BusID        string `xml:"id,attr"`
	Name         string `xml:"product_name"`
	Brand        string `xml:"product_brand"`
	Architecture string `xml:"product_architecture"`
	Addressing   string `xml:"addressing_mode"`
	MIG          string `xml:"mig_mode>current_mig"`
	UUID         string `xml:"uuid"`
	Minor        string `xml:"minor_number"`
	Memory       string `xml:"fb_memory_usage>total"`
	capability   string // from --query-gpu: the document does not have it
	index        int
}

// compared maps published attributes to nvidia-smi's value in the published form. "?" means that nvidia-smi does not
// report it.
var compared = map[string]func(smiLog, smiGPU) string{
	"uuid":                  func(_ smiLog, g smiGPU) string { return g.UUID },
	"parentUUID":            func(_ smiLog, g smiGPU) string { return g.UUID },
	"productName":           func(_ smiLog, g smiGPU) string { return g.Name },
	"brand":                 func(_ smiLog, g smiGPU) string { return g.Brand },
	"architecture":          func(_ smiLog, g smiGPU) string { return g.Architecture },
	"driverVersion":         func(l smiLog, _ smiGPU) string { return plainVersion(l.Driver) },
	"cudaDriverVersion":     func(l smiLog, _ smiGPU) string { return plainVersion(l.CUDA) },
	"cudaComputeCapability": func(_ smiLog, g smiGPU) string { return plainVersion(g.capability) },
	"index":                 func(_ smiLog, g smiGPU) string { return strconv.Itoa(g.index) },
	"minor":                 func(_ smiLog, g smiGPU) string { return unsaid(g.Minor) },
	"migCapable": func(_ smiLog, g smiGPU) string {
		return strconv.FormatBool(g.MIG != "N/A" && g.MIG != "")
	},
	"addressingMode": func(_ smiLog, g smiGPU) string { return unsaid(g.Addressing) },
	"resource.kubernetes.io/pciBusID": func(_ smiLog, g smiGPU) string {
		return strings.ToLower(strings.TrimPrefix(g.BusID, "0000"))
	},
	"memory": func(_ smiLog, g smiGPU) string { return unsaid(strings.TrimSuffix(g.Memory, " MiB")) },
}

func unsaid(s string) string {
	if s == "" || s == "N/A" {
		return "?"
	}
	return s
}

// plainVersion returns the version with three numbers and without leading zeros, as it is published.
func plainVersion(s string) string {
	var numbers [3]int
	if s == "" || s == "N/A" {
		return "?"
	}
	for i, part := range strings.SplitN(s, ".", 3) {
		numbers[i], _ = strconv.Atoi(part) //nolint:errcheck // then it differs
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2])
}

// nvidiaSMI compares the devices that would be published with nvidia-smi.
func (e *checker) nvidiaSMI(ctx context.Context) {
	const what = "nvidia-smi -q -x"
	if e.report.Driver.NvidiaSMI == "" {
		e.add(skipped, what, "the driver root has no nvidia-smi")
		return
	}
	log, err := e.askSMI(ctx)
	if err != nil {
		e.add(failed, what, "%v", err)
		return
	}
	differences, same := map[string][]string{}, map[string]int{}
	for _, g := range e.report.GPUs {
		if g.Error != "" {
			e.add(failed, what, "GPU %d is not published: %s", g.Index, g.Error)
			continue
		}
		compare(log, g, differences, same)
	}
	for _, name := range slices.Sorted(maps.Keys(compared)) {
		switch {
		case len(differences[name]) > 0:
			e.add(failed, what+": "+name, "%s", strings.Join(differences[name], "; "))
		case same[name] > 0:
			e.add(verified, what+": "+name, "as published, on %d GPUs", same[name])
		default:
			e.add(skipped, what+": "+name, "nvidia-smi does not say it")
		}
	}
	e.unreported()
}

// unreported lists the published attributes that nvidia-smi does not report.
func (e *checker) unreported() {
	names := map[string]bool{}
	for _, g := range e.report.GPUs {
		for name := range g.Attributes {
			if compared[name] == nil {
				names[name] = true
			}
		}
	}
	if len(names) > 0 {
		e.add(skipped, "other published values", "nvidia-smi -q -x has none of them: %s",
			strings.Join(slices.Sorted(maps.Keys(names)), ", "))
	}
}

// compare records the attributes in which the GPU differs, and counts the equal ones.
func compare(log smiLog, g check.GPU, differences map[string][]string, same map[string]int) {
	at := slices.IndexFunc(log.GPUs, func(s smiGPU) bool { return s.UUID == g.Attributes["uuid"] })
	if at < 0 {
		differences["uuid"] = append(differences["uuid"], fmt.Sprintf("GPU %d: nvidia-smi has no %v", g.Index,
			g.Attributes["uuid"]))
		return
	}
	for name, of := range compared {
		published := fmt.Sprint(g.Attributes[name])
		if name == "memory" {
			published = strconv.FormatUint(g.Memory>>20, 10)
		}
		switch says := of(log, log.GPUs[at]); {
		case says == "?":
		case canonical(published) == canonical(says):
			same[name]++
		default:
			differences[name] = append(differences[name], fmt.Sprintf("GPU %d: %q is published, nvidia-smi says %q",
				g.Index, published, says))
		}
	}
}

// canonical removes the difference between brands of go-nvlib and nvidia-smi: "GeForceRTX" and "GeForce RTX".
func canonical(s string) string { return strings.ToLower(strings.ReplaceAll(s, " ", "")) }

func (e *checker) askSMI(ctx context.Context) (smiLog, error) {
	var log smiLog
	text, err := e.smi(ctx, "-q", "-x")
	if err == nil {
		err = xml.Unmarshal([]byte(text), &log)
	}
	if err != nil {
		return log, err
	}
	for i := range log.GPUs {
		log.GPUs[i].index = i
	}
	capabilities, err := e.smi(ctx, "--query-gpu=uuid,compute_cap", "--format=csv,noheader")
	if err != nil {
		return log, nil //nolint:nilerr // older than R510, which does not report it
	}
	for i := range log.GPUs {
		for line := range strings.Lines(capabilities) {
			if uuid, capability, ok := strings.Cut(strings.TrimSpace(line), ", "); ok && uuid == log.GPUs[i].UUID {
				log.GPUs[i].capability = capability
			}
		}
	}
	return log, nil
}

// smi runs the driver's nvidia-smi.
func (e *checker) smi(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, e.report.Driver.NvidiaSMI, args...)
	if e.simulateDir == "" && filepath.Clean(e.driverRoot) != "/" {
		// Preload only the library: a search path into the root would also find its C library, which may not fit the
		// loader here.
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+e.report.Driver.Library)
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("nvidia-smi %s: %w: %s%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	return string(out), err
}
