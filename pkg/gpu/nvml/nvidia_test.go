// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// rootVariable makes the test program look at the GPUs with the library below a driver root, then replace that root by
// the one whose name ends in .new, and look again. It prints the errors. It is a process of its own, because a process
// can load one library only.
const rootVariable = "NVML_TEST_DRIVER_ROOT"

func lookTwice(root string) {
	n := nvml.New(nvml.MachineConfig{Driver: driverroot.Root{Host: "/", Here: root}})
	_, err := n.Discover(context.Background())
	fmt.Println(err)
	if err := errors.Join(os.Rename(root, root+".old"), os.Rename(root+".new", root)); err != nil {
		fmt.Println(err)
	}
	_, err = n.Discover(context.Background())
	fmt.Println(err)
}

// TestNVIDIALibrary loads NVIDIA's library from a root as Debian installs it. It says that there is no driver. When the
// root is replaced by one of another driver, the process must end.
func TestNVIDIALibrary(t *testing.T) {
	oldest := nvidia.Branches(t)[0]
	nvidia.Each(t, func(t *testing.T, b nvidia.Branch) {
		root := b.Installed(t)
		must(t, os.Rename(oldest.Installed(t), root+".new"))
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), rootVariable+"="+root)
		output, err := cmd.CombinedOutput()
		must(t, err)
		want := "initialise NVML: Driver Not Loaded\n" + nvml.ErrDriverReplaced.Error() + "\n"
		if diff := cmp.Diff(want, string(output)); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	})
}
