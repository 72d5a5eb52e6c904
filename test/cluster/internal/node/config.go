// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/network"
)

// kubeletSysctls are the host-wide sysctls that a kubelet sets at start, with their values (pkg/kubelet/cm,
// setupKernelTunables). The node sees files with these values instead. protectKernelDefaults is the guard: if one were
// missing here, the kubelet would refuse to start instead of changing the host.
var kubeletSysctls = map[string]string{
	"vm.overcommit_memory":      "1",
	"vm.panic_on_oom":           "0",
	"kernel.panic":              "10",
	"kernel.panic_on_oops":      "1",
	"kernel.keys.root_maxkeys":  "1000000",
	"kernel.keys.root_maxbytes": "25000000",
}

func kubeletYAML(c Config) (string, error) {
	type object = map[string]any
	config := object{
		"apiVersion":         "kubelet.config.k8s.io/v1beta1",
		"kind":               "KubeletConfiguration",
		"address":            network.NodeIP(c.Index),
		"port":               10250,
		"healthzBindAddress": "127.0.0.1",
		"healthzPort":        10248,
		"authentication": object{
			"x509":      object{"clientCAFile": machine.CA},
			"webhook":   object{"enabled": true},
			"anonymous": object{"enabled": false},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              machine.PKI + "/kubelet.crt",
		"tlsPrivateKeyFile":        machine.PKI + "/kubelet.key",
		"containerRuntimeEndpoint": "unix://" + ContainerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               c.Cgroup,
		"failCgroupV1":             false, // a cgroup v1 host is good enough for tests
		"failSwapOn":               false,
		"protectKernelDefaults":    true,
		"oomScoreAdj":              0, // a lower one needs CAP_SYS_RESOURCE, which containers lack
		"clusterDNS":               []string{"10.96.0.10"},
		"clusterDomain":            "cluster.local",
		"enforceNodeAllocatable":   []string{"pods"},
		// The nodes share disk and memory with everything else on the machine. Evict only when its memory is nearly
		// used up. Of a full disk they take no notice (0% switches a signal off): the kubelet would delete all images
		// that no container has, and there is no registry to get them from again.
		"evictionHard": object{
			"memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
			"imagefs.inodesFree": "0%",
		},
		"imageGCHighThresholdPercent": 100,
		"resolvConf":                  "", // pods cannot reach the machine's name servers
		"logging":                     object{"verbosity": 2},
	}
	if len(c.FeatureGates) > 0 {
		config["featureGates"] = c.FeatureGates
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode kubelet configuration: %w", err)
	}
	return string(data), nil
}

func containerdTOML() string {
	return `version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.snapshotter.v1.erofs', 'io.containerd.snapshotter.v1.blockfile']

[grpc]
  address = '` + ContainerdSocket + `'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + components.PauseImage + `'

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  # A lower score than containerd's own needs CAP_SYS_RESOURCE, which a
  # machine that is a container itself lacks.
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['` + cniPrograms + `']
    conf_dir = '/etc/cni/net.d'

  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    base_runtime_spec = '` + containerSpec + `'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '` + machine.Bin + `/` + components.Runc + `/runc'
      SystemdCgroup = false
`
}

// networkJSON connects each pod directly to the node instead of to a bridge. Thus packets between two pods of a node
// also pass the node's rules, which services need.
func networkJSON(i int) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, network.NodePodCIDR(i))
}
