// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// program returns the path of a program that ./programs pins. Go builds it once.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, ok := paths.Load(name); ok {
		return path.(string)
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-n", name)
	cmd.Dir = "programs"
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	must(t, err)
	path, _ := paths.LoadOrStore(name, strings.TrimSpace(string(output)))
	return path.(string)
}

var paths sync.Map // from the name of a program to its path

// inNode returns a command that runs in a mount namespace of its own, where the shell has run the setup, with the
// library of the node. It needs root, or user namespaces.
func inNode(t *testing.T, setup, program string, args ...string) *exec.Cmd {
	t.Helper()
	flag := "-m"
	if os.Geteuid() != 0 {
		flag = "-rm"
	}
	cmd := exec.CommandContext(t.Context(), "unshare",
		append([]string{flag, "sh", "-ec", setup + "\n" + `exec "$0" "$@"`, program}, args...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library(t)))
	return cmd
}

// sysfs is the setup that shows the PCI devices of the node.
const sysfs = `mount --bind "$SIMULATE_DIR/root/sys" /sys`

// discoverFeatures runs GPU feature discovery once and returns its labels.
func discoverFeatures(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	file, machine := filepath.Join(dir, "labels"), filepath.Join(dir, "machine")
	must(t, os.WriteFile(machine, []byte("simulated\n"), 0o600))
	output, err := inNode(t, sysfs, program(t, "gpu-feature-discovery"), "--oneshot", "--no-timestamp",
		"--mig-strategy=mixed", "--output-file", file, "--machine-type-file", machine).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	content, err := os.ReadFile(file)
	must(t, err)
	labels := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		labels[strings.TrimPrefix(name, "nvidia.com/")] = value
	}
	return labels
}

var notInLabel = regexp.MustCompile(`[^A-Za-z0-9-_. ]`)

// label returns the text as a label's value.
func label(s string) string {
	return strings.Join(strings.Fields(notInLabel.ReplaceAllString(s, "")), "-")
}

// wantLabels returns the labels of a GPU as the driver publishes it.
func wantLabels(gpus []resourceapi.Device, d resourceapi.Device) map[string]string {
	count, capable := 0, false
	for _, other := range gpus {
		if text(other, "productName") == text(d, "productName") {
			count++
		}
		capable = capable || text(other, "migCapable") == "true"
	}
	want := map[string]string{
		"gpu.product":                  label(text(d, "productName")),
		"gpu.count":                    fmt.Sprint(count),
		"gpu.memory":                   mebibytes(d),
		"gpu.family":                   label(strings.ToLower(text(d, "architecture"))),
		"gpu.compute.major":            part(d, "cudaComputeCapability", 0),
		"gpu.compute.minor":            part(d, "cudaComputeCapability", 1),
		"cuda.driver-version.major":    part(d, "driverVersion", 0),
		"cuda.driver-version.minor":    part(d, "driverVersion", 1),
		"cuda.driver-version.revision": part(d, "driverVersion", 2),
		"cuda.runtime-version.major":   part(d, "cudaDriverVersion", 0),
		"cuda.runtime-version.minor":   part(d, "cudaDriverVersion", 1),
		"mig.capable":                  fmt.Sprint(capable),
		"gpu.mode":                     "compute",
		"gpu.machine":                  "simulated",
	}
	if fabric := text(d, "fabricDomain"); fabric != text(d, "uuid") {
		want["gpu.clique"] = fabric
	}
	return want
}

// only returns the labels that are wanted, those that the driver could also publish, and versions without leading
// zeros.
func only(labels, want map[string]string) map[string]string {
	out := map[string]string{}
	for name := range want {
		out[name] = labels[name]
	}
	if fabric, ok := labels["gpu.clique"]; ok {
		out["gpu.clique"] = fabric
	}
	if revision := strings.TrimLeft(labels["cuda.driver-version.revision"], "0"); revision != "" {
		out["cuda.driver-version.revision"] = revision
	}
	return out
}

// TestNVIDIAFeatureDiscovery compares the labels of GPU feature discovery with what the driver publishes. On a node of
// several models, feature discovery has the labels of one of them.
func TestNVIDIAFeatureDiscovery(t *testing.T) {
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			library(t)
			n := simulate(t, builtIn(t, profile, ""))
			gpus := ofType(published(t, n, n.NVML(), gpu.PartitionsDynamic), "gpu")
			labels := discoverFeatures(t)
			model := slices.IndexFunc(gpus, func(d resourceapi.Device) bool {
				return label(text(d, "productName")) == labels["gpu.product"]
			})
			if model < 0 {
				t.Fatalf("got product %q, which no GPU is", labels["gpu.product"])
			}
			want := wantLabels(gpus, gpus[model])
			if diff := cmp.Diff(only(labels, want), want); diff != "" {
				t.Errorf("got - want +\n%s", diff)
			}
		})
	}
}

// engineLabels are the labels of a partition, and the capacities of the driver.
var engineLabels = map[string]resourceapi.QualifiedName{"engines.copy": "copyEngines", "engines.decoder": "decoders",
	"engines.jpeg": "jpegEngines", "engines.ofa": "ofaEngines"}

// TestNVIDIAFeatureDiscoveryMIG creates a partition of each MIG profile and compares its labels with the partition that
// the driver offers.
func TestNVIDIAFeatureDiscoveryMIG(t *testing.T) {
	for _, profile := range []string{"a30-x2", "dgx-a100", "dgx-h100", "hgx-b200", "hgx-h200", "rtxpro6000-x2"} {
		t.Run(profile, func(t *testing.T) {
			library(t)
			n := simulate(t, builtIn(t, profile, ""))
			must(t, n.SwitchMIG("0", 1))
			offered := map[string]resourceapi.Device{}
			for _, d := range ofType(published(t, n, n.NVML(), gpu.PartitionsDynamic), "mig") {
				offered[strings.ReplaceAll(text(d, "profile"), "+", ".")] = d
			}
			d, ret := initialized(t, n.NVML()).DeviceGetHandleByIndex(0)
			succeed(t, "handle", ret)
			var seen []string
			for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
				if _, ret := d.GetGpuInstanceProfileInfo(number); ret != nvml.SUCCESS {
					continue
				}
				partition(t, d, number)
				seen = append(seen, checkPartitionLabels(t, discoverFeatures(t), offered)...)
				destroyAll(t, d)
			}
			for name := range offered {
				if !slices.Contains(seen, name) {
					t.Errorf("feature discovery has no partition %s, which the driver offers", name)
				}
			}
		})
	}
}

// checkPartitionLabels compares the labels of partitions with what the driver offers of the same profile, and returns
// the names of the profiles.
func checkPartitionLabels(t *testing.T, labels map[string]string, offered map[string]resourceapi.Device) []string {
	t.Helper()
	var names []string
	for key := range labels {
		partition, isProduct := strings.CutSuffix(key, ".product")
		name, isPartition := strings.CutPrefix(partition, "mig-")
		if !isProduct || !isPartition {
			continue
		}
		names = append(names, name)
		d, ok := offered[name]
		if !ok {
			t.Errorf("feature discovery has a partition %s, which the driver does not offer", name)
			continue
		}
		want := map[string]string{"product": label(text(d, "productName")) + "-MIG-" + name, "count": "1",
			"memory": mebibytes(d), "multiprocessors": text(d, "multiprocessors")}
		for label, capacity := range engineLabels {
			engines := d.Capacity[capacity].Value
			want[label] = fmt.Sprint(engines.Value())
		}
		got := map[string]string{}
		for suffix := range want {
			got[suffix] = labels["mig-"+name+"."+suffix]
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s: got - want +\n%s", name, diff)
		}
	}
	return names
}
