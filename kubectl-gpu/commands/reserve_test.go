// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

// kept returns a rule that keeps the device, or all of the pool, for the team.
func kept(team, pool, device string) *resourceapi.DeviceTaintRule {
	selector := &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: &pool}
	if device != "" {
		selector.Device = &device
	}
	return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "of-" + team},
		Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: selector, Taint: resourceapi.DeviceTaint{
			Key: cluster.ReservedTaint, Value: team, Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
}

// selected counts what the rules select: a pool, or the devices of each GPU.
func (s *apiServer) selected() string {
	count := map[string]int{}
	var all []string
	for _, r := range s.TaintRules {
		gpu, _, _ := strings.Cut(selectedBy(*r), "-mig-")
		if count[gpu]++; count[gpu] == 1 {
			all = append(all, gpu)
		}
	}
	for i, gpu := range all {
		all[i] = fmt.Sprintf("%d %s", count[gpu], gpu)
	}
	return strings.Join(all, ", ")
}

const toleration = `
tolerations:
- {key: gpu.nvidia.com/reserved, operator: Equal, value: vision, effect: NoSchedule}
`

func TestReserve(t *testing.T) {
	const header = "NODE GPU MODEL HELD BY\n"
	for _, row := range []struct {
		name   string
		change func(s *apiServer)
		args   string
		out    string // its beginning
		rules  string
		err    string
	}{
		{"an idle GPU first", nil, "vision --gpus 1 --model t4", header + "a gpu-af-00-0 Tesla T4 <none>\n" +
			"Kept for vision: 1 GPU, by 1 DeviceTaintRule.\nClaims of vision get them", "1 a/gpu-af-00-0", ""},
		{"all GPUs of a node", nil, "vision a", header +
			"a gpu-3b-00-0 Tesla T4 ml/serve (6Gi), ml/train (5Gi, 30%)\na gpu-af-00-0 Tesla T4 <none>\n" +
			"Kept for vision: 2 GPUs, by 1 DeviceTaintRule.\n" +
			"Held now: 1 of them, until the claims end that hold them.\n", "1 a/", ""},
		{"a GPU and its partitions", nil, "vision b/gpu-52-00-0",
			header + "b gpu-52-00-0 NVIDIA H100 80GB HBM3 <none>\n", "26 b/gpu-52-00-0", ""},
		{"a GPU and its partitions, which are published later", func(s *apiServer) {
			onDemand, err := nodeconfig.Parse([]byte("apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\n" +
				"gpus: [{partitions: onDemand}]"))
			if err != nil {
				t.Fatal(err)
			}
			s.Slices = append(published(t, "a", "t4-x2"), configured(t, "b", "dgx-h100", onDemand)...)
		}, "vision b/gpu-52-00-0",
			header + "b gpu-52-00-0 NVIDIA H100 80GB HBM3 <none>\n", "26 b/gpu-52-00-0", ""},
		{"a selector", nil, "vision --selector device.attributes['gpu.nvidia.com'].index==1",
			header + "a gpu-af-00-0 Tesla T4 <none>\nb gpu-43-00-0 NVIDIA H100 80GB HBM3 ml/small (1g.10gb)\n",
			"1 a/gpu-af-00-0, 26 b/gpu-43-00-0", ""},
		{"a dry run", nil, "vision b --dry-run", header + "b gpu-1b-00-0 NVIDIA H100 80GB HBM3 ml/whole\n", "", ""},
		{"GPUs that are kept, sick or of a node that takes no pods are passed over", func(s *apiServer) {
			s.TaintRules = append(s.TaintRules, kept("ml", "b", "gpu-52-00-0"))
			s.device(t, "b", "gpu-61-00-0").Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			s.Nodes[0].Spec.Unschedulable = true
		}, "vision --gpus 1", header + "b gpu-9d-00-0 NVIDIA H100 80GB HBM3 <none>\n",
			"1 b/gpu-52-00-0, 26 b/gpu-9d-00-0", ""},
		{"more than there are", nil, "vision --gpus 3 --model t4", "", "",
			"nothing is kept: --gpus 3: of 2 GPUs selected, 2 can be kept"},
		{"a GPU that is kept already", func(s *apiServer) {
			s.TaintRules = append(s.TaintRules, kept("ml", "a", "gpu-3b-00-0"))
		}, "vision a", "", "1 a/gpu-3b-00-0",
			"a/gpu-3b-00-0 is kept for ml already; " + endOf("ml") + " ends what this command began"},
		{"more rules than one run writes", func(s *apiServer) {
			s.TaintRules = append(s.TaintRules, kept("ml", "b", "gpu-1b-00-0"))
			s.Slices = append(s.Slices, published(t, "c", "dgx-h100")...)
			s.Nodes = append(s.Nodes, node("c"))
			s.TaintRules = append(s.TaintRules, kept("ml", "c", "gpu-1b-00-0"))
		}, "vision --gpus 14 --model h100", "", "1 b/gpu-1b-00-0, 1 c/gpu-1b-00-0",
			"the 14 GPUs have 364 devices with their partitions, and at most 200 are kept at once"},
		{"no team", nil, "--gpus 1", "", "", "name the team or namespace"},
		{"no name of a team", nil, "Vision_1 a", "", "", `"Vision_1" is no name of a team: a lowercase RFC 1123 label`},
		{"no GPUs are named", nil, "vision", "", "", "say which GPUs to keep"},
		{"a negative number", nil, "vision --gpus -1", "", "", "--gpus -1: write a positive number"},
		{"a misspelt node", nil, "vision bb", "", "", `there is no node or GPU "bb"`},
		{"a selector with a mistake", nil, "vision --selector device.attribute", "", "",
			"--selector: compilation failed"},
		{"a selector that fails", nil, "vision --selector device.attributes['x'].y=='z'", "", "",
			"--selector: a/gpu-3b-00-0: "},
		{"a selector that no GPU meets", nil, "vision --selector device.driver=='x'", "", "",
			"nothing is kept: no GPU has these names and flags"},
		{"no DeviceTaintRules", func(s *apiServer) { s.TaintRules = nil }, "vision a", "", "",
			"Kubernetes 1.37 or newer"},
		{"claims that the user may not read", func(s *apiServer) { s.forbidden = []string{claimsPath} }, "vision a", "",
			"", `the missing right is the verb "list" on resourceclaims`},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newCluster(t)
			s.TaintRules = []*resourceapi.DeviceTaintRule{}
			if row.change != nil {
				row.change(s)
			}
			out, _, err := s.run(t, append([]string{"reserve"}, strings.Fields(row.args)...)...)
			if !strings.HasPrefix(squeezed(out), row.out) || row.out == "" && out != "" {
				t.Errorf("got\n%s\nwant first\n%s", squeezed(out), row.out)
			}
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
			if got := s.selected(); got != row.rules {
				t.Errorf("got rules for %s, want %s", got, row.rules)
			}
			wanted := err == nil && !strings.Contains(row.args, "--dry-run")
			if strings.Contains(out, toleration) != wanted {
				t.Errorf("got\n%s\nwant the toleration: %t", out, wanted)
			}
		})
	}
}

// TestReservations: what one command has written, the others show, until it is ended.
func TestReservations(t *testing.T) {
	s := newCluster(t)
	s.TaintRules = []*resourceapi.DeviceTaintRule{}
	run := func(args string) string {
		t.Helper()
		out, errOut, err := s.run(t, strings.Fields(args)...)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		return squeezed(out + errOut)
	}
	same := func(args, want string) {
		t.Helper()
		if got := strings.TrimSpace(run(args)); !strings.Contains(got, want) {
			t.Errorf("%s: got\n%s\nwant in it\n%s", args, got, want)
		}
	}
	same("reserve", "No GPUs are kept.")
	run("reserve vision --gpus 1 --model t4")
	run("reserve ml b")
	same("reserve", "TEAM GPUS HELD AGE NAMES\nml 8 2 60m b/gpu-1b-00-0, b/gpu-43-00-0, b/gpu-52-00-0, and 5 more\n"+
		"vision 1 0 60m a/gpu-af-00-0")
	same("reserve -o name", "ml\nvision")
	same("ls a", "a gpu-af-00-0 Tesla T4 fractional ░░░░░░░░░░ 0/15Gi ░░░░░░░░░░ 0% <none> kept for vision <none>")
	same("describe a/gpu-af-00-0", "Health: kept by kubectl gpu reserve: only claims that tolerate the taint get it")
	same("models --model t4", "Tesla T4 15Gi 7.5 2 0 ")
	run("reserve vision --gpus 1 --model t4") // again: one more
	same("reserve", "vision 2 1 ")
	var list struct{ Items []Reservation }
	if err := json.Unmarshal([]byte(run("reserve -o json")), &list); err != nil || len(list.Items) != 2 ||
		len(list.Items[1].Rules) != 2 || list.Items[1].GPUs[0] != "a/gpu-3b-00-0" {
		t.Errorf("got %+v, error %v, want two reservations, and two rules of vision", list, err)
	}
	if got := s.TaintRules[0].Labels[cluster.ReservedTaint]; got != "vision" { // by which it is ended
		t.Errorf("got the label %q, want the team", got)
	}
}

// TestReserveUndone: what cannot be kept as a whole leaves no rules.
func TestReserveUndone(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "devicetaintrules"}, "x", errors.New("no"))
	for _, row := range []struct {
		name   string
		create func(n int, cancel func(), tracker clienttesting.ObjectTracker) error // the answer to the n-th rule
		err    string
		remain []string
	}{
		{"all are created", nil, "", []string{"r-0", "r-1", "r-2"}},
		{"the second is refused", func(n int, _ func(), _ clienttesting.ObjectTracker) error {
			if n == 2 {
				return forbidden
			}
			return nil
		}, "is forbidden", nil},
		{"the API server creates the second, and then fails", func(n int, _ func(),
			tracker clienttesting.ObjectTracker) error {
			if n == 2 {
				rule := kept("vision", "a", "y")
				rule.Name = "r-1"
				return errors.Join(tracker.Add(rule), apierrors.NewTimeoutError("x", 0))
			}
			return nil
		}, "x", nil},
		{"Ctrl-C at the second", func(n int, cancel func(), _ clienttesting.ObjectTracker) error {
			if n == 2 {
				cancel()
			}
			return nil
		}, "context canceled", nil},
		{"Ctrl-C at the last", func(n int, cancel func(), _ clienttesting.ObjectTracker) error {
			if n == 3 {
				cancel()
			}
			return nil
		}, "context canceled", nil},
		{"another run keeps the node meanwhile", func(n int, _ func(), tracker clienttesting.ObjectTracker) error {
			if n == 2 {
				return tracker.Add(kept("ml", "a", ""))
			}
			return nil
		}, "some of the GPUs are kept for ml, by the DeviceTaintRule of-ml", []string{"of-ml"}},
		{"another run keeps another node meanwhile", func(n int, _ func(), tracker clienttesting.ObjectTracker) error {
			if n == 2 {
				return tracker.Add(kept("ml", "b", ""))
			}
			return nil
		}, "", []string{"of-ml", "r-0", "r-1", "r-2"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := fake.NewClientset()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			client.PrependReactor("create", "devicetaintrules",
				func(clienttesting.Action) (bool, runtime.Object, error) {
					n++
					if row.create == nil {
						return false, nil, nil
					}
					err := row.create(n, cancel, client.Tracker())
					return err != nil, nil, err
				})
			// The fake client does not look at the context; a real one ends the list.
			client.PrependReactor("list", "devicetaintrules",
				func(clienttesting.Action) (bool, runtime.Object, error) { return ctx.Err() != nil, nil, ctx.Err() })
			var rules []*resourceapi.DeviceTaintRule
			for i, device := range []string{"x", "y", "z"} {
				rule := kept("vision", "a", device)
				rule.Name = fmt.Sprintf("r-%d", i)
				rules = append(rules, rule)
			}
			err := keep(ctx, client, rules)
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
			cancel()
			var remain []string
			left, err := client.Tracker().List(resourceapi.SchemeGroupVersion.WithResource("devicetaintrules"),
				resourceapi.SchemeGroupVersion.WithKind("DeviceTaintRule"), "")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range left.(*resourceapi.DeviceTaintRuleList).Items {
				remain = append(remain, r.Name)
			}
			if !slices.Equal(remain, row.remain) {
				t.Errorf("got the rules %v afterwards, want %v", remain, row.remain)
			}
		})
	}
}

// TestKeptIsNotBad: a row of ls is red for a sick GPU, and not for one that is kept.
func TestKeptIsNotBad(t *testing.T) {
	g := &GPU{Taints: []Taint{{Key: cluster.ReservedTaint, Value: "vision",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	if gpuTable([]*GPU{g}, filter{}, output{}).rows[0].bad {
		t.Error("a GPU that is kept is bad")
	}
	g.Taints[0].Key = "gpu.nvidia.com/xid"
	if !gpuTable([]*GPU{g}, filter{}, output{}).rows[0].bad {
		t.Error("a sick GPU is not bad")
	}
}
