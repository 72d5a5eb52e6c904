// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// kubelet is the kubelet of the device plugin: it accepts registrations.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	registrations chan *pluginapi.RegisterRequest
}

func (k *kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.registrations <- r
	return &pluginapi.Empty{}, nil
}

// serveKubelet serves the kubelet's socket in the directory.
func serveKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	k := &kubelet{registrations: make(chan *pluginapi.RegisterRequest, 10)}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	must(t, err)
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return k
}

// kubeletDir is the setup that shows the directory as the kubelet's, and the driver's files of partitions.
const kubeletDir = sysfs + `
if [ -d "$SIMULATE_DIR/root/proc/driver" ]; then mount --bind "$SIMULATE_DIR/root/proc/driver" /proc/driver; fi
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet/device-plugins
mount --bind "$KUBELET_DIR" /var/lib/kubelet/device-plugins`

// pluginDevices runs the device plugin of the node until it has registered so many resources. It returns a line for
// each device: the resource, the ID, the health and the NUMA node.
func pluginDevices(t *testing.T, resources int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet-") // the path of a socket is short
	must(t, err)
	defer os.RemoveAll(dir)
	k := serveKubelet(t, dir)
	t.Setenv("KUBELET_DIR", dir)
	cmd := inNode(t, kubeletDir, program(t, "nvidia-device-plugin"), "--mig-strategy=mixed")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
	}()
	var lines []string
	for range resources {
		select {
		case r := <-k.registrations:
			lines = append(lines, listDevices(t, filepath.Join(dir, r.Endpoint), r.ResourceName)...)
		case <-ended:
			t.Fatalf("device plugin: %v: %s", cmd.ProcessState, output.String())
		case <-time.After(time.Minute):
			t.Fatal("the device plugin does not register within a minute")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// listDevices returns the first list of devices of the plugin at the socket.
func listDevices(t *testing.T, socket, resource string) []string {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	stream, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(t.Context(), &pluginapi.Empty{})
	must(t, err)
	list, err := stream.Recv()
	must(t, err)
	var lines []string
	for _, d := range list.Devices {
		numa := "-"
		if d.Topology != nil {
			numa = fmt.Sprint(d.Topology.Nodes[0].ID)
		}
		lines = append(lines, fmt.Sprint(resource, " ", d.ID, " ", d.Health, " ", numa))
	}
	return lines
}

// publishedDevices returns these lines for what the driver publishes, and the number of resources.
func publishedDevices(t *testing.T, n *simulator.Node) (lines string, resources int) {
	t.Helper()
	var all []string
	names := map[string]bool{}
	for _, d := range published(t, n, n.NVML(), gpu.PartitionsStatic) {
		name := "nvidia.com/gpu"
		switch text(d, "type") {
		case "mig":
			name = "nvidia.com/mig-" + strings.ReplaceAll(text(d, "profile"), "+", ".")
		case "monitor":
			continue
		}
		numa := text(d, "resource.kubernetes.io/numaNode")
		if numa == "" {
			numa = "-"
		}
		names[name] = true
		all = append(all, fmt.Sprint(name, " ", text(d, "uuid"), " ", pluginapi.Healthy, " ", numa))
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), len(names)
}

// TestNVIDIADevicePlugin compares the devices of the device plugin with those that the driver publishes, also of a node
// with partitions.
func TestNVIDIADevicePlugin(t *testing.T) {
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			library(t)
			n := simulate(t, builtIn(t, profile, ""))
			if os.Geteuid() == 0 { // partitions have device nodes
				must(t, n.LayOut(simulator.Programs{}))
				partitionFirst(t, n)
			}
			want, resources := publishedDevices(t, n)
			if diff := cmp.Diff(pluginDevices(t, resources), want); diff != "" || resources == 0 {
				t.Errorf("device plugin - published +\n%s", diff)
			}
		})
	}
}
