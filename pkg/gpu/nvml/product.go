// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"math"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// architecture is what follows from a compute capability: NVML does not say it.
type architecture struct {
	coresPerSM int // CUDA cores per streaming multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities"
	tensorRate int // dense FP16 floating-point operations per multiprocessor and clock, from NVIDIA's architecture whitepapers
}

// architectures is keyed by compute capability. Before Volta there are no tensor cores: the rate is that of packed FP16.
var architectures = map[gpu.Version]architecture{
	{Major: 6, Minor: 0}:  {64, 256},
	{Major: 6, Minor: 1}:  {128, 4},
	{Major: 7, Minor: 0}:  {64, 1024},
	{Major: 7, Minor: 5}:  {64, 1024},
	{Major: 8, Minor: 0}:  {64, 2048},
	{Major: 8, Minor: 6}:  {128, 1024},
	{Major: 8, Minor: 9}:  {128, 1024},
	{Major: 9, Minor: 0}:  {128, 4096},
	{Major: 10, Minor: 0}: {128, 8192},
	{Major: 10, Minor: 3}: {128, 8192},
	{Major: 12, Minor: 0}: {128, 1024},
}

// publishedPeak is the peak dense FP16 tensor throughput in TFLOP/s, per product name as NVML reports it, from NVIDIA's
// datasheets (their sparse figures halved).
var publishedPeak = map[string]int{
	"NVIDIA GB200":               2500,
	"NVIDIA B200":                2250,
	"NVIDIA H200":                989,
	"NVIDIA H100 80GB HBM3":      989,
	"NVIDIA H100 NVL":            835,
	"NVIDIA H100 PCIe":           756,
	"NVIDIA A100-SXM4-80GB":      312,
	"NVIDIA A100-SXM4-40GB":      312,
	"NVIDIA A100 80GB PCIe":      312,
	"NVIDIA A100-PCIE-40GB":      312,
	"NVIDIA A30":                 165,
	"NVIDIA A40":                 150,
	"NVIDIA A10":                 125,
	"NVIDIA L40S":                362,
	"NVIDIA L40":                 181,
	"NVIDIA L4":                  121,
	"Tesla T4":                   65,
	"Tesla V100-SXM2-16GB":       125,
	"Tesla V100-SXM2-32GB":       125,
	"Tesla V100-PCIE-16GB":       112,
	"NVIDIA GeForce RTX 2080 Ti": 108,
}

// multiprocessors is the number of streaming multiprocessors of a GPU with that many CUDA cores, 0 when its architecture is unknown.
func multiprocessors(cores int, cc gpu.Version) int {
	a, ok := architectures[cc]
	if !ok {
		return 0
	}
	return cores / a.coresPerSM
}

// memoryBandwidth is in GB/s: two transfers per clock, over a bus of busWidth bits, at the maximum memory clock in MHz.
func memoryBandwidth(busWidth, clockMHz uint32) int {
	return int(math.Round(float64(busWidth) / 8 * float64(clockMHz) * 2 / 1000))
}

// peakCompute is in TFLOP/s: the published figure of a known product, or else what the multiprocessors could do at the maximum
// clock in MHz. It orders GPUs and promises nothing.
func peakCompute(product string, multiprocessors int, cc gpu.Version, clockMHz uint32) int {
	if peak, ok := publishedPeak[product]; ok {
		return peak
	}
	perSecond := float64(multiprocessors) * float64(architectures[cc].tensorRate) * float64(clockMHz) * 1e6
	return int(math.Round(perSecond / 1e12))
}
