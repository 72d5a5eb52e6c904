// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
)

// options are the flags of the plugin.
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
	combinedHook string
	hooksDir     string
	httpAddress  string
	sweepPeriod  time.Duration
	gpuTimeout   time.Duration
	daemonMemory resource.QuantityValue
	localIPC     resource.QuantityValue
	nodeConfigs  string

	partitionRequests string // namespace/name

	metricsContainerUsage  bool
	virtualMachines        bool
	monitorDevice          bool
	metricsGPUManagerNames bool

	idleAfter time.Duration
	idleBelow int // percent
}

// minMemory is the smallest /dev/shm of an MPS daemon, and the smallest directory for local IPC, in bytes.
const minMemory = 1 << 20

// minIdle is the shortest time after which a claim is marked as idle.
const minIdle = 5 * time.Second

// kubeletPlugins has a directory for each plugin of the kubelet.
const kubeletPlugins = "/var/lib/kubelet/plugins"

// addDirectoryFlags adds the flags that directory reads. The plugin has them, and so have the commands that read its
// directory.
func (o *options) addDirectoryFlags(f *pflag.FlagSet) {
	f.StringVar(&o.driverName, "driver-name", "gpu.nvidia.com", "name of the driver, as in device classes")
	f.StringVar(&o.pluginDir, "plugin-dir", "", "directory for sockets and records, the same path on the host "+
		"(default "+kubeletPlugins+"/<driver name>)")
}

// directory returns the directory of the plugin.
func (o *options) directory() string {
	return cmp.Or(o.pluginDir, filepath.Join(kubeletPlugins, o.driverName))
}

// addFlags adds the flags of the plugin.
func (o *options) addFlags(f *pflag.FlagSet) {
	o.addDirectoryFlags(f)
	f.StringVar(&o.nodeName, "node-name", "", "name of this node (required)")
	f.StringVar(&o.podUID, "pod-uid", "", "UID of this program's pod; set: two instances may run side by side during "+
		"an update")
	apiserver.AddFlag(f, &o.kubeconfig)
	f.StringVar(&o.registryDir, "registry-dir", "/var/lib/kubelet/plugins_registry",
		"where the kubelet looks for plugins")
	f.StringVar(&o.podResources, "pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock",
		"socket on which the kubelet tells which containers it runs")
	f.DurationVar(&o.sweepPeriod, "sweep-period", time.Minute, "how often claims that the kubelet has forgotten are "+
		"looked for; one is released when it has been forgotten for twice as long")
	f.DurationVar(&o.gpuTimeout, "gpu-timeout", 10*time.Second, "how long a GPU may take to answer when it is looked "+
		"at; after that it counts as lost until it answers")
	o.daemonMemory.Quantity = resource.MustParse("1Gi")
	f.Var(&o.daemonMemory, "mps-shared-memory", "size of /dev/shm of an MPS daemon and its clients; 0: all daemons "+
		"of the node have one")
	f.Var(&o.localIPC, "local-ipc-size", "size of the directory for local IPC of a claim with a LocalIPCConfig, below "+
		"--plugin-dir, which must be mounted with the propagation Bidirectional; 0: such claims are refused")
	f.StringVar(&o.nodeConfigs, "node-config-dir", "", "directory of node configurations, which say how GPUs may be "+
		"shared: one file for each, of which a label of the node names one; empty: none")
	f.StringVar(&o.partitionRequests, "partition-requests", "", "ConfigMap, as namespace/name, in which the "+
		"controller names nodes whose partitions pods wait for; set: possible partitions are published on demand, "+
		"unless the node configuration says otherwise")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where container runtimes look for CDI specs")
	f.StringVar(&o.cdiHook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "NVIDIA's CDI hook program, copied to "+
		"--hooks-dir, from where the host runs it")
	f.StringVar(&o.combinedHook, "combined-cdi-hook", "/usr/bin/cdi-hooks", "program that runs the CDI hooks of a "+
		"container in one process, copied like --cdi-hook; empty: --cdi-hook runs each in a process of its own")
	f.StringVar(&o.hooksDir, "hooks-dir", "", "directory for CDI hook programs, the same path on the host; made and "+
		"removed by the driver, open to all users; empty: --plugin-dir, where those of pods with hostUsers: false "+
		"cannot be run")
	f.StringVar(&o.httpAddress, "http-address", ":8081", "where /healthz, /readyz and /metrics are served; empty: "+
		"nowhere")
	f.BoolVar(&o.metricsContainerUsage, "metrics-container-usage", false,
		"measure what containers use of GPUs; needs the host's PID namespace")
	f.BoolVar(&o.metricsGPUManagerNames, "metrics-gpu-manager-names", false,
		"give the metrics of containers also under the names of gpu-manager")
	o.addVirtualMachines(f)
	f.BoolVar(&o.monitorDevice, "monitor-device", true, "offer the monitor device, which is all GPUs of the node "+
		"at once")
	f.DurationVar(&o.idleAfter, "idle-after", 0, "how long a GPU is not used until its claim is marked as idle; 0: "+
		"never; needs --metrics-container-usage")
	f.IntVar(&o.idleBelow, "idle-below", 1, "a GPU is not used while the utilization by each process is below this, "+
		"in percent")
}

func (o *options) addVirtualMachines(f *pflag.FlagSet) {
	f.BoolVar(&o.virtualMachines, "virtual-machines", false, "offer GPUs to virtual machines, too, where the kernel "+
		"has the driver vfio-pci")
}

// complete validates the flags and sets derived defaults.
func (o *options) complete() error {
	if o.nodeName == "" {
		return errors.New("--node-name (or NODE_NAME) is required: the name of the Node object of this machine")
	}
	if o.sweepPeriod <= 0 {
		return fmt.Errorf("--sweep-period %s: must be longer than 0, such as 1m", o.sweepPeriod)
	}
	if o.gpuTimeout <= 0 || o.gpuTimeout > 30*time.Second {
		return fmt.Errorf("--gpu-timeout %s: must be longer than 0 and at most 30s, such as 10s", o.gpuTimeout)
	}
	if size := o.daemonMemory.Value(); size != 0 && size < minMemory {
		return fmt.Errorf("--mps-shared-memory %s: must be 0 or at least 1Mi, such as 1Gi", &o.daemonMemory)
	}
	if size := o.localIPC.Value(); size != 0 && size < minMemory {
		return fmt.Errorf("--local-ipc-size %s: must be 0 or at least 1Mi, such as 64Mi", &o.localIPC)
	}
	if o.idleAfter != 0 && o.idleAfter < minIdle {
		return fmt.Errorf("--idle-after %s: must be 0 or at least %s, such as 30m", o.idleAfter, minIdle)
	}
	if o.idleAfter != 0 && !o.metricsContainerUsage {
		return fmt.Errorf("--idle-after %s: needs --metrics-container-usage", o.idleAfter)
	}
	if namespace, name, ok := strings.Cut(o.partitionRequests, "/"); o.partitionRequests != "" &&
		(!ok || namespace == "" || name == "") {
		return fmt.Errorf("--partition-requests %s: must be the namespace and the name of a ConfigMap, such as "+
			"gpu-dra-driver/partition-requests", o.partitionRequests)
	}
	if o.idleBelow < 1 || o.idleBelow > 100 {
		return fmt.Errorf("--idle-below %d: must be from 1 to 100", o.idleBelow)
	}
	o.pluginDir = o.directory()
	return nil
}
