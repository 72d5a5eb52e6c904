// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/node"
	pluginpublish "github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

const (
	driver = "gpu.nvidia.com"
	// long is the name of a node, so long that attributes have a hash of it.
	long = "a-node-whose-name-is-longer-than-an-attribute-may-be.of-a-cluster.example.com"
	head = "apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\n"
)

// configs are the node configurations with which every profile is tested.
var configs = map[string]string{
	"default":    "",
	"exclusive":  head + "gpus: [{sharing: exclusive, partitions: none}]",
	"replicated": head + "gpus: [{sharing: {replicated: 4}, partitions: none}]",
	"unlimited":  head + "gpus: [{sharing: unlimited}]",
	"fractional": head + "gpus: [{sharing: fractional, partitions: none}]",
	"partitions": head + "gpus: [{partitions: dynamic}]",
}

var as = Target{Driver: driver, Name: "template"}

// TestEveryProfile: a template of a profile equals what a simulated node with it publishes, but for UUIDs and the name
// of the node. The template of that node is the same.
func TestEveryProfile(t *testing.T) {
	for _, profile := range Profiles() {
		for name, config := range configs {
			t.Run(profile+"/"+name, func(t *testing.T) {
				client := newServer()
				publish(t, client, profile, config)
				got := fromProfile(t, profile, config)
				diff := gocmp.Diff(specs(t, listed(t, client), long), specs(t, got.Slices, as.Name))
				if diff != "" {
					t.Errorf("-published +template\n%s", diff)
				}
				likeNode, err := fromNode(t, client, long)
				if err != nil || len(likeNode.Warnings) > 0 {
					t.Errorf("got warnings %q, %v", likeNode.Warnings, err)
				}
				if diff := gocmp.Diff(got.Slices, likeNode.Slices); diff != "" {
					t.Errorf("-from profile +from node\n%s", diff)
				}
			})
		}
	}
}

func fromProfile(t *testing.T, profile, config string) Template {
	t.Helper()
	parsed := nodeconfig.Config{}
	if config != "" {
		var err error
		if parsed, err = nodeconfig.Parse([]byte(config)); err != nil {
			t.Fatal(err)
		}
	}
	template, err := FromProfile(profile, parsed, as)
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func fromNode(t *testing.T, client *fake.Clientset, node string) (Template, error) {
	t.Helper()
	return FromNode(t.Context(), client.ResourceV1().ResourceSlices(), node, as)
}

// specs returns the specs of the slices as text, with <name> in place of the node's name and "UUID" in that of UUIDs.
func specs(t *testing.T, all []*resourceapi.ResourceSlice, name string) string {
	t.Helper()
	var b strings.Builder
	for _, s := range all {
		text, err := json.MarshalIndent(s.Spec, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, string(text))
	}
	text := strings.NewReplacer(inventory.MonitorID(name), "<monitor>", name, "<name>").Replace(b.String())
	return uuid.ReplaceAllString(text, "<UUID>")
}

// publish runs the plugin's discovery on a simulated machine, and writes the slices as the plugin does.
func publish(t *testing.T, client *fake.Clientset, profile, config string) {
	t.Helper()
	dir := t.TempDir()
	if config != "" {
		if err := os.WriteFile(filepath.Join(dir, "default"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	reporter := report.NewReporterTo(events.NewFakeRecorder(10), report.ReporterConfig{Driver: driver, Node: long,
		Client: client})
	metrics := report.NewMetrics(records)
	machine := simtest.Open(t, profile)
	// Whether a machine has an IOMMU and vfio-pci is no part of a profile.
	if err := os.RemoveAll(filepath.Join(machine.Sysfs, "bus/pci/drivers/vfio-pci")); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	published := make(firstPublished, 1)
	n := node.New(node.Options{NodeName: long, Dir: dir, ConfigDir: dir, Client: client, Records: records,
		Reporter: reporter, Readiness: report.NewReadiness(time.Minute), Metrics: metrics, Machine: machine,
		Gates:     pluginpublish.New(pluginpublish.PublisherConfig{}).Gates,
		Publisher: published, Alone: func() bool { return true }, Resume: make(chan struct{}, 1)})
	go n.Run(ctx)
	select {
	case inv := <-published:
		if _, err := pluginpublish.FirstSlices(ctx, client, driver, long, inv.Pools(long)); err != nil {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("nothing is published")
	}
}

// firstPublished has room for the first inventory that is published.
type firstPublished chan inventory.Inventory

func (p firstPublished) Set(inv inventory.Inventory) {
	select {
	case p <- inv:
	default:
	}
}

func (firstPublished) Stale() {}

// newServer returns a client of an API server with the node long. It adds what the API server does: generated names and
// field selectors.
func newServer(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: long}})...)
	created := 0
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		created++
		slice.Name = fmt.Sprint(slice.GenerateName, created)
		return false, nil, nil
	})
	client.PrependReactor("list", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		found, err := client.Tracker().List(action.GetResource(),
			resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
		if err != nil {
			return true, nil, err
		}
		all := found.(*resourceapi.ResourceSliceList)
		selector := action.(clienttesting.ListAction).GetListRestrictions().Fields
		all.Items = slices.DeleteFunc(all.Items, func(s resourceapi.ResourceSlice) bool {
			return !selector.Matches(fields.Set{resourceapi.ResourceSliceSelectorDriver: s.Spec.Driver,
				resourceapi.ResourceSliceSelectorNodeName: ptr.Deref(s.Spec.NodeName, "")})
		})
		return true, all, nil
	})
	return client
}

// listed returns all slices by pool, in the order in which they were created.
func listed(t *testing.T, client *fake.Clientset) []*resourceapi.ResourceSlice {
	t.Helper()
	found, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []*resourceapi.ResourceSlice
	for i := range found.Items {
		all = append(all, &found.Items[i])
	}
	slices.SortFunc(all, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// A node that is sick and is publishing again has the template of a healthy one.
func TestSickNode(t *testing.T) {
	client := newServer()
	publish(t, client, "t4-x2", "")
	healthy, err := fromNode(t, client, long)
	if err != nil {
		t.Fatal(err)
	}
	all := listed(t, client)
	gpus := all[0]
	if gpus.Spec.Pool.Name != long || len(gpus.Spec.Devices) != 2 {
		t.Fatalf("got %+v, want the GPUs first", gpus.Spec)
	}
	before := gpus.DeepCopy() // of the generation before, not deleted yet
	before.Name, before.Spec.Devices = "00001-before", before.Spec.Devices[:1]
	gpus.Spec.Pool.Generation = 7
	gpus.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: inventory.TaintUnmonitored, Effect: "None"},
		{Key: inventory.TaintXID, Value: "79", Effect: "NoExecute", TimeAdded: ptr.To(metav1.Now())}}
	gpus.Labels, gpus.ResourceVersion, gpus.UID = map[string]string{"a": "b"}, "17", "uid"
	if err := client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), gpus,
		""); err != nil {
		t.Fatal(err)
	}
	if err := client.Tracker().Add(before); err != nil {
		t.Fatal(err)
	}
	sick, err := fromNode(t, client, long)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(healthy.Slices, sick.Slices); diff != "" {
		t.Errorf("-healthy +sick\n%s", diff)
	}
	want := "[device gpu-3b-00-0 has the taint gpu.nvidia.com/xid, which the template leaves out]"
	if got := fmt.Sprint(sick.Warnings); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRefusals(t *testing.T) {
	pool := func(node string, want int64) runtime.Object {
		pools := inventory.Inventory(nil).Pools(node)
		s := inventory.Slices(driver, node, pools)[0]
		s.Name, s.Spec.Pool.ResourceSliceCount = "slice-of-"+node, want
		return s
	}
	for _, row := range []struct {
		name    string
		objects []runtime.Object
		refused bool
		want    string
	}{
		{"another node", []runtime.Object{pool("b", 1), pool("a", 1)}, false,
			`node "gpu-1" has no ResourceSlices of driver gpu.nvidia.com; nodes that have: a, b`},
		{"no node", nil, false, `node "gpu-1" has no ResourceSlices of driver gpu.nvidia.com; nodes that have: none`},
		{"a pool that is being written", []runtime.Object{pool("gpu-1", 2)}, false,
			"pool gpu-1 is being changed: it has 1 of 2 slices; try again"},
		{"no permission", nil, true, `list resourceslices of the API group resource.k8s.io: resourceslices.resource.` +
			`k8s.io is forbidden: User "u" cannot list it`},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := newServer(row.objects...)
			if row.refused {
				client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object,
					error) {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "resource.k8s.io",
						Resource: "resourceslices"}, "", fmt.Errorf(`User "u" cannot list it`))
				})
			}
			if _, err := fromNode(t, client, "gpu-1"); err == nil || err.Error() != row.want {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
	_, err := FromProfile("dgx", nodeconfig.Config{}, as)
	if want := `no profile "dgx"; known are a16-x4, a30-x2, `; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s…", err, want)
	}
}

// TestOnDemand: a node publishes possible partitions of one GPU, and a new node has those of all to offer.
func TestOnDemand(t *testing.T) {
	client := newServer()
	const config = head + "gpus: [{partitions: onDemand}]"
	publish(t, client, "dgx-h100", config)
	template, err := fromNode(t, client, long)
	if err != nil {
		t.Fatal(err)
	}
	names := func(of []*resourceapi.ResourceSlice) string {
		var all []string
		for _, d := range devicesOf(of) {
			all = append(all, d.Name)
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	want := names(fromProfile(t, "dgx-h100", "").Slices)
	if got := names(template.Slices); got != want {
		t.Errorf("from the node: got\n%s\nwant\n%s", got, want)
	}
	if got := names(fromProfile(t, "dgx-h100", config).Slices); got != want {
		t.Errorf("from the profile: got\n%s\nwant\n%s", got, want)
	}
}
