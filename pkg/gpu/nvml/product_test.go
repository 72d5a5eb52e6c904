// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// product is what NVML reports of a product, and what NVIDIA publishes of it. Bus widths (bits) and maximum clocks
// (MHz) were collected from public reports; those of the profiles are in the profiles with where they come from.
type product struct {
	name, brand      string
	cc               gpu.Version
	cores            int
	bus, memory, sm  uint32
	bandwidth, tflop float64 // published: GB/s, dense FP16 tensor TFLOP/s
	slowed           string  // why the formula cannot know the published figure
}

var volta, turing, ampere, ga10x, ada, hopper, blackwell, gb20x = gpu.Version{Major: 7},
	gpu.Version{Major: 7, Minor: 5},
	gpu.Version{Major: 8}, gpu.Version{Major: 8, Minor: 6}, gpu.Version{Major: 8, Minor: 9}, gpu.Version{Major: 9},
	gpu.Version{Major: 10}, gpu.Version{Major: 12}

// products are from Volta to Blackwell. The published figures are NVIDIA's: data sheets of data centre boards and of
// the RTX A6000, architecture whitepapers of the other desktop boards; sparse figures are halved, those of a machine
// divided by its GPUs.
var products = []product{
	{"Tesla V100-SXM2-16GB", "Tesla", volta, 5120, 4096, 877, 1530, 900, 125, ""},
	{"Tesla V100-SXM2-32GB", "Tesla", volta, 5120, 4096, 877, 1530, 900, 125, ""},
	{"Tesla V100-PCIE-16GB", "Tesla", volta, 5120, 4096, 877, 1380, 900, 112, ""},
	{"Tesla V100S-PCIE-32GB", "Tesla", volta, 5120, 4096, 1107, 1597, 1134, 130, ""},
	{"Tesla T4", "Nvidia", turing, 2560, 256, 5001, 1590, 320, 65, ""},
	{"Quadro RTX 8000", "QuadroRTX", turing, 4608, 384, 7001, 2100, 672, 130.5, ""},
	{"NVIDIA GeForce RTX 2080 Ti", "GeForce", turing, 4352, 352, 7000, 2100, 616, 107.6, ""},
	{"NVIDIA A100-SXM4-40GB", "Nvidia", ampere, 6912, 5120, 1215, 1410, 1555, 312, ""},
	{"NVIDIA A100-SXM4-80GB", "Nvidia", ampere, 6912, 5120, 1593, 1410, 2039, 312, ""},
	{"NVIDIA A100-PCIE-40GB", "Nvidia", ampere, 6912, 5120, 1215, 1410, 1555, 312, ""},
	{"NVIDIA A100 80GB PCIe", "Nvidia", ampere, 6912, 5120, 1512, 1410, 1935, 312, ""},
	{"NVIDIA A30", "Nvidia", ampere, 3584, 3072, 1215, 1440, 933, 165, ""},
	{"NVIDIA A40", "Nvidia", ga10x, 10752, 384, 7251, 1740, 696, 149.7, ""},
	{"NVIDIA A10", "Nvidia", ga10x, 9216, 384, 6251, 1695, 600, 125, ""},
	{"NVIDIA A2", "Nvidia", ga10x, 1280, 128, 6251, 1770, 200, 18, ""},
	{"NVIDIA RTX A6000", "NvidiaRTX", ga10x, 10752, 384, 8001, 2100, 768, 309.7 / 2, ""},
	{"NVIDIA GeForce RTX 3090", "GeForce", ga10x, 10496, 384, 9751, 2100, 936, 142, ""},
	{"NVIDIA L4", "Nvidia", ada, 7424, 192, 6251, 2040, 300, 242. / 2, ""},
	{"NVIDIA L40", "Nvidia", ada, 18176, 384, 9001, 2490, 864, 181.05,
		"half the rate of the L40S, which has the same multiprocessors"},
	{"NVIDIA A16", "Nvidia", ga10x, 1280, 128, 6251, 1755, 200, 17.9, ""},
	{"NVIDIA L40S", "Nvidia", ada, 18176, 384, 9001, 2520, 864, 362.05, ""},
	{"NVIDIA L40S-24Q", "NvidiaVWS", ada, 18176, 384, 9001, 2520, 864, 362.05 / 2, "it has the board in turns"},
	{"NVIDIA GeForce RTX 4090", "GeForce", ada, 16384, 384, 10501, 3105, 1008, 330.3, ""},
	{"NVIDIA RTX 6000 Ada Generation", "NvidiaRTX", ada, 18176, 384, 10001, 3105, 960, 364.2, ""},
	{"NVIDIA H100 PCIe", "Nvidia", hopper, 14592, 5120, 1593, 1755, 2000, 1513. / 2, ""},
	{"NVIDIA H100 80GB HBM3", "Nvidia", hopper, 16896, 5120, 2619, 1980, 3350, 1979. / 2, ""},
	{"NVIDIA H100 NVL", "Nvidia", hopper, 16896, 6016, 2619, 1785, 3900, 1671. / 2, ""},
	{"NVIDIA H200", "Nvidia", hopper, 16896, 6016, 3201, 1980, 4800, 1979. / 2, ""},
	{"NVIDIA H20", "Nvidia", hopper, 9984, 6144, 2619, 1980, 4000, 148, "slowed for export"},
	{"NVIDIA GH200 480GB", "Nvidia", hopper, 16896, 6144, 2619, 1980, 4000, 990, ""},
	// of the HGX B200; the DGX B200's is 64000
	{"NVIDIA B200", "Nvidia", blackwell, 18944, 7680, 3996, 1965, 62000. / 8, 36000. / 2 / 8, ""},
	{"NVIDIA GB200", "Nvidia", blackwell, 19456, 7936, 3996, 2062, 576000. / 72, 360000. / 2 / 72, ""},
	{"NVIDIA GeForce RTX 5090", "GeForce", gb20x, 21760, 512, 14001, 3090, 1792, 419, ""},
	{"NVIDIA RTX PRO 6000 Blackwell Server Edition", "Nvidia", gb20x, 24064, 512, 12481, 2430, 1597, 480, ""},
	{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NvidiaRTX", gb20x, 24064, 512, 14001, 3090, 1792, 503.8, ""},
}

func (p product) read() gpu.Product {
	return gpu.Product{Name: p.name, Brand: p.brand, ComputeCapability: p.cc, Multiprocessors: multiprocessors(p.cores,
		p.cc)}
}

func TestKnownProductSpecs(t *testing.T) {
	for _, p := range products {
		t.Run(p.name, func(t *testing.T) {
			within(t, "memory bandwidth", memoryBandwidth(p.bus, p.memory), p.bandwidth, 5)
			within(t, "peak compute", peakCompute(p.read(), 24<<30, p.sm), p.tflop, 1)
			if p.slowed == "" {
				within(t, "peak compute by the formula", derivedPeak(p.read(), p.sm), p.tflop, 15)
			}
		})
	}
}

// within allows half a unit more for figures that are whole numbers.
func within(t *testing.T, what string, got int, published float64, percent float64) {
	t.Helper()
	if diff := math.Abs(float64(got) - published); diff > published*percent/100+0.5 {
		t.Errorf("%s: got %d, want within %v %% of %v", what, got, percent, published)
	}
}

// Stronger in the data sheets is stronger here.
func TestKnownProductsAreInThePublishedOrder(t *testing.T) {
	byOurs := slices.Clone(products)
	slices.SortStableFunc(byOurs, func(a, b product) int {
		return cmp.Or(cmp.Compare(peakCompute(a.read(), 24<<30, a.sm), peakCompute(b.read(), 24<<30, b.sm)),
			cmp.Compare(a.tflop, b.tflop))
	})
	for i := range byOurs[1:] {
		if weaker, stronger := byOurs[i], byOurs[i+1]; weaker.tflop > stronger.tflop {
			t.Errorf("%s (%v TFLOP/s) before %s (%v)", weaker.name, weaker.tflop, stronger.name, stronger.tflop)
		}
	}
}

func TestPeakCompute(t *testing.T) {
	for _, row := range []struct {
		name    string
		product gpu.Product
		memory  uint64 // GiB
		clock   uint32
		want    int
	}{
		{"a data centre board runs at its maximum clock", gpu.Product{ComputeCapability: ampere, Multiprocessors: 108},
			80, 1410, 312},
		{"a board for desktops boosts beyond what is published", gpu.Product{Brand: "GeForce", ComputeCapability: ga10x,
			Multiprocessors: 68}, 10, 2100, 117},
		{"the H20 with more memory is as slow as the other", gpu.Product{Name: "NVIDIA H20-3e",
			ComputeCapability: hopper, Multiprocessors: 78}, 141, 1980, 148},
		{"a vGPU with half of its board's memory", gpu.Product{Name: "NVIDIA L40S-24Q", Multiprocessors: 142}, 24, 2520,
			publishedPeak["NVIDIA L40S"] / 2},
		{"a name that only looks like that of a vGPU", gpu.Product{Name: "NVIDIA A100-X", ComputeCapability: ampere,
			Multiprocessors: 108}, 24, 1410, 312},
		{"no clock, no figure", gpu.Product{ComputeCapability: ampere, Multiprocessors: 108}, 80, 0, 0},
		{"no multiprocessors, no figure", gpu.Product{ComputeCapability: ampere}, 80, 1410, 0},
		{"an architecture that is not known, no figure", gpu.Product{ComputeCapability: gpu.Version{Major: 99},
			Multiprocessors: 108}, 80, 1410, 0},
	} {
		if got := peakCompute(row.product, row.memory<<30, row.clock); got != row.want {
			t.Errorf("%s: got %d, want %d", row.name, got, row.want)
		}
	}
}

func TestKnownMultiprocessors(t *testing.T) {
	found := 0
	for _, p := range products {
		known, ok := knownMultiprocessors[p.name]
		if !ok {
			continue
		}
		found++
		if want := multiprocessors(p.cores, p.cc); known != want {
			t.Errorf("%s: got %d, want %d", p.name, known, want)
		}
	}
	if found != len(knownMultiprocessors) {
		t.Errorf("%d of %d are products that this test knows", found, len(knownMultiprocessors))
	}
}

func TestMultiprocessorsOfUnknownArchitecture(t *testing.T) {
	if got := multiprocessors(10000, gpu.Version{Major: 99}); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
}

// A profile that says of a product something else than this table would make one of them wrong.
func TestProfilesMatchKnownProducts(t *testing.T) {
	known := map[string]string{}
	for _, p := range products {
		known[p.name] = fmt.Sprint(p.brand, p.cc, p.cores, p.bus, p.memory, p.sm)
	}
	for _, profile := range simulator.Profiles() {
		p, err := simulator.BuiltIn(profile)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range p.GPUs {
			name, _ := g.Calls.GetName.Get()
			brand, _ := g.Calls.GetBrand.Get()
			cc, _ := g.Calls.GetCudaComputeCapability.Get()
			cores, _ := g.Calls.GetNumGpuCores.Get()
			bus, _ := g.Calls.GetMemoryBusWidth.Get()
			clocks, _ := g.Calls.GetMaxClockInfo.Get()
			got := fmt.Sprint(brands[int(brand)], gpu.Version(cc), cores, bus, clocks[2], clocks[1])
			if got != known[name] {
				t.Errorf("%s: %s: got %s, want %s", profile, name, got, known[name])
			}
		}
	}
}

// brands are those of the profiles: nvml.h's number and go-nvlib's word.
var brands = map[int]string{2: "Tesla", 5: "GeForce", 10: "NvidiaVWS", 13: "NvidiaRTX", 14: "Nvidia"}
