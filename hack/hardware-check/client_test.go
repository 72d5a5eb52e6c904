// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// fakeCUDA is a CUDA library whose GPU has the memory of the MPS limit, and whose context takes some of it.
const fakeCUDA = `
#include <stdlib.h>
#include <string.h>
static size_t left;
int cuInit(unsigned int flags) { return getenv("CUDA_MPS_PIPE_DIRECTORY") ? 0 : 100; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuCtxCreate_v2(void **context, unsigned int flags, int device) {
	const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	if (strncmp(limit, "0=", 2)) return 1;
	left = (strtoull(limit + 2, 0, 10) << 20) - (300 << 20);
	return 0;
}
int cuMemAlloc_v2(unsigned long long *at, size_t size) {
	if (size > left FAULT) return 2;
	left -= size;
	return 0;
}
`

// cudaLibrary compiles the library into a directory that every user can read, and returns its path.
func cudaLibrary(t *testing.T, fault string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "libcuda-*")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	source, library := filepath.Join(dir, "cuda.c"), filepath.Join(dir, "libcuda.so.1")
	must(t, os.WriteFile(source, []byte(strings.ReplaceAll(fakeCUDA, "FAULT", fault)), 0o600))
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return library
}

func TestClientsOfARealDaemon(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("clients of different users need root")
	}
	for _, tt := range []struct{ name, fault, want string }{
		{"limited", "", "verified: users 0 and 65534: each got 512 MiB of its limit of 2048 MiB, and nothing above " +
			"it; verified: it keeps its limit: docs/use/sharing.md is stricter than this driver"},
		{"not limited", "&& 0", "FAILED: client of user 0: 512 MiB above its limit of 2048 MiB: got no error, " +
			"want CUDA_ERROR_OUT_OF_MEMORY"},
		{"no memory", "|| 1", "FAILED: client of user 0: CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			library := cudaLibrary(t, tt.fault)
			e := &checker{dir: t.TempDir()}
			e.report.Driver.Library = filepath.Join(filepath.Dir(library), "libnvidia-ml.so.1")
			e.clients(t.Context(), control{pipe: t.TempDir()}, check.GPU{Memory: 16 << 30},
				e.clientUsers(mps.DaemonState{}))
			var got []string
			for _, l := range e.lines {
				got = append(got, string(l.result)+": "+l.detail)
			}
			if got := strings.Join(got, "; "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestACUDALibraryThatCannotBeUsed(t *testing.T) {
	none := filepath.Join(t.TempDir(), "libcuda.so.1")
	if _, err := startCUDA(t.Context(), none, "pipe", "0=1M", os.Getuid()); err == nil ||
		!strings.Contains(err.Error(), "load "+none) {
		t.Errorf("got %v", err)
	}
	e := &checker{}
	e.report.Driver.Library = none
	e.clients(t.Context(), control{}, check.GPU{}, []int{0, 0})
	if len(e.lines) != 1 || e.lines[0].result != skipped || !strings.HasPrefix(e.lines[0].detail, "no CUDA library: ") {
		t.Errorf("got %+v", e.lines)
	}
}

// tries is what readBack prints about commands that the daemon has lost.
var tries = regexp.MustCompile(` \(\d+ tries\)`)

// TestNVIDIA takes the steps with MPS on NVIDIA's own programs of several driver branches. Without a GPU a server ends
// at once, and the CUDA library has no device.
func TestNVIDIA(t *testing.T) {
	for _, branch := range nvidia.Branches(t) {
		t.Run(branch.Suite, func(t *testing.T) {
			multiUser := "the control program does not know -multiuser-server"
			if branch.MultiUser {
				multiUser = "it was started with -multiuser-server"
			}
			driver := check.Driver{MPSControl: branch.MPSControl(),
				Library: filepath.Join(branch.Libraries(), "libnvidia-ml.so.1")}
			readBack := `limits of MPS, read back: set and printed: 30: "30.0", 50: "50.0", 100: "100.0", 512M: "512M", ` +
				`3000M: "2G", 5120M: "5G", 1048576M: "1024G"`
			for _, tt := range []struct {
				name string
				gpus []check.GPU
				want []string
			}{
				{"no GPU", nil, []string{"skipped: " + daemonStep + ": there is no GPU",
					"verified: " + multiUserStep + ": " + multiUser,
					"skipped: " + serverStep + ": there is no GPU",
					"skipped: " + clientsStep + ": there is no GPU", "verified: " + readBack}},
				{"a GPU that is not there", []check.GPU{{Name: "gpu-0", MPSLimits: true, Memory: 16 << 30,
					Attributes: map[string]any{"uuid": "GPU-1"}}}, []string{"verified: " + daemonStep + ": started",
					"verified: " + multiUserStep + ": " + multiUser,
					"FAILED: " + serverStep + ": get_server_list: ",
					"FAILED: " + clientsStep + ": client of user 0: cuInit: CUDA error ", "verified: " + readBack}},
			} {
				t.Run(tt.name, func(t *testing.T) {
					e := &checker{dir: t.TempDir(), options: options{driverRoot: branch.Root},
						report: check.Report{Driver: driver, GPUs: tt.gpus}}
					e.daemon(t.Context())
					for i, l := range e.lines {
						got := tries.ReplaceAllString(string(l.result)+": "+l.what+": "+l.detail, "")
						if i >= len(tt.want) || !strings.HasPrefix(got, tt.want[i]) {
							t.Errorf("line %d: %s", i, got)
						}
					}
					if len(e.lines) != len(tt.want) {
						t.Errorf("got %d lines, want %d", len(e.lines), len(tt.want))
					}
				})
			}
		})
	}
}

func TestAnswersOfAClient(t *testing.T) {
	var out strings.Builder
	runCUDAClient(filepath.Join(t.TempDir(), "none"), strings.NewReader("1\n"), &out)
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "load ") {
		t.Errorf("got %q", got)
	}
	if !errors.Is(cudaError("cuMemAlloc", cudaOutOfMemory), errOutOfMemory) || cudaError("cuInit", 0) != nil {
		t.Error("errors of CUDA")
	}
}
