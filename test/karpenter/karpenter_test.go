// SPDX-License-Identifier: Apache-2.0

// Package karpenter compares what Karpenter's simulation of scheduling puts on a node with our GPUs with what the
// allocator of Kubernetes' scheduler puts there.
package karpenter

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling/dynamicresources"
)

var update = flag.Bool("update", false, "write testdata/differences.txt")

const (
	root     = "../.."
	nodeName = "template" // of the command slices, if it is given none
)

// nowhere are claims that the scheduler puts on no node, so that only Karpenter's refusal is compared. The slices of a
// profile have no devices for virtual machines or from a fabric, and no partitions that an administrator has made. One
// asks for too much.
var nowhere = []string{"composable/two-h100", "mig-static/three-slices", "unsatisfiable/more-than-there-is",
	"vm-vgpu/vgpu", "vm-whole-gpu/for-vm"}

// configs are node configurations: the default one, with shares and partitions, and one for each way to share GPUs.
var configs = map[string]string{
	"default":    "",
	"exclusive":  "gpus: [{sharing: exclusive, partitions: none}]",
	"replicated": "gpus: [{sharing: {replicated: 4}, partitions: none}]",
	"fractional": "gpus: [{sharing: fractional, partitions: none}]",
}

// TestDemos fills a node of each profile with claims of one kind, for each kind of claim in the demos: a node that does
// not exist yet and one that runs. Where Karpenter has room for more or fewer than the scheduler,
// testdata/differences.txt says so; docs/options/other-software.md tells the causes.
func TestDemos(t *testing.T) {
	controller := os.Getenv("DRA_CONTROLLER")
	if controller == "" {
		t.Fatal("DRA_CONTROLLER does not name the built controller: run `make test-karpenter`")
	}
	classes := list[resourceapi.DeviceClass](t, "DeviceClass", root+"/deployments/helm/testdata/default.golden.yaml")
	for _, file := range demoFiles(t) {
		classes = append(classes, list[resourceapi.DeviceClass](t, "DeviceClass", file)...)
	}
	objects := make([]client.Object, len(classes))
	for i, class := range classes {
		objects[i] = class
	}
	server := fake.NewClientBuilder().WithObjects(objects...).Build()
	claims := slices.DeleteFunc(demoClaims(t), func(c *resourceapi.ResourceClaim) bool {
		// They ask for a device of another driver too, or for one that is on no node.
		return strings.HasPrefix(c.Name, "next-to-a-nic/") || strings.HasPrefix(c.Name, "remote/")
	})
	profiles, err := filepath.Glob(root + "/internal/nodetemplate/profiles/*.yaml")
	if err != nil || len(profiles) == 0 {
		t.Fatalf("got %d profiles, %v", len(profiles), err)
	}
	var differences []string
	compared, placed := 0, map[string]int{} // by claim
	for _, profile := range profiles {
		profile = strings.TrimSuffix(filepath.Base(profile), ".yaml")
		for _, config := range slices.Sorted(maps.Keys(configs)) {
			published := nodeSlices(t, controller, profile, configs[config])
			for _, claim := range claims {
				want, ok := byScheduler(t, published, classes, claim)
				if !ok {
					continue
				}
				placed[claim.Name] += want
				for _, kind := range []struct {
					name string
					node node
				}{{"new", node{templates: published}}, {"running", node{name: nodeName, published: published}}} {
					compared++
					if got := byKarpenter(t, kind.node, server, claim, want+1); got != want {
						differences = append(differences, fmt.Sprintf(
							"%s, %s, %s node: %s: Karpenter %d, scheduler %d\n",
							profile, config, kind.name, claim.Name, got, want))
					}
				}
			}
		}
	}
	t.Logf("%d nodes were filled with %d claims each; %d differ", compared, len(placed), len(differences))
	maps.DeleteFunc(placed, func(_ string, n int) bool { return n > 0 })
	if diff := cmp.Diff(nowhere, slices.Sorted(maps.Keys(placed))); diff != "" {
		t.Errorf("claims for which no node has room: -want +got\n%s", diff)
	}
	golden := "testdata/differences.txt"
	got := strings.Join(differences, "")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("-%s +now\n%s", golden, diff)
	}
}

// byScheduler returns how many claims like the given one the scheduler's allocator puts on a node with the slices. It
// returns false for a claim with admin access: there is always room for it.
func byScheduler(t *testing.T, published []*resourceapi.ResourceSlice, classes []*resourceapi.DeviceClass,
	claim *resourceapi.ResourceClaim) (int, bool) {
	t.Helper()
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	compiled := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	for n := 0; ; n++ {
		allocator, err := structured.NewAllocator(t.Context(), structured.Features{AdminAccess: true,
			PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, ConsumableCapacity: true},
			state, lister(classes), published, compiled)
		if err != nil {
			t.Fatal(err)
		}
		results, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
		if err != nil {
			t.Fatalf("%s: %v", claim.Name, err)
		}
		if len(results) == 0 {
			return n, true
		}
		for _, r := range results[0].Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				return 0, false
			}
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
}

// byKarpenter returns how many claims like the given one Karpenter's allocator puts on the node, at most so many.
func byKarpenter(t *testing.T, n node, server client.Client, claim *resourceapi.ResourceClaim, most int) int {
	t.Helper()
	var inCluster []dynamicresources.ResourceSlice
	for _, s := range n.published {
		inCluster = append(inCluster, dynamicresources.NewAPIServerSlice(s))
	}
	allocator := dynamicresources.NewAllocator(inCluster, dynamicresources.AllocatedDeviceState{}, nil,
		server, nil)
	for i := range most {
		next := claim.DeepCopy()
		next.Name = fmt.Sprintf("%s-%d", claim.Name, i)
		result, err := allocator.Allocate(t.Context(), n, []*resourceapi.ResourceClaim{next})
		if err != nil {
			return i
		}
		result.Allocation.Commit(t.Context())
	}
	return most
}

// node is a node as Karpenter sees it: a running one has a name and slices, a new one templates.
type node struct {
	name                 string
	published, templates []*resourceapi.ResourceSlice
}

var instanceType = unique.Make("instance-type")

func (n node) ID() dynamicresources.NodeClaimID        { return unique.Make("node-claim") }
func (n node) NodeName() string                        { return n.name }
func (n node) NodePoolID() dynamicresources.NodePoolID { return unique.Make("node-pool") }
func (n node) Requirements() scheduling.Requirements   { return scheduling.NewRequirements() }
func (n node) InstanceTypes() []dynamicresources.InstanceTypeID {
	return []dynamicresources.InstanceTypeID{instanceType}
}
func (n node) ResourceSlices() map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice {
	var all []dynamicresources.ResourceSlice
	for _, s := range n.templates {
		as := dynamicresources.NewAPIServerSlice(s)
		all = append(all, dynamicresources.NewTemplateSlice(&cloudprovider.ResourceSliceTemplate{
			Driver: as.Driver(), Pool: as.Pool(), Devices: as.Devices(), SharedCounters: as.SharedCounters()}))
	}
	return map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice{instanceType: all}
}

// lister is the device classes of the cluster.
type lister []*resourceapi.DeviceClass

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }
func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	if i := slices.IndexFunc(l, func(c *resourceapi.DeviceClass) bool { return c.Name == name }); i >= 0 {
		return l[i], nil
	}
	return nil, fmt.Errorf("there is no device class %s", name)
}

// nodeSlices returns the slices of a node of the profile, from the command that users run.
func nodeSlices(t *testing.T, controller, profile, config string) []*resourceapi.ResourceSlice {
	t.Helper()
	command := exec.Command(controller, "slices", "--profile", profile)
	if config != "" {
		command.Args = append(command.Args, "--node-config", "-")
		command.Stdin = strings.NewReader("apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\n" + config)
	}
	all := decode[resourceapi.ResourceSlice](t, "ResourceSlice", bytes.NewReader(output(t, command)))
	if len(all) == 0 {
		t.Fatalf("%s: got no slices", command)
	}
	for _, s := range all {
		s.Spec.NodeName = new(nodeName)
	}
	return all
}

// demoClaims returns the claims of all demos, named by demo and claim.
func demoClaims(t *testing.T) []*resourceapi.ResourceClaim {
	t.Helper()
	var all []*resourceapi.ResourceClaim
	for _, file := range demoFiles(t) {
		demo := filepath.Base(filepath.Dir(file))
		for _, template := range list[resourceapi.ResourceClaimTemplate](t, "ResourceClaimTemplate", file) {
			all = append(all, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: demo, Name: demo + "/" + template.Name}, Spec: template.Spec.Spec})
		}
		for _, claim := range list[resourceapi.ResourceClaim](t, "ResourceClaim", file) {
			claim.Namespace, claim.Name = demo, demo+"/"+claim.Name
			all = append(all, claim)
		}
	}
	for _, claim := range all {
		setDefaults(claim)
	}
	return all
}

func demoFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(root + "/demo/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files of demos, %v", len(files), err)
	}
	return files
}

// setDefaults does what the API server does when a claim is created.
func setDefaults(claim *resourceapi.ResourceClaim) {
	one := func(mode *resourceapi.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourceapi.DeviceAllocationModeExactCount
		}
		if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if request.Exactly != nil {
			one(&request.Exactly.AllocationMode, &request.Exactly.Count)
		}
		for j := range request.FirstAvailable {
			one(&request.FirstAvailable[j].AllocationMode, &request.FirstAvailable[j].Count)
		}
	}
}

// list returns the objects of the kind in the file.
func list[T any](t *testing.T, kind, file string) []*T {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return decode[T](t, kind, bytes.NewReader(data))
}

// decode returns the objects of the kind.
func decode[T any](t *testing.T, kind string, documents io.Reader) []*T {
	t.Helper()
	var all []*T
	decoder := yaml.NewYAMLOrJSONDecoder(documents, 4096)
	for {
		var object unstructured.Unstructured
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if object.GetKind() != kind {
			continue
		}
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			t.Fatal(err)
		}
		all = append(all, typed)
	}
}

// output runs the command.
func output(t *testing.T, command *exec.Cmd) []byte {
	t.Helper()
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, &problems)
	}
	return out
}
