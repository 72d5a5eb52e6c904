// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"go/build"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	oracle "github.com/gpudra/gpu-dra-driver/test/bill"
)

var configMap = types.NamespacedName{Namespace: "gpu-dra-driver", Name: "bill"}

// chaos is a cluster as the API server has it, the leader that counts, and the oracle that replays the events.
type chaos struct {
	t      *testing.T
	random *rand.Rand
	now    time.Time
	api    client.Client // of nodes and of the ConfigMap
	oracle *oracle.Oracle
	leader *biller // nil: there is none

	slices map[string]*resourceapi.ResourceSlice
	nodes  map[string][]string // names of the slices that the plugin of the node publishes
	away   map[string]bool     // nodes whose plugin is away
	claims map[string]*resourceapi.ResourceClaim
	rules  map[string]*resourceapi.DeviceTaintRule
	taken  map[string]string // the devices of a GPU that claims hold: whole, shares or partitions
	parts  bool              // the next claim gets a partition
	next   int
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	c := &chaos{t: t, random: rand.New(rand.NewPCG(seed, 0)), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		api:    newAPI(nil),
		slices: map[string]*resourceapi.ResourceSlice{}, nodes: map[string][]string{}, away: map[string]bool{},
		claims: map[string]*resourceapi.ResourceClaim{}, rules: map[string]*resourceapi.DeviceTaintRule{},
		taken: map[string]string{}}
	c.oracle = oracle.New(c.now)
	for i := range 12 {
		c.addNode(i)
	}
	return c
}

// lead starts a controller, which reads what there is.
func (c *chaos) lead() {
	v := cluster.New(clustertest.Driver)
	for _, s := range c.slices {
		if !c.away[*s.Spec.NodeName] {
			v.SetSlice(v.SlimSlice(s))
		}
	}
	for _, claim := range c.claims {
		v.SetClaim(cluster.SlimClaim(claim))
	}
	for _, r := range c.rules {
		v.SetTaintRule(r)
	}
	c.leader = &biller{name: configMap, Controller: &feature.Controller{View: v, Direct: c.api,
		Guard: feature.NewGuard()}}
	c.look()
}

// die ends the leader: gracefully it writes, and otherwise not.
func (c *chaos) die(gracefully bool) {
	if c.leader != nil && gracefully && c.leader.account != nil {
		if err := c.leader.store(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
	}
	c.leader = nil
}

func (c *chaos) look() {
	if c.leader == nil {
		return
	}
	if err := c.leader.round(c.t.Context(), c.now); err != nil && c.leader.account != nil {
		c.t.Fatal(err)
	}
}

// addNode adds a node of one of three kinds: partitions, shares, whole GPUs.
func (c *chaos) addNode(number int) {
	profile := []string{"dgx-h100", "t4-x2", "l40s-x4"}[number%3]
	n := clustertest.SimNode{Name: fmt.Sprint("node-", number), Profile: profile}
	switch number % 3 {
	case 0:
		n.Use.Partitions = gpu.PartitionsDynamic
	case 2:
		n.Use.Sharing = gpu.Exclusive
	}
	if err := c.api.Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}); err != nil {
		c.t.Fatal(err)
	}
	c.oracle.NodeAdded(n.Name)
	c.nodes[n.Name] = nil
	for _, s := range clustertest.Slices(c.t, n) {
		for i := range s.Spec.Devices { // simulated nodes of one profile have the same UUIDs
			for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
				if a, ok := s.Spec.Devices[i].Attributes[name]; ok {
					s.Spec.Devices[i].Attributes[name] = resourceapi.DeviceAttribute{
						StringValue: ptr.To(n.Name + *a.StringValue)}
				}
			}
		}
		c.nodes[n.Name] = append(c.nodes[n.Name], s.Name)
		c.setSlice(s)
	}
}

func (c *chaos) setSlice(s *resourceapi.ResourceSlice) {
	c.slices[s.Name] = s
	c.oracle.Slice(s.Name, s)
	if c.leader != nil {
		c.leader.View.SetSlice(c.leader.View.SlimSlice(s))
	}
}

func (c *chaos) setClaim(name string, claim *resourceapi.ResourceClaim) {
	c.claims[name] = claim
	c.oracle.Claim(name, claim)
	if c.leader != nil {
		c.leader.View.SetClaim(cluster.SlimClaim(claim))
	}
}

func (c *chaos) deleteClaim(name string) {
	claim := c.claims[name]
	delete(c.claims, name)
	r := claim.Status.Allocation.Devices.Results[0]
	key := r.Pool + "/" + gpu.ParentName(r.Device)
	c.taken[key] = strings.Replace(c.taken[key], claim.Annotations["takes"], "", 1)
	c.oracle.Claim(name, nil)
	if c.leader != nil {
		c.leader.View.DeleteClaim(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	}
}

// plugin takes the slices of a node away, as the kubelet does when the plugin is away, or brings them back.
func (c *chaos) plugin(node string) {
	c.away[node] = !c.away[node]
	for _, name := range c.nodes[node] {
		if !c.away[node] {
			c.setSlice(c.slices[name])
			continue
		}
		c.oracle.Slice(name, nil)
		if c.leader != nil {
			c.leader.View.DeleteSlice(name)
		}
	}
}

// allocate gives a new claim a random device that is free.
func (c *chaos) allocate() {
	s := c.slices[pick(c.random, slices.Sorted(maps.Keys(c.slices)))]
	if len(s.Spec.Devices) == 0 || c.away[*s.Spec.NodeName] {
		return
	}
	d := s.Spec.Devices[c.random.IntN(len(s.Spec.Devices))]
	kind := *d.Attributes["type"].StringValue
	key := s.Spec.Pool.Name + "/" + gpu.ParentName(d.Name)
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: clustertest.Driver, Pool: s.Spec.Pool.Name,
		Device: d.Name}
	var takes string
	taken := c.taken[key]
	switch {
	case (kind == "mig") != c.parts: // so that some GPUs are full
		return
	case kind == "gpu" && d.AllowMultipleAllocations != nil && c.random.IntN(3) > 0 && strings.Trim(taken, "s") == "" &&
		len(taken) < 4: // a quarter
		memory := d.Capacity["memory"].Value
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(memory.Value()/4, resource.BinarySI), "cores": resource.MustParse("25")}
		r.ShareID, takes = ptr.To(types.UID(fmt.Sprint(c.next))), "s"
	case kind == "gpu" && taken == "":
		takes = "whole"
	case kind == "mig" && gpu.ParentName(d.Name) == "gpu-1b-00-0":
		profile, place := gpu.PartitionProfile(d.Name), d.Name[len(d.Name)-1:]
		takes = map[string]string{"1g10gb": place}[profile]
		if profile == "3g40gb" {
			takes = map[string]string{"0": "0123", "4": "4567"}[place]
		}
		if takes == "" || strings.ContainsAny(taken, takes+"sw") {
			return
		}
	default:
		return
	}
	c.taken[key] += takes
	c.next++
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pick(c.random, []string{"a", "b", "c"}), Name: fmt.Sprint("claim-", c.next),
		Annotations: map[string]string{"takes": takes}, OwnerReferences: []metav1.OwnerReference{{
			Kind: "Pod", Name: fmt.Sprint("pod-", c.next), Controller: ptr.To(true)}}},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}}}
	c.setClaim(claim.Name, claim)
}

// markIdle marks a claim as idle, or as used.
func (c *chaos) markIdle(name string) {
	claim := c.claims[name].DeepCopy()
	r := claim.Status.Allocation.Devices.Results[0]
	if c.away[r.Pool] {
		return // nobody measures it
	}
	status := metav1.ConditionTrue
	if len(claim.Status.Devices) > 0 && claim.Status.Devices[0].Conditions[0].Status == metav1.ConditionTrue {
		status = metav1.ConditionFalse
	}
	device := resourceapi.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device,
		Conditions: []metav1.Condition{{Type: "Idle", Status: status, LastTransitionTime: metav1.NewTime(c.now)}}}
	if r.ShareID != nil {
		device.ShareID = ptr.To(string(*r.ShareID))
	}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{device}
	c.setClaim(name, claim)
}

// taint changes the taints of a random whole GPU: none, sick, lost, NoExecute, or of a rule that keeps it for a team.
func (c *chaos) taint() {
	s := c.slices[pick(c.random, slices.Sorted(maps.Keys(c.slices)))]
	i := slices.IndexFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		return *d.Attributes["type"].StringValue == "gpu" && c.random.IntN(4) == 0
	})
	if i < 0 || c.away[*s.Spec.NodeName] {
		return
	}
	if c.random.IntN(3) == 0 {
		name := s.Spec.Devices[i].Name + "-" + s.Spec.Pool.Name
		var rule *resourceapi.DeviceTaintRule
		if c.rules[name] == nil {
			rule = &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{
					Pool: &s.Spec.Pool.Name, Device: &s.Spec.Devices[i].Name}, Taint: resourceapi.DeviceTaint{
					Key: "gpu.nvidia.com/reserved", Value: "vision", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
		}
		c.rules[name] = rule
		c.oracle.Rule(name, rule)
		if rule == nil {
			delete(c.rules, name)
		}
		switch {
		case c.leader == nil:
		case rule == nil:
			c.leader.View.DeleteTaintRule(name)
		default:
			c.leader.View.SetTaintRule(rule)
		}
		return
	}
	s = s.DeepCopy()
	s.Spec.Devices[i].Taints = [][]resourceapi.DeviceTaint{nil, nil,
		{{Key: "gpu.nvidia.com/unhealthy", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
		{{Key: "gpu.nvidia.com/gpu-lost", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
		{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoExecute}},
		{{Key: "gpu.nvidia.com/unmonitored", Effect: resourceapi.DeviceTaintEffectNone}},
	}[c.random.IntN(6)]
	c.setSlice(s)
}

// deleteNode deletes a node without claims: its slices go with it.
func (c *chaos) deleteNode(node string) {
	for _, claim := range c.claims {
		if claim.Status.Allocation.Devices.Results[0].Pool == node {
			return
		}
	}
	if err := c.api.Delete(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
		c.t.Fatal(err)
	}
	for _, name := range c.nodes[node] {
		delete(c.slices, name)
		c.oracle.Slice(name, nil)
		if c.leader != nil {
			c.leader.View.DeleteSlice(name)
		}
	}
	c.oracle.NodeDeleted(node)
	delete(c.nodes, node)
	delete(c.away, node)
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// step lets one thing happen.
func (c *chaos) step() {
	claims := slices.Sorted(maps.Keys(c.claims))
	switch n := c.random.IntN(1000); {
	case n < 600 && len(claims) < 80:
		c.parts = c.random.IntN(2) == 0
		for before, try := len(c.claims), 0; len(c.claims) == before && try < 1000; try++ {
			c.allocate()
		}
	case n < 850 && len(claims) > 40:
		c.deleteClaim(pick(c.random, claims))
	case n < 900 && len(claims) > 0:
		c.markIdle(pick(c.random, claims))
	case n < 945:
		c.taint()
	case n < 958:
		c.plugin(pick(c.random, slices.Sorted(maps.Keys(c.nodes))))
	case n < 964:
		if len(c.nodes) > 9 {
			c.deleteNode(pick(c.random, slices.Sorted(maps.Keys(c.nodes))))
		}
	case n < 970:
		c.next++
		c.addNode(c.next)
	case n < 985:
		c.die(c.random.IntN(2) == 0)
	}
}

// TestChaos: over hours in which everything comes and goes, controllers above all, the counters add up to the seconds
// of all GPUs, and each state and namespace has what an oracle finds in the events of the API server.
func TestChaos(t *testing.T) {
	seen := map[string]float64{}
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newChaos(t, seed)
			c.lead()
			looked, last := c.now, map[string]float64{}
			for end := c.now.Add(2 * time.Hour); c.now.Before(end); {
				to := c.now.Add(time.Duration(c.random.ExpFloat64() * float64(10*time.Second)))
				for ; !looked.Add(period).After(to); c.look() {
					looked = looked.Add(period)
					c.now = looked
					if c.leader == nil && c.random.IntN(4) == 0 { // another replica leads after some seconds
						c.lead()
					}
				}
				c.now = to
				c.oracle.Until(to)
				c.step()
				never(t, c, last)
			}
			if c.leader == nil {
				c.lead()
			}
			c.oracle.Until(c.now)
			c.look()
			compare(t, c)
			for state, seconds := range c.oracle.Seconds {
				seen[state] += seconds
			}
		})
	}
	for _, state := range []string{"used a", "idle b", "sick c", "sick ", "reserved ", "stranded ", "free "} {
		if seen[state] < 100 {
			t.Errorf("hardly anything was %s: the test has shown nothing of it", state)
		}
	}
}

// never fails if a counter that is exported has become less.
func never(t *testing.T, c *chaos, last map[string]float64) {
	t.Helper()
	if c.leader == nil || c.leader.told.Load() == nil {
		return
	}
	for _, row := range c.leader.told.Load().Totals {
		name := fmt.Sprint(row.Key)
		if row.Seconds < last[name]-1e-6 {
			t.Fatalf("%s: %s: got %f after %f", c.now, name, row.Seconds, last[name])
		}
		last[name] = row.Seconds
	}
}

// compare compares the account with the oracle.
func compare(t *testing.T, c *chaos) {
	t.Helper()
	got, sum := map[string]float64{}, 0.0
	for key, seconds := range c.leader.account.totals {
		got[key.State+" "+key.Namespace] += seconds
		sum += seconds
	}
	all := c.oracle.GPUs
	if math.Abs(sum-all) > all/1000 {
		t.Errorf("got %.0f GPU seconds, want %.0f to 0.1 %%", sum, all)
	}
	held, owners := 0.0, 0.0
	for _, state := range slices.Sorted(maps.Keys(c.oracle.Seconds)) {
		want := c.oracle.Seconds[state]
		t.Logf("%-10s got %10.0f, want %10.0f (%.3f %% of all)", state, got[state], want, 100*(got[state]-want)/all)
		if math.Abs(got[state]-want) > all/1000 {
			t.Errorf("%s: got %.0f GPU seconds, want %.0f to 0.1 %% of all", state, got[state], want)
		}
		if !strings.HasSuffix(state, " ") {
			held += got[state]
		}
	}
	for _, of := range c.leader.account.owners {
		owners += of.seconds
	}
	if owners == 0 || owners > held+1 {
		t.Errorf("owners have %.0f GPU seconds of %.0f that claims held", owners, held)
	}
}

// The oracle knows nothing of the driver.
func TestOracleIsIndependent(t *testing.T) {
	p, err := build.ImportDir("../../../test/bill", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, imported := range p.Imports {
		if strings.Contains(imported, "gpudra") {
			t.Errorf("the oracle imports %s", imported)
		}
	}
}
