// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// errorsVariable makes the program of this test print the texts of a library's error codes. A process of its own does,
// because go-nvml can load only one library in a process.
const errorsVariable = "LIBNVML_TEST_ERRORS_OF"

func printErrors(file string) {
	lib := nvml.New(nvml.WithLibraryPath(file))
	_ = lib.Init() // NVIDIA's own finds no driver, and is loaded
	for code := nvml.Return(0); code <= 1000; code++ {
		fmt.Println(int(code), lib.ErrorString(code))
	}
}

func errorsOf(t *testing.T, file string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), errorsVariable+"="+file)
	output, err := cmd.Output()
	must(t, err)
	return string(output)
}

// TestNVIDIAErrorStrings compares the texts of all error codes with those of NVIDIA's newest library here.
func TestNVIDIAErrorStrings(t *testing.T) {
	branches := nvidia.Branches(t)
	theirs := filepath.Join(branches[len(branches)-1].Libraries(), "libnvidia-ml.so.1")
	if got, want := errorsOf(t, library(t)), errorsOf(t, theirs); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
