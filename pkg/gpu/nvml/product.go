// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"math"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// architecture has properties of a compute capability that NVML does not report.
type architecture struct {
	coresPerSM int // CUDA cores per streaming multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities"
	// dense FP16 floating-point operations per multiprocessor and clock, from NVIDIA's architecture whitepapers
	tensorRate int
	// tensorClock is the clock of the published peaks in percent of the maximum clock that NVML reports, on boards for
	// data centres. On Hopper tensor cores have one of their own: 1830 of 1980 MHz (SXM), 1620 of 1755 MHz (PCIe); H100
	// whitepaper.
	tensorClock int
}

// architectures is keyed by compute capability. Before Volta there are no tensor cores: the rate is that of packed
// FP16.
var architectures = map[gpu.Version]architecture{
	{Major: 6, Minor: 0}:  {64, 256, 100},
	{Major: 6, Minor: 1}:  {128, 4, 100},
	{Major: 7, Minor: 0}:  {64, 1024, 100},
	{Major: 7, Minor: 5}:  {64, 1024, 100},
	{Major: 8, Minor: 0}:  {64, 2048, 100},
	{Major: 8, Minor: 6}:  {128, 1024, 100},
	{Major: 8, Minor: 9}:  {128, 1024, 100},
	{Major: 9, Minor: 0}:  {128, 4096, 92},
	{Major: 10, Minor: 0}: {128, 8192, 100},
	{Major: 10, Minor: 3}: {128, 8192, 100},
	{Major: 12, Minor: 0}: {128, 1024, 100},
	{Major: 12, Minor: 1}: {128, 1024, 100},
}

// desktopClock is the published boost clock of a board for desktops in percent of the maximum clock that NVML reports,
// which such a board reaches for moments only: 1545 of 2100 MHz on the RTX 2080 Ti, 1695 of 2100 on the RTX 3090, 1800
// of 2100 on the RTX A6000, 2520 of 3105 on the RTX 4090, 2407 of 3090 on the RTX 5090.
const desktopClock = 80

// desktopBrands are the brands, as go-nvlib writes them, of boards for desktops.
var desktopBrands = map[string]bool{
	"GeForce": true, "GeForceRTX": true, "Titan": true, "TitanRTX": true, "Quadro": true, "QuadroRTX": true,
	"NvidiaRTX": true,
}

// publishedPeak is the peak dense FP16 tensor throughput in TFLOP/s, by product name as NVML reports it. A published
// sparse value is halved, and one for a board or a rack is divided by its GPUs. For GeForce and Titan it is the value
// with FP16 accumulation; with FP32 accumulation these reach half of it, the others the same.
var publishedPeak = map[string]int{
	"NVIDIA GB300":        2500, // GB300 NVL72 data sheet: 360 PFLOP/s sparse, 72 GPUs
	"NVIDIA B300 SXM6 AC": 2250, // HGX B300 data sheet: 36 PFLOP/s sparse, 8 GPUs
	"NVIDIA GB200":        2500, // GB200 NVL72 data sheet: 360 PFLOP/s sparse, 72 GPUs
	"NVIDIA B200":         2250, // HGX B200 data sheet: 36 PFLOP/s sparse, 8 GPUs
	"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 504, // RTX Blackwell PRO whitepaper: 503.8
	// its data sheet: 120 TFLOP/s FP32, of which tensor cores do four times as many
	"NVIDIA RTX PRO 6000 Blackwell Server Edition": 480,
	"NVIDIA GeForce RTX 5090":                      419, // RTX Blackwell whitepaper
	"NVIDIA GH200 480GB":                           990, // GH200 data sheet: 990
	"NVIDIA H200":                                  989, // H200 data sheet: 1979 sparse
	"NVIDIA H200 NVL":                              835, // H200 data sheet: 1671 sparse
	"NVIDIA H100 80GB HBM3":                        989, // H100 data sheet: 1979 sparse
	"NVIDIA H100 NVL":                              835, // H100 data sheet: 1671 sparse
	"NVIDIA H100 PCIe":                             756, // H100 PCIe data sheet: 1513 sparse
	"NVIDIA H20":                                   148, // H20 data sheet; far less than its multiprocessors could do
	"NVIDIA H20-3e":                                148, // the H20 with 141 GB
	"NVIDIA L40S":                                  362, // L40S data sheet: 362.05
	// L40 data sheet: 181.05; half of what its multiprocessors could do
	"NVIDIA L40":                     181,
	"NVIDIA L20":                     120, // L20 data sheet: 119.5; half, as the L40
	"NVIDIA L4":                      121, // L4 data sheet: 242 sparse
	"NVIDIA RTX 6000 Ada Generation": 364, // Ada whitepaper for professionals: 364.2
	"NVIDIA GeForce RTX 4090":        330, // Ada whitepaper: 330.3
	"NVIDIA A100-SXM4-80GB":          312, // A100 data sheet
	"NVIDIA A100-SXM4-40GB":          312, // A100 data sheet
	"NVIDIA A100 80GB PCIe":          312, // A100 data sheet
	"NVIDIA A100-PCIE-40GB":          312, // A100 data sheet
	"NVIDIA A30":                     165, // A30 data sheet
	"NVIDIA A40":                     150, // A40 data sheet: 149.7
	"NVIDIA A10":                     125, // A10 data sheet
	"NVIDIA A10G":                    70,  // A10G data sheet; about half of the A10's
	"NVIDIA A16":                     18,  // A16 data sheet: 4x 17.9
	"NVIDIA A2":                      18,  // A2 data sheet
	"NVIDIA RTX A6000":               155, // RTX A6000 data sheet: 309.7 sparse
	"NVIDIA GeForce RTX 3090":        142, // GA102 whitepaper
	"Tesla T4":                       65,  // T4 data sheet
	"Quadro RTX 8000":                131, // Turing whitepaper: 130.5
	"Quadro RTX 6000":                131, // Turing whitepaper: 130.5
	"NVIDIA GeForce RTX 2080 Ti":     108, // Turing whitepaper: 107.6, the reference board
	"Tesla V100-SXM2-16GB":           125, // V100 data sheet
	"Tesla V100-SXM2-32GB":           125, // V100 data sheet
	"Tesla V100-PCIE-16GB":           112, // V100 data sheet
	"Tesla V100-PCIE-32GB":           112, // V100 data sheet
	"Tesla V100S-PCIE-32GB":          130, // V100 data sheet
}

// multiprocessors returns the number of streaming multiprocessors of a GPU with that many CUDA cores, 0 if its
// architecture is unknown.
func multiprocessors(cores int, cc gpu.Version) int {
	a, ok := architectures[cc]
	if !ok {
		return 0
	}
	return cores / a.coresPerSM
}

// memoryBandwidth returns GB/s: two transfers per clock over a bus of busWidth bits, at the maximum memory clock in
// MHz.
func memoryBandwidth(busWidth, clockMHz uint32) int {
	return int(math.Round(float64(busWidth) / 8 * float64(clockMHz) * 2 / 1000))
}

// boardMemory is the memory in GiB of boards that vGPUs are made of. In a guest a vGPU has all multiprocessors of its
// board, in turns with the others, and a name such as NVIDIA L40S-24Q.
var boardMemory = map[string]int{"NVIDIA L40S": 48, "NVIDIA L40": 48, "NVIDIA L4": 24, "NVIDIA A40": 48,
	"NVIDIA A16": 16, "NVIDIA A10": 24, "Tesla T4": 16, "GRID T4": 16}

// peakCompute returns TFLOP/s: the published value of a known product, or else one derived from NVML's data and the
// maximum clock in MHz. A vGPU has the part of it that it has of the board's memory. It is for sorting GPUs and no
// guarantee.
func peakCompute(p gpu.Product, memory uint64, clockMHz uint32) int {
	if peak, ok := publishedPeak[p.Name]; ok {
		return peak
	}
	board := p.Name[:max(0, strings.LastIndexByte(p.Name, '-'))]
	peak := cmp.Or(publishedPeak[board], derivedPeak(p, clockMHz))
	if all := boardMemory[board]; all > 0 {
		return peak * min(all, int(memory>>30)) / all
	}
	return peak
}

// derivedPeak returns TFLOP/s of all multiprocessors at the clock of NVIDIA's published peaks. A product that NVIDIA
// has slowed down needs an entry in publishedPeak, because NVML does not report that.
func derivedPeak(p gpu.Product, clockMHz uint32) int {
	a := architectures[p.ComputeCapability]
	percent := a.tensorClock
	if desktopBrands[p.Brand] {
		percent = desktopClock
	}
	perSecond := float64(p.Multiprocessors) * float64(a.tensorRate) * float64(clockMHz) * 1e6 * float64(percent) / 100
	return int(math.Round(perSecond / 1e12))
}

// knownMultiprocessors are the multiprocessors of products with MIG, from NVIDIA's data sheets. In MIG mode NVML
// reports neither them nor the cores (nvml.h: nvmlDeviceGetNumGpuCores), and the largest partition may have fewer.
var knownMultiprocessors = map[string]int{
	"NVIDIA A100-SXM4-40GB": 108, "NVIDIA A100-SXM4-80GB": 108, "NVIDIA A100-PCIE-40GB": 108,
	"NVIDIA A100 80GB PCIe": 108,
	"NVIDIA A30":            56,
	"NVIDIA H100 PCIe":      114, "NVIDIA H100 80GB HBM3": 132, "NVIDIA H100 NVL": 132, "NVIDIA H200": 132,
	"NVIDIA GH200 480GB": 132,
	"NVIDIA B200":        148, "NVIDIA GB200": 152, "NVIDIA RTX PRO 6000 Blackwell Server Edition": 188,
}

// inMIGMode returns the product with its multiprocessors if NVML does not report cores: the known number, or else that
// of the largest profile.
func inMIGMode(d gpu.Device) gpu.Product {
	p := d.Product
	if p.Multiprocessors > 0 {
		return p
	}
	if p.Multiprocessors = knownMultiprocessors[p.Name]; p.Multiprocessors > 0 {
		return p
	}
	for _, profile := range d.MIG.Profiles {
		p.Multiprocessors = max(p.Multiprocessors, profile.Engines.Multiprocessors)
	}
	return p
}
