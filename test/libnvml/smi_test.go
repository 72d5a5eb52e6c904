// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// nvidiaSMI runs NVIDIA's nvidia-smi of a branch with the library.
func nvidiaSMI(t *testing.T, branch nvidia.Branch, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), branch.SMI(), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library(t)))
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v: %s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// simulatedSMI runs the simulated nvidia-smi.
func simulatedSMI(t *testing.T, n *simulator.Node, args ...string) string {
	t.Helper()
	var out strings.Builder
	if code := smi.Run(smi.Machine{Roots: []string{n.DriverRoot()}}, args, time.Now(), &out, &out); code != 0 {
		t.Fatalf("simulated nvidia-smi %s: exit code %d: %s", strings.Join(args, " "), code, out.String())
	}
	return out.String()
}

// partitionFirst creates partitions of the first GPU if it can have some.
func partitionFirst(t *testing.T, n *simulator.Node) {
	t.Helper()
	if n.SwitchMIG("0", 1) != nil {
		return
	}
	d, ret := initialized(t, n.NVML()).DeviceGetHandleByIndex(0)
	succeed(t, "handle", ret)
	partition(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE)
}

// TestNVIDIASMI compares what nvidia-smi prints with what the driver publishes and with the simulated nvidia-smi.
func TestNVIDIASMI(t *testing.T) {
	library(t)
	if os.Geteuid() != 0 {
		t.Skip("the simulated nvidia-smi looks for device nodes, which only root can make")
	}
	for _, branch := range nvidia.Branches(t) {
		for _, profile := range simulator.Profiles() {
			t.Run(branch.Suite+"/"+profile, func(t *testing.T) {
				n := simulate(t, builtIn(t, profile, branch.Version))
				must(t, n.LayOut(simulator.Programs{}))
				checkPublished(t, n, nvidiaSMI(t, branch, "-q", "-x"))
				partitionFirst(t, n)
				if diff := cmp.Diff(nvidiaSMI(t, branch, "-L"), simulatedSMI(t, n, "-L")); diff != "" {
					t.Errorf("-L: NVIDIA's - simulated +\n%s", diff)
				}
				checkXML(t, nvidiaSMI(t, branch, "-q", "-x"), simulatedSMI(t, n, "-q", "-x"))
			})
		}
	}
}

// checkXML checks that NVIDIA's document has every element of the simulated one, except what these branches read from
// undocumented tables or do not know.
func checkXML(t *testing.T, theirs, simulated string) {
	t.Helper()
	have := elements(t, theirs)
	for _, e := range elements(t, simulated) {
		if !slices.Contains(have, e) && !unlike.MatchString(e) {
			t.Errorf("-q -x: NVIDIA's has no %s", e)
		}
	}
}

var unlike = regexp.MustCompile(`/(timestamp|addressing_mode) |/product_architecture Blackwell$`)

// elements returns the texts of the document, each after the path to it.
func elements(t *testing.T, document string) []string {
	t.Helper()
	var out, path []string
	d := xml.NewDecoder(strings.NewReader(document))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			name := e.Name.Local
			for _, a := range e.Attr {
				name += "[" + a.Value + "]"
			}
			path = append(path, name)
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			if text := strings.TrimSpace(string(e)); text != "" {
				out = append(out, strings.Join(path, "/")+" "+text)
			}
		}
	}
}

// smiLog is what nvidia-smi prints of what the driver publishes.
type smiLog struct {
	Driver string   `xml:"driver_version"`
	CUDA   string   `xml:"cuda_version"`
	GPUs   []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	Product      string `xml:"product_name"`
	Architecture string `xml:"product_architecture"`
	UUID         string `xml:"uuid"`
	Minor        string `xml:"minor_number"`
	Bus          string `xml:"pci>pci_bus_id"`
	Memory       string `xml:"fb_memory_usage>total"`
	Cluster      string `xml:"fabric>clusterUuid"` // not in the oldest of the branches
	Clique       string `xml:"fabric>cliqueId"`
}

// noCluster is the cluster UUID of a GPU that is in no fabric of several nodes.
var noCluster = regexp.MustCompile(`^(N/A|[0-]*)$`)

var leadingZeros = regexp.MustCompile(`\.0+([0-9])`)

// checkPublished compares the document with the devices that the driver publishes.
func checkPublished(t *testing.T, n *simulator.Node, document string) {
	t.Helper()
	var got, want smiLog
	must(t, xml.Unmarshal([]byte(document), &got))
	got.Driver = leadingZeros.ReplaceAllString(got.Driver, ".$1")
	for _, d := range ofType(published(t, n, n.NVML(), gpu.PartitionsDynamic), "gpu") {
		// Only two parts of the versions are always there.
		want.Driver = strings.TrimSuffix(text(d, "driverVersion"), ".0")
		want.CUDA = strings.TrimSuffix(text(d, "cudaDriverVersion"), ".0")
		want.GPUs = append(want.GPUs, smiGPU{text(d, "productName"), text(d, "architecture"), text(d, "uuid"),
			text(d, "minor"), strings.ToUpper("0000" + text(d, "resource.kubernetes.io/pciBusID")),
			fmt.Sprintf("%s MiB", mebibytes(d)), "", ""})
		if fabric := text(d, "fabricDomain"); fabric != text(d, "uuid") && strings.Contains(document, "<clusterUuid>") {
			last := &want.GPUs[len(want.GPUs)-1]
			last.Cluster, last.Clique, _ = strings.Cut(fabric, ".")
		}
	}
	for i := range got.GPUs {
		if noCluster.MatchString(got.GPUs[i].Cluster) {
			got.GPUs[i].Cluster, got.GPUs[i].Clique = "", ""
		}
		if got.GPUs[i].Architecture == "Unknown" { // these branches are older than Blackwell
			got.GPUs[i].Architecture = "Blackwell"
		}
	}
	byMinor := func(a, b smiGPU) int { return strings.Compare(a.Minor, b.Minor) }
	slices.SortFunc(got.GPUs, byMinor)
	slices.SortFunc(want.GPUs, byMinor)
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("nvidia-smi - published +\n%s", diff)
	}
}

var columns = regexp.MustCompile(`[ =-]{2,}`)

// plain returns a table without the widths of its columns, which differ between branches.
func plain(table string) string { return columns.ReplaceAllString(table, " ") }

// TestNVIDIASMIMIG changes a node with nvidia-smi, and compares its listings with those of the simulated one.
func TestNVIDIASMIMIG(t *testing.T) {
	library(t)
	if os.Geteuid() != 0 {
		t.Skip("the simulated nvidia-smi looks for device nodes, which only root can make")
	}
	for _, branch := range nvidia.Branches(t) {
		t.Run(branch.Suite, func(t *testing.T) {
			n := simulate(t, builtIn(t, "dgx-h100", branch.Version))
			must(t, n.LayOut(simulator.Programs{}))
			nvidiaSMI(t, branch, "-i", "0", "-mig", "1")
			nvidiaSMI(t, branch, "-i", "1", "-c", "EXCLUSIVE_PROCESS")
			nvidiaSMI(t, branch, "mig", "-i", "0", "-cgi", "19,14", "-C")
			for _, want := range []string{"gpu-1b-00-0/2g.20gb@2 gi=4 ci=0\n", "gpu-1b-00-0/1g.10gb@0 gi=7 ci=0\n",
				"mode=Exclusive_Process\n"} {
				if !strings.Contains(n.String(), want) {
					t.Errorf("got a node without %s:\n%s", want, n)
				}
			}
			got, want := plain(nvidiaSMI(t, branch, "mig", "-lci")), "| 0 4 MIG 2g.20gb 1 "
			if !strings.Contains(got, want) {
				t.Errorf("mig -lci: got\n%s\nwant the line %s", got, want)
			}
			for _, list := range []string{"-lgip", "-lgipp", "-lgi"} {
				theirs := plain(nvidiaSMI(t, branch, "mig", "-i", "0", list))
				if diff := cmp.Diff(theirs, plain(simulatedSMI(t, n, "mig", "-i", "0", list))); diff != "" {
					t.Errorf("mig %s: NVIDIA's - simulated +\n%s", list, diff)
				}
			}
			nvidiaSMI(t, branch, "mig", "-i", "0", "-dci")
			nvidiaSMI(t, branch, "mig", "-i", "0", "-dgi")
			if got := n.String(); strings.Contains(got, "gi=") {
				t.Errorf("after destroying all, got\n%s", got)
			}
		})
	}
}
