// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// TestNVIDIAInitAndShutdown repeats both. The process has two Go runtimes.
func TestNVIDIAInitAndShutdown(t *testing.T) {
	simulate(t, builtIn(t, "t4-x2", ""))
	lib := load(t)
	for i := range 1000 {
		succeed(t, fmt.Sprint("init ", i), lib.Init())
		if count, ret := lib.DeviceGetCount(); count != 2 || ret != nvml.SUCCESS {
			t.Fatalf("round %d: got %d GPUs and %v, want 2", i, count, ret)
		}
		succeed(t, fmt.Sprint("shutdown ", i), lib.Shutdown())
	}
	succeed(t, "last shutdown", lib.Shutdown())
	if _, ret := lib.DeviceGetCount(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("after the last shutdown: got %v, want %v", ret, nvml.ERROR_UNINITIALIZED)
	}
	if ret := lib.Shutdown(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("one shutdown too many: got %v, want %v", ret, nvml.ERROR_UNINITIALIZED)
	}
	succeed(t, "init again", lib.Init())
}

// TestNVIDIAConcurrentCalls runs several goroutines that initialize, ask and shut down.
func TestNVIDIAConcurrentCalls(t *testing.T) {
	simulate(t, builtIn(t, "dgx-h100", ""))
	lib := load(t)
	var all sync.WaitGroup
	wrong := make(chan string, 8)
	for i := range cap(wrong) {
		all.Go(func() {
			for range 50 {
				if got := identify(lib, i); got != "" {
					wrong <- got
					return
				}
			}
		})
	}
	all.Wait()
	close(wrong)
	for got := range wrong {
		t.Error(got)
	}
}

// identify asks for a GPU by index and by its UUID. It returns what is wrong with the answers.
func identify(lib nvml.Interface, index int) string {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return ret.Error()
	}
	defer lib.Shutdown()
	d, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return ret.Error()
	}
	uuid, _ := d.GetUUID()
	same, ret := lib.DeviceGetHandleByUUID(uuid)
	if is, _ := same.GetIndex(); ret != nvml.SUCCESS || same != d || is != index {
		return fmt.Sprintf("GPU %d: got %d of UUID %s and %v", index, is, uuid, ret)
	}
	return ""
}

func TestNVIDIAErrors(t *testing.T) {
	simulate(t, builtIn(t, "t4-x2", ""))
	lib := load(t)
	first, ret := lib.DeviceGetHandleByIndex(0)
	succeed(t, "handle", ret)
	for _, row := range []struct {
		name string
		call func() nvml.Return
		want nvml.Return
	}{
		{"an index too large", func() nvml.Return { _, ret := lib.DeviceGetHandleByIndex(2); return ret },
			nvml.ERROR_INVALID_ARGUMENT},
		{"an unknown UUID", func() nvml.Return { _, ret := lib.DeviceGetHandleByUUID("GPU-0"); return ret },
			nvml.ERROR_NOT_FOUND},
		{"an unknown partition", func() nvml.Return { _, ret := lib.DeviceGetHandleByUUID("MIG-0"); return ret },
			nvml.ERROR_NOT_FOUND},
		{"an unknown serial number", func() nvml.Return { _, ret := lib.DeviceGetHandleBySerial("0"); return ret },
			nvml.ERROR_NOT_FOUND},
		{"an unknown PCI address",
			func() nvml.Return { _, ret := lib.DeviceGetHandleByPciBusId("0000:01:00.0"); return ret },
			nvml.ERROR_NOT_FOUND},
		{"no PCI address", func() nvml.Return { _, ret := lib.DeviceGetHandleByPciBusId("here"); return ret },
			nvml.ERROR_INVALID_ARGUMENT},
		{"what no GPU of the profile has", func() nvml.Return { _, _, ret := first.GetMigMode(); return ret },
			nvml.ERROR_NOT_SUPPORTED},
		{"what is not simulated", func() nvml.Return { _, ret := first.GetBAR1MemoryInfo(); return ret },
			nvml.ERROR_NOT_SUPPORTED},
		{"no events", func() nvml.Return {
			set, ret := lib.EventSetCreate()
			succeed(t, "create a set of events", ret)
			succeed(t, "register", first.RegisterEvents(nvml.EventTypeXidCriticalError, set))
			_, ret = set.Wait(10)
			succeed(t, "free the set", set.Free())
			if _, after := set.Wait(10); after != nvml.ERROR_INVALID_ARGUMENT {
				t.Errorf("a set that is free: got %v, want %v", after, nvml.ERROR_INVALID_ARGUMENT)
			}
			return ret
		}, nvml.ERROR_TIMEOUT},
		{"the fabric of a GPU without one", func() nvml.Return { _, ret := first.GetGpuFabricInfoV().V2(); return ret },
			nvml.ERROR_NOT_SUPPORTED},
		{"a temperature", func() nvml.Return {
			degrees, ret := first.GetTemperatureV().V1()
			if degrees.Temperature != 28 {
				t.Errorf("got %d degrees, want 28", degrees.Temperature)
			}
			return ret
		}, nvml.SUCCESS},
	} {
		if got := row.call(); got != row.want {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}

// Without a node, the library answers as NVIDIA's does without its driver.
func TestNVIDIANoNode(t *testing.T) {
	file := library(t)
	t.Setenv("SIMULATE_DIR", t.TempDir())
	t.Setenv("SIMULATE_PROFILE", "")
	lib := nvml.New(nvml.WithLibraryPath(file))
	if ret := lib.Init(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("got %v, want %v", ret, nvml.ERROR_DRIVER_NOT_LOADED)
	}
}

// TestNVIDIAFunctions: every function of NVIDIA's libraries is there.
func TestNVIDIAFunctions(t *testing.T) {
	got := functions(t, library(t))
	for _, branch := range nvidia.Branches(t) {
		for _, name := range functions(t, filepath.Join(branch.Libraries(), "libnvidia-ml.so.1")) {
			if !slices.Contains(got, name) {
				t.Errorf("%s: %s is missing", branch.Suite, name)
			}
		}
	}
	if len(got) < 400 {
		t.Errorf("got %d functions, want those of the header", len(got))
	}
}

// functions returns the functions of NVML that the library has.
func functions(t *testing.T, file string) []string {
	t.Helper()
	f, err := elf.Open(file)
	must(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	must(t, err)
	var out []string
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "nvml") {
			out = append(out, s.Name)
		}
	}
	return out
}
