// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// vms are GPUs for virtual machines, of which claims hold one for each request of their allocation.
type vms struct {
	gpus
	inv inventory.Inventory
}

func (v *vms) Inventory() inventory.Inventory { return v.inv }

func (v *vms) Prepare(_ context.Context, c *resourceapi.ResourceClaim) (rec checkpoint.PreparedClaim, _ error) {
	for _, r := range c.Status.Allocation.Devices.Results {
		a := sharing.Assignment{Request: r.Request, Pool: r.Pool, Device: r.Device}
		if d, _ := v.inv.Find(r.Device); d.VGPU != nil {
			a.VFIO = &sharing.AssignedVFIO{VGPU: &sharing.AssignedVGPU{UUID: d.VGPU.MDev, Made: d.VGPU.Made}}
			if d.VGPU.Made {
				a.VFIO.VGPU.UUID = string(c.UID) + "/" + r.Device
			}
		}
		rec.Plan.Assignments = append(rec.Plan.Assignments, a)
	}
	return rec, nil
}

func (*vms) Unprepare(context.Context, sharing.Claim) error { return nil }

// KubeVirt finds the PCI address of a GPU in the container of virt-launcher, and nothing else. Lines are those of
// pkg/dra/utils.go of github.com/kubevirt/kubevirt at commit 0523d9b0e928:
//   - 48-53 and 142-149: the file is below resourceclaims/CLAIM or resourceclaimtemplates/CLAIM-OF-THE-POD;
//   - 158-176: in the directory of the request, exactly one file ends in -metadata.json;
//   - 187-192: the file is a stream of JSON objects, of which one has an API version that KubeVirt knows:
//     metadata.resource.k8s.io/v1alpha1, in pkg/dra/metadata/types.go;
//   - 110-124: the object has the request by its name, with exactly one device;
//   - 68-72: the device has the string attribute resource.kubernetes.io/pciBusID.
func TestMetadataForKubeVirt(t *testing.T) {
	addresses := map[string]string{"gpu-10-00-0-vfio": "0000:10:00.0", "gpu-11-00-0-vfio": "0000:11:00.0",
		"gpu-12-00-0-vfio": "0000:12:00.0"}
	node := &vms{}
	for i := range uint8(3) {
		at := gpu.PCIAddress{Bus: 0x10 + i}
		node.inv = append(node.inv, gpu.Device{Name: at.DeviceName(), Type: gpu.TypeGPU, PCI: at,
			UUID: gpu.UUID(fmt.Sprint("GPU-", i)), VFIO: &gpu.VFIO{Group: int(i), Vendor: "10de", Device: "26b9",
				Functions: []gpu.PCIFunction{{PCI: at, Driver: "nvidia"}}}})
	}
	node.inv = inventory.New(node.inv).WithPartitions(func(gpu.Placement) bool { return false })
	for _, row := range []struct {
		name, podClaim string            // podClaim: the claim is made from a template
		devices        map[string]string // by request
		dir            string
	}{
		{"from a template", "gpu-claim", map[string]string{"gpu": "gpu-10-00-0-vfio"},
			"resourceclaimtemplates/gpu-claim"},
		{"made before", "", map[string]string{"gpu": "gpu-11-00-0-vfio"}, "resourceclaims/claim"},
		{"several requests", "vfio-gpu-claim", map[string]string{"vfio-gpu-0": "gpu-12-00-0-vfio",
			"vfio-gpu-1": "gpu-10-00-0-vfio", "vfio-gpu-2": "gpu-11-00-0-vfio"},
			"resourceclaimtemplates/vfio-gpu-claim"},
	} {
		t.Run(row.name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim",
				UID: "uid"}}
			if row.podClaim != "" {
				claim.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: row.podClaim}
			}
			claim.Status.Allocation = &resourceapi.AllocationResult{}
			for request, device := range row.devices {
				claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
					resourceapi.DeviceRequestAllocationResult{Request: request, Driver: "gpu.nvidia.com", Pool: "node",
						Device: device})
			}
			mounts := mountsOf(t, node, claim)
			for request, device := range row.devices {
				file, dir := "", path.Join("/var/run/kubernetes.io/dra-device-attributes", row.dir, request)
				for inContainer, onHost := range mounts {
					if ok, _ := path.Match(dir+"/*-metadata.json", inContainer); ok && file != "" {
						t.Errorf("request %s: several files", request)
					} else if ok {
						file = onHost
					}
				}
				if got, err := pciAddress(file, request); err != nil || got != addresses[device] {
					t.Errorf("request %s: got PCI address %q, %v, want %s; files: %v", request, got, err,
						addresses[device], mounts)
				}
			}
		})
	}
}

// mountsOf prepares the claim as the kubelet does. It returns the files of metadata on the host, by path in the
// container.
func mountsOf(t *testing.T, node *vms, claim *resourceapi.ResourceClaim) map[string]string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vm") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	client := fake.NewClientset(claim)
	s := Sockets{DriverName: "gpu.nvidia.com", NodeName: "node", PluginDir: dir, RegistryDir: dir,
		CDIDir: filepath.Join(dir, "cdi"), Client: client}
	c, err := Serve(t.Context(), s, &Server{Preparer: node, Metrics: report.NewMetrics(nil), Node: node,
		Metadata: kubeletplugin.MetadataFileOperations{WriteFile: os.WriteFile, MkdirAll: os.MkdirAll},
		NodeName: "node",
		Reporter: report.NewReporter(t.Context(), report.ReporterConfig{Driver: s.DriverName,
			Node: "node", Client: client})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	connection, err := grpc.NewClient("unix://"+filepath.Join(dir, s.socketName()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	answer, err := drapb.NewDRAPluginClient(connection).NodePrepareResources(t.Context(),
		&drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name,
			Uid: string(claim.UID)}}})
	if err != nil || answer.Claims[string(claim.UID)].GetError() != "" {
		t.Fatal(err, answer)
	}
	mounts := map[string]string{}
	specs, err := filepath.Glob(filepath.Join(s.CDIDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		var in struct {
			Devices []struct {
				ContainerEdits struct {
					Mounts []struct{ HostPath, ContainerPath string }
				}
			}
		}
		text, err := os.ReadFile(spec)
		if err == nil {
			err = json.Unmarshal(text, &in)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range in.Devices[0].ContainerEdits.Mounts {
			mounts[m.ContainerPath] = m.HostPath
		}
	}
	return mounts
}

// pciAddress returns the PCI address of the only device of the request, by the rules of KubeVirt.
func pciAddress(file, request string) (string, error) {
	return attributeOf(file, request, "resource.kubernetes.io/pciBusID")
}

// attributeOf returns a string attribute of the only device of the request, by the rules of KubeVirt.
func attributeOf(file, request, attribute string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	for stream := json.NewDecoder(f); ; {
		var object struct {
			APIVersion string
			Requests   []struct {
				Name    string
				Devices []struct {
					Attributes map[string]struct {
						String string
					}
				}
			}
		}
		if err := stream.Decode(&object); errors.Is(err, io.EOF) {
			return "", errors.New("no object of a version that KubeVirt knows")
		} else if err != nil {
			return "", err
		}
		if object.APIVersion != "metadata.resource.k8s.io/v1alpha1" {
			continue
		}
		for _, r := range object.Requests {
			if r.Name == request && len(r.Devices) == 1 {
				return r.Devices[0].Attributes[attribute].String, nil
			}
		}
		return "", fmt.Errorf("no request %s with one device", request)
	}
}
