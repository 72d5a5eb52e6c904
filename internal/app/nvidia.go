// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"os"
	"path/filepath"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
)

// NVIDIA is the platform of machines with NVIDIA's driver.
type NVIDIA struct {
	driver driverroot.Root // for the plugin
	local  driverroot.Root // for check and record
}

// driverRootMount is where the chart mounts the parent of the driver root in the driver's container; the root itself
// if that is /.
const driverRootMount = "/driver-root"

// Flags returns the flags for the root of NVIDIA's driver. The defaults for check and record suit a shell on the node.
func (n *NVIDIA) Flags() (plugin, tools *pflag.FlagSet) {
	const dev = "where the host's root, for its /dev, is seen by this program; " +
		"the driver's device nodes are looked for there when the driver root has none"
	plugin, tools = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	plugin.StringVar(&n.driver.Host, "driver-root", "/", "root of NVIDIA's driver on the host")
	plugin.StringVar(&n.driver.Here, "driver-root-mount", driverRootMount, "where that root is seen by this program")
	plugin.StringVar(&n.driver.HostDev, "host-dev-mount", "", dev+"; empty: nowhere")
	tools.StringVar(&n.local.Host, "driver-root", "/", "root of NVIDIA's driver on the host")
	tools.StringVar(&n.local.Here, "driver-root-mount", "",
		"where that root is seen by this program (default: below "+driverRootMount+
			", in the driver's container, and otherwise the root itself)")
	tools.StringVar(&n.local.HostDev, "host-dev-mount", "/", dev)
	return plugin, tools
}

// Open returns this machine. NVIDIA's driver may be installed later.
func (n *NVIDIA) Open(context.Context, kubernetes.Interface, string) (Machine, error) {
	return Machine{MachineConfig: nvml.MachineConfig{Sysfs: "/sys", Dev: filepath.Join("/", n.driver.HostDev, "dev"),
		HostDev: true, Proc: "/proc", Driver: n.driver}, SharedMemory: "/dev/shm"}, nil
}

// Attach returns this machine. The error is driverroot.ErrNoDriver.
func (n *NVIDIA) Attach() (nvml.MachineConfig, error) {
	c := nvml.MachineConfig{Sysfs: "/sys", Dev: filepath.Join("/", n.local.HostDev, "dev"), HostDev: true,
		Proc: "/proc", Driver: n.local}
	if c.Driver.Here == "" {
		c.Driver.Here = c.Driver.Host
		if _, err := os.Stat(driverRootMount); err == nil {
			c.Driver.Here = filepath.Join(driverRootMount, filepath.Base(c.Driver.Host))
		}
	}
	library, err := c.Driver.Library()
	if err != nil {
		return c, err
	}
	c.Library = nvmllib.New(nvmllib.WithLibraryPath(library))
	return c, nil
}
