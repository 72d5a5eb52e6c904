// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
)

// TestNVIDIA finds NVIDIA's own files as Debian installs them, where the usual names are links by way of the absolute
// /etc/alternatives, which lead nowhere in a container. NVIDIA's library is loaded and says that there is no driver.
func TestNVIDIA(t *testing.T) {
	packages := os.Getenv("NVIDIA_PACKAGES")
	if packages == "" {
		t.Skip("without NVIDIA's packages: run make test-nvidia")
	}
	for _, suite := range []string{"bookworm", "trixie", "experimental"} {
		t.Run(suite, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			must(t, os.CopyFS(root, os.DirFS(filepath.Join(packages, suite, "root"))))
			const libraries = "usr/lib/x86_64-linux-gnu"
			must(t, os.Symlink("/etc/alternatives/nvidia--libnvidia-ml.so.1", filepath.Join(root, libraries,
				"libnvidia-ml.so.1")))
			must(t, os.Symlink("/etc/alternatives/nvidia--nvidia-smi", filepath.Join(root, "usr/bin/nvidia-smi")))
			driver := nvml.DriverRoot{Host: "/", Here: root}
			library, err := driver.Library()
			must(t, err)
			if want := filepath.Join(root, libraries, "nvidia/current/libnvidia-ml.so.1"); library != want {
				t.Errorf("library: got %s, want %s", library, want)
			}
			program, err := driver.Program("nvidia-smi")
			must(t, err)
			if want := filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"); program != want {
				t.Errorf("program: got %s, want %s", program, want)
			}
			n := nvml.New(nvml.Config{Driver: driver})
			if _, err := n.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "Driver Not Loaded") {
				t.Errorf("got %v, want what NVIDIA's library says without a driver", err)
			}
		})
	}
}
