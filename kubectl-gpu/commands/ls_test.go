// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	slicesPath = "/apis/resource.k8s.io/v1/resourceslices"
	claimsPath = "/apis/resource.k8s.io/v1/resourceclaims"
	nodesPath  = "/api/v1/nodes"
)

// squeezed returns the text with single spaces, without spaces at the ends of lines.
func squeezed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestLs(t *testing.T) {
	const header = "NODE GPU MODEL SHARING MEMORY CORES PARTITIONS TAINTS HELD BY\n"
	for _, row := range []struct {
		name   string
		change func(s *apiServer)
		args   string
		want   string // output; of a table its first lines
		err    string // "": no error
	}{
		{"shares of a GPU", nil, "a", header +
			"a gpu-3b-00-0 Tesla T4 fractional ███████░░░ 11Gi/15Gi ███░░░░░░░ 30% <none> <none> " +
			"ml/serve (6Gi), ml/train (5Gi, 30%)\n" +
			"a gpu-af-00-0 Tesla T4 fractional ░░░░░░░░░░ 0/15Gi ░░░░░░░░░░ 0% <none> <none> <none>", ""},
		{"a whole GPU and a partition", nil, "b --no-headers",
			"b gpu-1b-00-0 NVIDIA H100 80GB HBM3 fractional ██████████ 79.6Gi/79.6Gi ██████████ 100% <none> <none> " +
				"ml/whole\n" +
				"b gpu-43-00-0 NVIDIA H100 80GB HBM3 fractional █░░░░░░░░░ 9.8Gi/79.6Gi █░░░░░░░░░ 12% 1x1g.10gb " +
				"<none> " +
				"ml/small (1g.10gb)", ""},
		{"a taint, and a node that takes no pods", func(s *apiServer) {
			s.device(t, "a", "gpu-af-00-0").Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			s.Nodes[0].Spec.Unschedulable = true
		}, "a", header +
			"a gpu-3b-00-0 Tesla T4 fractional ███████░░░ 11Gi/15Gi ███░░░░░░░ 30% <none> node SchedulingDisabled " +
			"ml/serve (6Gi), ml/train (5Gi, 30%)\n" +
			"a gpu-af-00-0 Tesla T4 fractional ░░░░░░░░░░ 0/15Gi ░░░░░░░░░░ 0% <none> node SchedulingDisabled, " +
			"gpu.nvidia.com/xid=79:NoSchedule <none>", ""},
		{"an obsolete slice has no say", func(s *apiServer) {
			old := s.Slices[0].DeepCopy()
			old.Name, old.Spec.Devices[1].Name = "old", "gpu-ff-00-0"
			s.Slices[0].Spec.Pool.Generation = 2
			s.Slices = append(s.Slices, old)
		}, "a -o name", "a/gpu-3b-00-0\na/gpu-af-00-0", ""},
		{"GPUs that claims of a namespace hold", func(s *apiServer) { s.Claims[0].Namespace = "other" },
			"-n other -o name", "a/gpu-3b-00-0", ""},
		{"all namespaces", nil, "a -A -n other -o name", "a/gpu-3b-00-0\na/gpu-af-00-0", ""},
		{"GPUs of a model", nil, "--model t4 -o name", "a/gpu-3b-00-0\na/gpu-af-00-0", ""},
		{"GPUs of another driver", func(s *apiServer) { s.Slices = append(s.Slices, foreign()) },
			"--driver gpu.example.com", header +
				"a card-0 LATEST-GPU <none> ░░░░░░░░░░ 0/80Gi ░░░░░░░░░░ 0% <none> <none> <none>", ""},
		{"a GPU of no single node, by its pool", func(s *apiServer) {
			s.Slices = append(s.Slices, foreign())
			of := &s.Slices[len(s.Slices)-1].Spec
			of.Pool.Name, of.NodeName, of.AllNodes = "rack", nil, ptr.To(true)
		}, "rack -o name", "rack/card-0", ""},
		{"a GPU over the network", func(s *apiServer) {
			s.Slices = append(s.Slices, overNetwork())
			s.Claims[0].Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{
				Driver: "remote.gpu.nvidia.com", Pool: "remote", Device: "server-0",
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse("20Gi")}}}
		}, "remote --no-headers", "remote server-0 NVIDIA H100 remote: b ██░░░░░░░░ 20Gi/80Gi ░░░░░░░░░░ 0% " +
			"<none> <none> ml/train (20Gi)", ""},
		{"a driver without slices", nil, "--driver nic.example.com", "",
			`no ResourceSlice is of the driver "nic.example.com"; the drivers of the cluster are: gpu.nvidia.com`},
		{"no right to read slices", func(s *apiServer) { s.forbidden = []string{slicesPath} }, "", "",
			`the missing right is the verb "list" on resourceslices.resource.k8s.io in a ClusterRole`},
		{"no DRA on the API server", func(s *apiServer) {
			s.missing = []string{slicesPath, claimsPath}
		}, "", "", "Kubernetes 1.34 or newer is needed"},
		{"no right to read claims of other namespaces", func(s *apiServer) { s.forbidden = []string{claimsPath} }, "a",
			header + "a gpu-3b-00-0 Tesla T4 fractional ?/15Gi ? <none> <none> ml/serve (6Gi), ml/train (5Gi, 30%)\n" +
				"a gpu-af-00-0 Tesla T4 fractional ?/15Gi ? <none> <none> ?", "only those of namespace ml are known"},
		{"no right to read nodes", func(s *apiServer) { s.forbidden = []string{nodesPath} }, "a -o name",
			"a/gpu-3b-00-0\na/gpu-af-00-0",
			"read nodes: the missing right is the verb \"list\" on nodes in a ClusterRole\na ClusterRole to copy: " +
				"https://"},
		{"no such node", nil, "nod-a", "", `there is no node or GPU "nod-a"`},
		{"a misspelt GPU", nil, "a/gpu-3b-00-1", "", `there is no node or GPU "a/gpu-3b-00-1"; did you mean a/gpu-3b-00-0?`},
		{"a node without GPUs", func(s *apiServer) { s.Nodes = append(s.Nodes, node("c")) }, "c", "",
			"node c has no GPUs that a DRA driver publishes"},
		{"no such namespace", nil, "-n nowhere", "", `there is no namespace "nowhere"`},
		{"a namespace that holds none", nil, "-n empty -o name", "", ""},
		{"no such model", nil, "--model h200", "",
			`no GPU is of a model with "h200" in its name; the models are NVIDIA H100 80GB HBM3, Tesla T4`},
		{"a GPU by its name", nil, "a/gpu-3b-00-0 -o name", "a/gpu-3b-00-0", ""},
		{"a GPU by its device name", nil, "gpu-af-00-0 -o name", "a/gpu-af-00-0", ""},
		{"a share that has a whole GPU", func(s *apiServer) {
			d := s.device(t, "a", "gpu-af-00-0")
			d.AllowMultipleAllocations, d.Attributes["sharing"] = nil, resourceapi.DeviceAttribute{
				StringValue: ptr.To("exclusive")}
			c := claim("small", "a", "gpu-af-00-0")
			c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu",
				Exactly: &resourceapi.ExactDeviceRequest{
					Capacity: &resourceapi.CapacityRequirements{
						Requests: map[resourceapi.QualifiedName]resource.Quantity{
							"memory": resource.MustParse("5Gi")}}}}}
			s.Claims = append(s.Claims, c)
		}, "gpu-af-00-0 --no-headers", "a gpu-af-00-0 Tesla T4 exclusive ██████████ 15Gi/15Gi ██████████ 100% " +
			"<none> <none> " +
			"ml/small (all: asked for memory 5Gi, and the GPU has no shares)", ""},
		{"a replicated GPU", func(s *apiServer) {
			d := s.device(t, "a", "gpu-af-00-0")
			d.Attributes["sharing"] = resourceapi.DeviceAttribute{StringValue: ptr.To("replicated")}
			d.Capacity["shares"] = resourceapi.DeviceCapacity{Value: resource.MustParse("4")}
		}, "gpu-af-00-0 --no-headers", "a gpu-af-00-0 Tesla T4 replicated (4) ", ""},
		{"a GPU in a virtual machine", func(s *apiServer) {
			s.forVMs(t, "a", "gpu-3b-00-0", "gpu-af-00-0")
			s.Claims = append(s.Claims, claim("vm", "a", "gpu-af-00-0-vfio"))
		}, "a --no-headers", "a gpu-3b-00-0 Tesla T4 fractional ███████░░░ 11Gi/15Gi ███░░░░░░░ 30% <none> <none> " +
			"ml/serve (6Gi), ml/train (5Gi, 30%)\n" +
			"a gpu-af-00-0 Tesla T4 fractional ██████████ 15Gi/15Gi ██████████ 100% <none> <none> ml/vm (vm)", ""},
		{"GPUs that only virtual machines can have", func(s *apiServer) {
			s.forVMs(t, "b", "gpu-1b-00-0", "gpu-43-00-0")
			s.Slices = slices.DeleteFunc(s.Slices, func(s *resourceapi.ResourceSlice) bool {
				return s.Spec.Pool.Name == "b" && s.Name != "vm"
			})
			s.Claims = append(s.Claims[:2], claim("vm", "b", "gpu-43-00-0-vfio"))
		}, "b --no-headers",
			"b gpu-1b-00-0 NVIDIA H100 80GB HBM3 vm only ░░░░░░░░░░ 0/79.6Gi ░░░░░░░░░░ 0% <none> <none> " +
				"<none>\n" +
				"b gpu-43-00-0 NVIDIA H100 80GB HBM3 vm only ██████████ 79.6Gi/79.6Gi ██████████ 100% <none> <none> " +
				"ml/vm (vm)", ""},
		{"a vGPU that the driver has made, beside one that somebody else has", func(s *apiServer) {
			s.vgpus(t, "a", "gpu-af-00-0", "T4-4Q", "gpu-af-00-0-vgpu-by-hand", "gpu-af-00-0-vgpu-t4-4q-0")
			s.Claims = append(s.Claims, claim("vm", "a", "gpu-af-00-0-vgpu-t4-4q-0"))
		}, "gpu-af-00-0 --no-headers", "a gpu-af-00-0 Tesla T4 fractional ██░░░░░░░░ 4Gi/15Gi ██░░░░░░░░ 25% " +
			"2xT4-4Q (1 free) <none> ml/vm (T4-4Q)", ""},
		{"an unknown format", nil, "-o table", "", `output format "table", allowed formats are: json,kyaml,name,wide,yaml`},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newCluster(t)
			if row.change != nil {
				row.change(s)
			}
			out, errOut, err := s.run(t, append([]string{"ls"}, strings.Fields(row.args)...)...)
			if got := squeezed(out); !strings.HasPrefix(got, row.want) || row.want == "" && got != "" {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
			if strings.Contains("\n"+out, "\n ") {
				t.Errorf("got\n%s\nwant that no line begins with a space", out)
			}
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
			if errOut != "" {
				t.Errorf("got %q on standard error, want nothing", errOut)
			}
			if got := slices.Collect(maps.Keys(s.methods)); len(got) > 1 || len(got) == 1 && got[0] != "GET" {
				t.Errorf("got requests %v, want GET only", got)
			}
		})
	}
}

// foreign returns a slice of another driver, whose devices do not say that they are GPUs.
func foreign() *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}
	s.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.example.com", NodeName: ptr.To("a"),
		Pool: resourceapi.ResourcePool{Name: "a", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "card-0",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"model": {StringValue: ptr.To("LATEST-GPU")}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory": {Value: resource.MustParse("80Gi")}}}}}
	return s
}

// overNetwork returns a slice with a GPU that node b serves.
func overNetwork() *resourceapi.ResourceSlice {
	s := foreign()
	s.Spec.Driver, s.Spec.NodeName = "remote.gpu.nvidia.com", nil
	s.Spec.Pool.Name, s.Spec.NodeSelector = "remote", &corev1.NodeSelector{}
	s.Spec.Devices = []resourceapi.Device{{Name: "server-0", AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"gpu.nvidia.com/type":        {StringValue: ptr.To("mig")},
			"gpu.nvidia.com/productName": {StringValue: ptr.To("NVIDIA H100")},
			"gpu.nvidia.com/remoteNode":  {StringValue: ptr.To("b")}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("80Gi")}}}}
	return s
}

// The driver is about to publish the slices of a pool.
// Only GPUs in an NVLink fabric of several nodes are in a clique.
func TestLsCliques(t *testing.T) {
	s := newCluster(t)
	for _, name := range []string{"r1", "r2"} {
		s.Nodes = append(s.Nodes, node(name))
		s.Slices = append(s.Slices, published(t, name, "gb200-nvl4")...)
	}
	s.Claims = append(s.Claims, claim("rank", "r2", "gpu-0008-01-00-0", "memory=189471Mi", "cores=0"))
	const clique = "00000000-0000-0000-0000-000000000000.32766"
	for _, row := range []struct{ name, args, want string }{
		{"two nodes of a rack, beside others", "", "\n\nCLIQUE GPUS FREE NODES\n" + clique + " 8 7 r1, r2\n"},
		{"one node of it", "r1 -o wide", "\n\nCLIQUE GPUS FREE NODES\n" + clique + " 4 4 r1\n"},
		{"none of the GPUs", "a", ""},
		{"for programs", "r1 --no-headers", ""},
	} {
		out, _, err := s.run(t, append([]string{"ls"}, strings.Fields(row.args)...)...)
		_, got, _ := strings.Cut(squeezed(out)+"\n", "\n\n")
		if got != "" {
			got = "\n\n" + strings.TrimRight(got, "\n") + "\n"
		}
		if err != nil || got != row.want {
			t.Errorf("%s: got %q, %v, want %q", row.name, got, err, row.want)
		}
	}
	s.forbidden = []string{claimsPath}
	if out, _, _ := s.run(t, "ls", "r1"); !strings.Contains(squeezed(out), clique+" 4 ? r1") {
		t.Errorf("without the right to read claims: got\n%s", out)
	}
}

func TestIncompletePool(t *testing.T) {
	s := newCluster(t)
	s.Slices[0].Spec.Pool.ResourceSliceCount = 3
	out, errOut, err := s.run(t, "ls", "a", "-o", "name")
	if want := "a/gpu-3b-00-0\na/gpu-af-00-0\n"; out != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	want := "Warning: the driver gpu.nvidia.com has published 1 of 3 slices of the pool a: " +
		"no claim gets anything of it\n"
	if errOut != want {
		t.Errorf("got %q, want %q", errOut, want)
	}
}

func TestLsJSON(t *testing.T) {
	out, _, err := newCluster(t).run(t, "ls", "a", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Kind  string
		Items []GPU
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "GPUList" || len(got.Items) != 2 {
		t.Fatalf("got a %s of %d, want a GPUList of 2", got.Kind, len(got.Items))
	}
	holders := got.Items[0].Holders
	if len(holders) != 2 {
		t.Fatalf("got holders %v, want 2", holders)
	}
	held := fmt.Sprint(holders[1].Claim, " ", holders[1].Memory, " ", holders[1].Cores, " ", holders[1].Pods)
	if want := "train 5368709120 30 [pod-train]"; held != want {
		t.Errorf("got %q, want %q", held, want)
	}
	if used := got.Items[1].Memory.Used; used == nil || *used != 0 {
		t.Errorf("got used memory %v of a free GPU, want 0", used)
	}
}

func TestCompletion(t *testing.T) {
	s := newCluster(t)
	for args, want := range map[string]string{"ls|": "a\nb\n:4\n", "ls|a|": "b\n:4\n",
		"ls|--model|": "NVIDIA H100 80GB HBM3\nTesla T4\n:4\n", "top|": "a\nb\n:4\n", "reserve|": ":4\n",
		"reserve|vision|b": "b\n:4\n", "describe|a/gpu-3": "a/gpu-3b-00-0\n:4\n",
		"ls|-o|": "json\nyaml\nkyaml\nwide\nname\n:4\n"} {
		out, _, err := s.run(t, append([]string{"__complete"}, strings.Split(args, "|")...)...)
		if err != nil || out != want {
			t.Errorf("%s: got %q, %v, want %q", args, out, err, want)
		}
	}
}

func TestBar(t *testing.T) {
	for _, row := range []struct {
		used, total int64
		want        string
	}{{0, 100, "░░░░░░░░░░"}, {1, 100, "█░░░░░░░░░"}, {99, 100, "█████████░"}, {100, 100, "██████████"},
		{-100, 100, "░░░░░░░░░░"}} {
		if got := bar(Amount{Total: row.total, Used: &row.used}); got != row.want {
			t.Errorf("%d of %d: got %s, want %s", row.used, row.total, got, row.want)
		}
	}
}

func TestWithin(t *testing.T) {
	all := table{header: []string{"NODE", "MODEL", "SHARING", "MEMORY", "TAINTS", "PARTITIONS", "HELD BY"},
		optional: []string{"SHARING", "PARTITIONS", "MODEL"}, rows: []row{
			{[]string{"node-1", "H100", "fractional", "█░ 5Gi/80Gi", none, "1x1g.10gb", "ns/claim"}, true},
			{[]string{"node-2", "H100", "fractional", "░░ 0/80Gi", none, none, none}, false}}}
	for _, row := range []struct {
		columns int
		header  string
		memory  string
	}{
		{100, "NODE MODEL SHARING MEMORY TAINTS PARTITIONS HELD BY", "█░ 5Gi/80Gi"},
		{72, "NODE MODEL SHARING MEMORY TAINTS PARTITIONS HELD BY", "5Gi/80Gi"},
		{65, "NODE MODEL SHARING MEMORY PARTITIONS HELD BY", "5Gi/80Gi"},
		{50, "NODE MODEL MEMORY PARTITIONS HELD BY", "5Gi/80Gi"},
		{40, "NODE MODEL MEMORY HELD BY", "5Gi/80Gi"},
		{10, "NODE MEMORY HELD BY", "5Gi/80Gi"},
	} {
		got := all.within(row.columns)
		memory := got.rows[0].cells[slices.Index(got.header, "MEMORY")]
		if header := strings.Join(got.header, " "); header != row.header || memory != row.memory || !got.rows[0].bad {
			t.Errorf("%d columns: got %s and %s, want %s and %s", row.columns, header, memory, row.header, row.memory)
		}
	}
	all.rows[1].cells[6] = strings.Repeat("x", 90)
	if got := all.within(100); len(got.header) != 7 {
		t.Errorf("long names of holders: got %v, want all columns", got.header)
	}
	all.rows[1].cells[4] = strings.Repeat("y", 50)
	if got := all.within(120).rows[1].cells[4]; got != strings.Repeat("y", 29)+"…" {
		t.Errorf("a long taint: got %s, want 30 characters", got)
	}
	if len(all.header) != 7 || len(all.rows[0].cells) != 7 || all.rows[0].cells[3] != "█░ 5Gi/80Gi" {
		t.Errorf("the table has changed: %v", all)
	}
	if got, want := cut("123456\n█████\n", 5), "1234…\n█████\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestColoured(t *testing.T) {
	got := coloured("A\n██░ x\nbad ██\n", table{rows: []row{{}, {bad: true}}}, output{})
	want := bold + "A\n" + normal + yellow + "██" + normal + "░ x\n" + red + "bad ██" + normal + "\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
