// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
)

// options are the flags.
type options struct {
	driverName   string
	nodeName     string
	podUID       string
	kubeconfig   string
	pluginDir    string
	registryDir  string
	podResources string
	cdiDir       string
	cdiHook      string
	httpAddress  string
	sweepPeriod  time.Duration
	nodeConfigs  string

	metricsContainerUsage  bool
	metricsGPUManagerNames bool

	driver nvml.DriverRoot

	simulate            bool
	simulateDir         string
	simulateProfile     string
	simulateProfilesDir string
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.driverName, "driver-name", "gpu.nvidia.com", "name of the driver, as in device classes")
	f.StringVar(&o.nodeName, "node-name", "", "name of this node (required)")
	f.StringVar(&o.podUID, "pod-uid", "", "UID of this program's pod; set: two instances may run side by side during an update")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server; empty: as a pod does")
	f.StringVar(&o.pluginDir, "plugin-dir", "", "directory for sockets and records, the same path on the host (default /var/lib/kubelet/plugins/<driver name>)")
	f.StringVar(&o.registryDir, "registry-dir", "/var/lib/kubelet/plugins_registry", "where the kubelet looks for plugins")
	f.StringVar(&o.podResources, "pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "socket on which the kubelet tells which containers it runs")
	f.DurationVar(&o.sweepPeriod, "sweep-period", time.Minute, "how often claims that the kubelet has forgotten are looked for; one is released when it has been forgotten for twice as long")
	f.StringVar(&o.nodeConfigs, "node-config-dir", "", "directory of node configurations, which say how GPUs may be shared: one file for each, of which a label of the node names one; empty: none")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where container runtimes look for CDI specs")
	f.StringVar(&o.cdiHook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "NVIDIA's CDI hook program, copied to the plugin directory, from where the host runs it")
	f.StringVar(&o.httpAddress, "http-address", ":8081", "where /healthz, /readyz and /metrics are served; empty: nowhere")
	f.BoolVar(&o.metricsContainerUsage, "metrics-container-usage", false, "measure what containers use of GPUs; needs the host's PID namespace")
	f.BoolVar(&o.metricsGPUManagerNames, "metrics-gpu-manager-names", false, "give the metrics of containers also under the names of gpu-manager")
	f.StringVar(&o.driver.Host, "driver-root", "/", "root of NVIDIA's driver on the host")
	f.StringVar(&o.driver.Here, "driver-root-mount", "/driver-root", "where that root is seen by this program")
	f.StringVar(&o.driver.HostDev, "host-dev-mount", "", "where the host's root is seen by this program as far as /dev goes; the driver's device nodes are looked for there when the driver root has none; empty: nowhere")
	f.BoolVar(&o.simulate, "simulate", false, "serve simulated GPUs; the driver root is then made below --simulate-dir")
	f.StringVar(&o.simulateDir, "simulate-dir", "/var/lib/gpu-dra-driver/sim", "directory of the simulated GPUs, the same path on the host")
	f.StringVar(&o.simulateProfile, "simulate-profile", "", "profile of a node without the label "+profileLabel+": a name, or the path of a YAML file")
	f.StringVar(&o.simulateProfilesDir, "simulate-profiles-dir", "", "directory with further profiles, NAME.yaml")
}

// complete checks the flags and fills in what follows from others.
func (o *options) complete() error {
	if o.nodeName == "" {
		return errors.New("--node-name (or NODE_NAME) is required: the name of the Node object of this machine")
	}
	if o.sweepPeriod <= 0 {
		return fmt.Errorf("--sweep-period %s: must be longer than 0, such as 1m", o.sweepPeriod)
	}
	if o.pluginDir == "" {
		o.pluginDir = filepath.Join("/var/lib/kubelet/plugins", o.driverName)
	}
	return nil
}
