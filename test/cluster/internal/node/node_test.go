// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

func TestKubeletConfiguration(t *testing.T) {
	got, err := kubeletYAML(Config{Index: 2, Cgroup: "/c/node-2", FeatureGates: map[string]bool{"B": false, "A": true}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `address: 10.77.0.12
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: /run/gpu-dra-cluster/machine/pki/ca.crt
authorization:
  mode: Webhook
cgroupDriver: cgroupfs
cgroupRoot: /c/node-2
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
enforceNodeAllocatable:
- pods
evictionHard:
  imagefs.available: 0%
  imagefs.inodesFree: 0%
  memory.available: 100Mi
  nodefs.available: 0%
  nodefs.inodesFree: 0%
failCgroupV1: false
failSwapOn: false
featureGates:
  A: true
  B: false
healthzBindAddress: 127.0.0.1
healthzPort: 10248
imageGCHighThresholdPercent: 100
kind: KubeletConfiguration
logging:
  verbosity: 2
oomScoreAdj: 0
port: 10250
protectKernelDefaults: true
resolvConf: ""
tlsCertFile: /run/gpu-dra-cluster/machine/pki/kubelet.crt
tlsPrivateKeyFile: /run/gpu-dra-cluster/machine/pki/kubelet.key
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestKubeletCommand(t *testing.T) {
	for _, row := range []struct {
		name   string
		labels map[string]string
		want   string // the last argument
	}{
		{"without labels", nil, "--root-dir=/var/lib/kubelet"},
		{"with labels, in order", map[string]string{"b": "2", "a": "1"}, "--node-labels=a=1,b=2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			command := kubeletCommand(Config{Index: 1, Labels: row.labels})
			if got := command[len(command)-1]; got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestNetworkConfigurationIsPerNode(t *testing.T) {
	var parsed struct {
		Plugins []struct {
			Type string
			IPAM struct {
				Ranges [][]struct{ Subnet string }
			}
		}
	}
	if err := json.Unmarshal([]byte(networkJSON(3)), &parsed); err != nil {
		t.Fatal(err)
	}
	if got := parsed.Plugins[0].IPAM.Ranges[0][0].Subnet; got != "10.78.3.0/24" {
		t.Errorf("got subnet %s, want 10.78.3.0/24", got)
	}
}

// TestSpec finds errors that would otherwise show as a hanging start: a step that waits for a missing step, or a
// program that its component does not have.
func TestSpec(t *testing.T) {
	programs := components.Dirs{
		components.Kubernetes: "/k", components.Containerd: "/c", components.Runc: "/r",
		components.CNI: "/n", components.Pause: "/p", components.Etcd: "/e",
	}
	spec, err := Spec("/state/node-1", programs, Config{Index: 1})
	if err != nil {
		t.Fatal(err)
	}
	once := map[string]bool{}
	for _, s := range spec.Steps {
		once[s.Name] = s.Once
		component := strings.Split(strings.TrimPrefix(s.Command[0], machine.Bin+"/"), "/")[0]
		if _, ok := spec.Components[component]; !ok {
			t.Errorf("%s runs %s; there are %v", s.Name, s.Command[0], slices.Sorted(maps.Keys(spec.Components)))
		}
	}
	for _, s := range spec.Steps {
		for _, after := range s.After {
			if name, ok := strings.CutPrefix(after, "step:"); ok && !once[name] {
				t.Errorf("%s waits for %s, which never succeeds", s.Name, name)
			}
		}
	}
}

func TestContainersSeeTheBootIDOfTheirNode(t *testing.T) {
	got, err := showBootID([]byte(`{"ociVersion": "1.3.0", "mounts": [{"destination": "/proc"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ociVersion": "1.3.0"`, `"destination": "/proc"`, `"createContainer"`,
		machine.BootIDFile} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to have %s", got, want)
		}
	}
	if _, err := showBootID([]byte("x")); err == nil {
		t.Error("what is no container: got no error")
	}
}
