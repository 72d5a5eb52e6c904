// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
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

// devicePlugin is a running device plugin of the node, with its kubelet.
type devicePlugin struct {
	*kubelet
	dir    string
	cmd    *exec.Cmd
	output *output
	ended  chan struct{}
}

// output is what a program has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startPlugin runs the device plugin of the node until the test ends.
func startPlugin(t *testing.T) *devicePlugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet-") // the path of a socket is short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("KUBELET_DIR", dir)
	p := &devicePlugin{kubelet: serveKubelet(t, dir), dir: dir, output: &output{}, ended: make(chan struct{}),
		cmd: inNode(t, kubeletDir, program(t, "nvidia-device-plugin"), "--mig-strategy=mixed")}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	must(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// registration returns the resource that the plugin registers next.
func (p *devicePlugin) registration(t *testing.T) *pluginapi.RegisterRequest {
	t.Helper()
	select {
	case r := <-p.registrations:
		return r
	case <-p.ended:
		t.Fatalf("device plugin: %v: %s", p.cmd.ProcessState, p.output)
	case <-time.After(5 * time.Minute):
		t.Fatal("the device plugin does not register within a minute")
	}
	return nil
}

// watch returns the lists of devices of the resource: the first, and then one for each change.
func (p *devicePlugin) watch(t *testing.T, r *pluginapi.RegisterRequest) pluginapi.DevicePlugin_ListAndWatchClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, r.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	stream, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(t.Context(), &pluginapi.Empty{})
	must(t, err)
	return stream
}

// pluginDevices runs the device plugin of the node until it has registered so many resources. It returns a line for
// each device: the resource, the ID, the health and the NUMA node.
func pluginDevices(t *testing.T, resources int) string {
	t.Helper()
	p := startPlugin(t)
	var lines []string
	for range resources {
		r := p.registration(t)
		list, err := p.watch(t, r).Recv()
		must(t, err)
		lines = append(lines, deviceLines(r.ResourceName, list)...)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// deviceLines has a line for each device.
func deviceLines(resource string, list *pluginapi.ListAndWatchResponse) []string {
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
		case "monitor", "vfio", "vgpu":
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
