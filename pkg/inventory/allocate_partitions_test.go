// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// card is the model that partitions are allocated of here.
const card = "H100-80GB"

// partitionClasses are the chart's classes with one for all partitions ("mig") and one for each profile ("1g.10gb").
var partitionClasses = func() classes {
	const mig = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
	known := maps.Clone(chart)
	known["mig"] = mig
	for _, p := range migTables[card] {
		known[p.Name] = mig + " && device.attributes['gpu.nvidia.com'].profile == '" + p.Name + "'"
	}
	return known
}()

// node is a machine of such cards and what claims have of it.
type node struct {
	cards     int
	inv       inventory.Inventory
	published []*resourceapi.ResourceSlice
	held      allocator.Held
	shares    int // that take has given out
}

func newNode(cards int) *node {
	inv := divided(partitionable(card, cards))
	return &node{cards: cards, inv: inv, published: inAPI(inv.Pools(nodeName)), held: nothingAllocated()}
}

// claim is one as rows write it: "1g.10gb × 2 & 3g.40gb" are two requests; of "gpu" with "5Gi" it wants a share. "same:
// " and "distinct: " are about the physical GPU.
func (n *node) claim(t *testing.T, text string) *resourceapi.ResourceClaim {
	t.Helper()
	constraint, rest, constrained := strings.Cut(text, ": ")
	if !constrained {
		rest = text
	}
	var requests []string
	for i, r := range strings.Split(rest, " & ") {
		class, count := r, 1
		if before, after, ok := strings.Cut(r, " × "); ok {
			class = before
			if _, err := fmt.Sscan(after, &count); err != nil {
				t.Fatal(err)
			}
		}
		capacity := "{}"
		if strings.HasSuffix(class, "Gi") {
			class, capacity = "gpu", "{requests: {memory: "+class+"}}"
		}
		if class == "gpu" {
			class = driver
		}
		requests = append(requests, fmt.Sprintf("{name: r%d, exactly: {deviceClassName: %q, count: %d, capacity: %s}}",
			i, class, count, capacity))
	}
	claim := newClaim(t, "["+strings.Join(requests, ", ")+"]")
	parent := ptr.To(resourceapi.FullyQualifiedName(driver + "/parentUUID"))
	switch constraint {
	case "same":
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: parent}}
	case "distinct":
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: parent}}
	}
	return claim
}

// allocate gives the claim what it gets, and keeps it.
func (n *node) allocate(t *testing.T, text string) (got string, devices []gpu.Device, steps int64) {
	t.Helper()
	results, problem, steps := search(t, n.held, partitionClasses, n.published, n.claim(t, text))
	if problem != "" {
		return problem, nil, steps
	}
	var all []string
	for _, r := range results {
		n.held.Add(r)
		d, _ := n.inv.Find(r.Device)
		devices = append(devices, d)
		all = append(all, n.short(d))
	}
	return strings.Join(all, " "), devices, steps
}

// short names a device after its GPU, counted from the front or from the back: "0", "-1 1g.10gb@6".
func (n *node) short(d gpu.Device) string {
	index := d.Index
	if index >= n.cards/2 {
		index -= n.cards
	}
	if d.Partition == nil {
		return fmt.Sprint(index)
	}
	return fmt.Sprintf("%d/%s@%d", index, d.Partition.Profile, d.Partition.Start)
}

// take marks the device as allocated, a whole GPU for so much of its memory.
func (n *node) take(name, memory string) {
	r := resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: nodeName, Device: name}
	if d, _ := n.inv.Find(name); d.Partition == nil {
		n.shares++
		r.ShareID = ptr.To(types.UID(fmt.Sprint("share-", n.shares)))
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory),
			"cores": resource.MustParse("0")}
	}
	n.held.Add(r)
}

func TestAllocationOfPartitions(t *testing.T) {
	for _, row := range []struct {
		name   string
		claims []string
		want   string
	}{
		{"whole GPUs from the first GPU on, partitions from the last", []string{"gpu", "1g.10gb", "gpu", "3g.40gb"},
			"0, -1/1g.10gb@6, 1, -1/3g.40gb@0"},
		{"no profile: the smallest one", []string{"mig"}, "-1/1g.10gb@6"},
		{"small partitions leave room for a large one", []string{"1g.10gb", "1g.10gb", "3g.40gb", "4g.40gb", "2g.20gb"},
			"-1/1g.10gb@6, -1/1g.10gb@5, -1/3g.40gb@0, -2/4g.40gb@0, -2/2g.20gb@4"},
		{"seven partitions on one GPU", []string{"1g.10gb × 8"},
			"-1/1g.10gb@6 -1/1g.10gb@5 -1/1g.10gb@4 -1/1g.10gb@3 -1/1g.10gb@2 -1/1g.10gb@1 -1/1g.10gb@0 -2/1g.10gb@6"},
		{"media engines only once", []string{"1g.10gb+me", "1g.10gb+me", "1g.10gb"},
			"-1/1g.10gb+me@6, -2/1g.10gb+me@6, -1/1g.10gb@5"},
		{"a 4g and a 3g fill a GPU", []string{"4g.40gb", "3g.40gb", "1g.10gb"},
			"-1/4g.40gb@0, -1/3g.40gb@4, -2/1g.10gb@6"},
		{"a 7g fills a GPU", []string{"7g.80gb", "1g.10gb"}, "-1/7g.80gb@0, -2/1g.10gb@6"},
		{"a GPU and a partition of another one", []string{"distinct: gpu & 1g.10gb", "distinct: 1g.10gb & gpu"},
			"0 -1/1g.10gb@6, -1/1g.10gb@5 1"},
		{"two partitions of one GPU", []string{"1g.10gb × 4", "same: 4g.40gb & 3g.40gb"},
			"-1/1g.10gb@6 -1/1g.10gb@5 -1/1g.10gb@4 -1/1g.10gb@3, -2/4g.40gb@0 -2/3g.40gb@4"},
		{"two partitions of different GPUs", []string{"distinct: 1g.10gb × 2"}, "-1/1g.10gb@6 -2/1g.10gb@6"},
		{"never a GPU and its own partition", []string{"same: gpu & 1g.10gb"}, "does not fit"},
		{"shares are packed from the first GPU on", []string{"30Gi", "30Gi", "1g.10gb", "30Gi"},
			"0, 0, -1/1g.10gb@6, 1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, cards := range []int{8, 16} {
				n := newNode(cards)
				var got []string
				for _, text := range row.claims {
					result, _, _ := n.allocate(t, text)
					got = append(got, result)
				}
				if got := strings.Join(got, ", "); got != row.want {
					t.Errorf("%d GPUs\ngot  %s\nwant %s", cards, got, row.want)
				}
			}
		})
	}
}

// What a GPU is used for keeps others away from it, and from no other GPU. Only the last GPU is free.
func TestGPUOrItsPartitions(t *testing.T) {
	for _, row := range []struct{ first, second, want string }{
		{"gpu", "1g.10gb", "does not fit"},
		{"gpu", "30Gi", "does not fit"},
		{"30Gi", "1g.10gb", "does not fit"},
		{"30Gi", "30Gi", "-1"},
		{"30Gi", "gpu", "does not fit"},
		{"1g.10gb", "30Gi", "does not fit"},
		{"1g.10gb", "gpu", "does not fit"},
		{"1g.10gb", "7g.80gb", "does not fit"},
		{"1g.10gb", "1g.10gb", "-1/1g.10gb@5"},
	} {
		for _, cards := range []int{8, 16} {
			n := newNode(cards)
			for _, d := range n.inv.GPUs()[:cards-1] {
				n.take(d.Name, "80Gi")
			}
			n.allocate(t, row.first)
			if got, _, _ := n.allocate(t, row.second); got != row.want {
				t.Errorf("%s after %s of %d GPUs: got %s, want %s", row.second, row.first, cards, got, row.want)
			}
		}
	}
}

// The same for an unlimited GPU, of which a claim consumes nothing.
func TestUnlimitedGPUOrItsPartitions(t *testing.T) {
	for _, row := range []struct{ first, second, want string }{
		{"gpu", "1g.10gb", "does not fit"},
		{"gpu", "gpu", "-1"},
		{"gpu", "30Gi", "-1"},
		{"1g.10gb", "gpu", "does not fit"},
	} {
		gpus := partitionable(card, 1)
		gpus[0].Use.Sharing = gpu.Unlimited
		inv := divided(gpus)
		n := &node{cards: 1, inv: inv, published: inAPI(inv.Pools(nodeName)), held: nothingAllocated()}
		n.allocate(t, row.first)
		if got, _, _ := n.allocate(t, row.second); got != row.want {
			t.Errorf("%s after %s: got %s, want %s", row.second, row.first, got, row.want)
		}
	}
}

// Claims that come and find what they find: never two that overlap, never two with the same media engines.
func TestAllocatedPartitionsDoNotOverlap(t *testing.T) {
	instances := map[string]int{}
	for _, p := range migTables[card] {
		instances[p.Name] = p.Instances
	}
	for seed := range int64(5) {
		n, rng := newNode(8), rand.New(rand.NewSource(seed))
		held := map[gpu.UUID][]gpu.Device{}
		for range 80 {
			_, devices, _ := n.allocate(t, migTables[card][rng.Intn(len(migTables[card]))].Name)
			for _, d := range devices {
				if !allowed(d, held[d.Partition.Parent], instances) {
					t.Errorf("seed %d: got %s beside %s", seed, d.Name, names(held[d.Partition.Parent]))
				}
				held[d.Partition.Parent] = append(held[d.Partition.Parent], d)
			}
		}
	}
}

// halfFull takes about half of the node, at random: of each GPU all, a share, some partitions or nothing. It returns
// how many partitions of each profile are still possible, and how many whole GPUs ("gpu").
func (n *node) halfFull(rng *rand.Rand) map[string]int {
	free := map[string]int{}
	for _, d := range n.inv.GPUs() {
		switch rng.Intn(5) {
		case 0:
			n.take(d.Name, "80Gi")
			continue
		case 1:
			n.take(d.Name, "10Gi")
			continue
		}
		held := n.takeSome(rng, d.UUID, rng.Intn(8))
		if len(held) == 0 {
			free["gpu"]++
		}
		for profile, count := range possibleBeside(held) {
			free[profile] += count
		}
	}
	return free
}

// takeSome takes partitions at random until so many memory slices are taken, or a little more.
func (n *node) takeSome(rng *rand.Rand, of gpu.UUID, enough int) []gpu.Device {
	var held []gpu.Device
	taken := 0
	for _, i := range rng.Perm(len(n.inv)) {
		d := n.inv[i]
		if taken >= enough {
			break
		}
		if d.Partition != nil && d.Partition.Parent == of && taken+d.Partition.Size <= 8 &&
			mayBe(d.Partition.Placement, held) {
			n.take(d.Name, "")
			held, taken = append(held, d), taken+d.Partition.Size
		}
	}
	return held
}

// possibleBeside is how many partitions of each profile a GPU can have beside these.
func possibleBeside(held []gpu.Device) map[string]int {
	free := map[string]int{}
	for _, p := range migTables[card] {
		count := 0
		for _, start := range p.Starts {
			if mayBe(gpu.Placement{Parent: anyParent(held), Profile: p.Name, Start: start, Size: p.Size}, held) {
				count++ // places of one profile do not overlap
			}
		}
		free[p.Name] = min(count, p.Instances)
	}
	return free
}

func anyParent(held []gpu.Device) gpu.UUID {
	if len(held) == 0 {
		return ""
	}
	return held[0].Partition.Parent
}

// mayBe reports whether a partition can be there beside those of the same GPU.
func mayBe(at gpu.Placement, held []gpu.Device) bool {
	media := strings.Contains(at.Profile, "+me")
	return !slices.ContainsFunc(held, func(h gpu.Device) bool {
		return h.Partition.Overlaps(at) || media && strings.Contains(h.Partition.Profile, "+me")
	})
}

// The ways of asking that docs/use/partitions.md recommends are decided in few steps, whatever is taken, and whether
// they fit or not.
func TestSearchStepsOfRecommendedClaims(t *testing.T) {
	const mostSteps = 8 // four of three free ones, or two with media engines where one GPU has some left
	worst, fitted := int64(0), 0
	for seed := range int64(1000) {
		rng := rand.New(rand.NewSource(seed))
		n := newNodes(rng)
		free := n.halfFull(rng)
		p := migTables[card][rng.Intn(len(migTables[card]))]
		text, fits := p.Name, free[p.Name] >= 1
		switch rng.Intn(5) {
		case 0:
			count := 1 + rng.Intn(4)
			if p.Instances == 1 {
				count = min(count, 2)
			}
			text, fits = fmt.Sprintf("%s × %d", p.Name, count), free[p.Name] >= count
		case 1:
			text, fits = "gpu", free["gpu"] >= 1
		case 2:
			text, fits = "mig", free["1g.10gb"] >= 1
		}
		got, _, steps := n.allocate(t, text)
		if fits == (got == "does not fit") || strings.HasPrefix(got, "error") {
			t.Errorf("seed %d: %s: got %s, want that it fits: %v", seed, text, got, fits)
		}
		if fits {
			fitted++
		}
		worst = max(worst, steps)
		if steps > mostSteps {
			t.Errorf("seed %d: %s took %d steps", seed, text, steps)
		}
	}
	t.Logf("%d fit, %d do not; at most %d steps", fitted, 1000-fitted, worst)
}

// empty are nodes without claims; publishing them again would take longer than searching.
var empty = map[int]*node{8: newNode(8), 16: newNode(16)}

func newNodes(rng *rand.Rand) *node {
	n := *empty[8<<rng.Intn(2)]
	n.held = nothingAllocated()
	return &n
}

// What docs/use/partitions.md tells of the allocator's search: its steps on a node of eight, of which some GPUs are
// free and the others taken.
func TestSearchSteps(t *testing.T) {
	at := func(place string) string { // on every GPU
		var all []string
		for i := range 8 {
			all = append(all, fmt.Sprintf("gpu-%x-00-0-mig-%s", 0x10+i, place))
		}
		return strings.Join(all, " ")
	}
	const last = "gpu-17-00-0-mig-"
	for _, row := range []struct {
		claim string
		free  int
		taken string // beside GPUs that are not free
		fits  bool
		steps int64
	}{
		{"1g.10gb", 8, "", true, 4},
		{"1g.10gb × 32", 8, "", true, 35},
		{"1g.10gb × 4", 1, last + "4g40gb-0", false, 8},
		{"1g.10gb × 8", 1, "", false, 128},
		{"1g.10gb+me × 2", 1, "", false, 8},
		{"1g.10gb+me × 3", 2, "", false, 64},
		{"1g.10gb+me × 4", 3, "", false, 512},
		{"distinct: 1g.10gb × 3", 2, "", false, 64},
		{"1g.10gb & 1g.10gb & 1g.10gb & 1g.10gb", 1, last + "4g40gb-0", false, 31},
		{"mig × 32", 8, "", true, 35},
		{"mig × 4", 1, last + "4g40gb-0", false, 37},
		{"7g.80gb & 1g.10gb & 1g.10gb", 8, at("1g10gb-6"), false, 1},
		{"1g.10gb & 7g.80gb", 8, at("1g10gb-6"), false, 97},
		{"1g.10gb & 1g.10gb & 7g.80gb", 8, at("1g10gb-6"), false, 4609},
		{"same: 3g.40gb & 1g.10gb", 8, "", true, 6},
		{"same: 4g.40gb & 3g.40gb", 8, at("1g10gb-6"), false, 17},
		{"same: 3g.40gb & 1g.10gb × 5", 8, "", false, 209},
		{"same: 1g.10gb × 5 & 3g.40gb", 8, "", false, 1121},
		{"distinct: gpu & 1g.10gb", 8, "", true, 6},
		{"gpu × 8 & 1g.10gb", 8, "", false, 257},
	} {
		t.Run(row.claim, func(t *testing.T) {
			n := *empty[8]
			n.held = nothingAllocated()
			for _, d := range n.inv.GPUs()[:8-row.free] {
				n.take(d.Name+"-mig-7g80gb-0", "")
			}
			for _, name := range strings.Fields(row.taken) {
				n.take(name, "")
			}
			got, _, steps := n.allocate(t, row.claim)
			if fits := got != "does not fit"; fits != row.fits || steps != row.steps {
				t.Errorf("got %s in %d steps, want %v in %d", got, steps, row.fits, row.steps)
			}
		})
	}
}
