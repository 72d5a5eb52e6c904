// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// Claims that share GPUs, one after the other: who gets what of which card? t4-x2 has two cards of 15 GiB.
func TestAllocationOfShares(t *testing.T) {
	const whole = `{}`
	ask := func(capacity string) string { return `{requests: {` + capacity + `}}` }
	fractional := gpu.SharingMode{}
	exclusive := gpu.SharingMode{Sharing: gpu.Exclusive}
	replicated := gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2, Isolation: gpu.IsolationNone}
	renamed := gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2, Isolation: gpu.IsolationNone, SharedOnly: true}
	unlimited := gpu.SharingMode{Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone}
	for _, row := range []struct {
		name   string
		first  gpu.SharingMode // of the first card
		second gpu.SharingMode
		claims []string // capacity of each claim; "class: capacity" for another class
		want   string
	}{
		{"a claim without capacity gets a whole card", fractional, fractional, []string{whole, whole, whole},
			"3b 15Gi/0, af 15Gi/0, does not fit"},
		{"shares are packed", fractional, fractional, []string{ask("memory: 5Gi"), ask("memory: 5Gi"),
			ask("memory: 5Gi"), ask("memory: 5Gi")},
			"3b 5Gi/0, 3b 5Gi/0, 3b 5Gi/0, af 5Gi/0"},
		{"shares are packed up to all multiprocessors", fractional, fractional, []string{ask(`memory: 1Gi, cores: "60"`),
			ask(`memory: 1Gi, cores: "60"`), ask(`memory: 1Gi, cores: "40"`)},
			"3b 1Gi/60, af 1Gi/60, 3b 1Gi/40"},
		{"a whole card after a share: the next card", fractional, fractional,
			[]string{ask("memory: 5Gi"), whole, whole}, "3b 5Gi/0, af 15Gi/0, does not fit"},
		{"a share after a whole card: the next card", fractional, fractional, []string{whole, ask("memory: 5Gi")},
			"3b 15Gi/0, af 5Gi/0"},
		{"multiprocessors without memory: all the memory", fractional, fractional,
			[]string{ask(`cores: "30"`), ask(`cores: "30"`)}, "3b 15Gi/30, af 15Gi/30"},
		{"memory is rounded up to the step", fractional, fractional, []string{ask("memory: 1500Ki")}, "3b 2Mi/0"},
		{"more than a card has", fractional, fractional, []string{ask("memory: 16Gi")}, "does not fit"},
		{"more multiprocessors than a card has", fractional, fractional, []string{ask(`memory: 1Gi, cores: "101"`)},
			"does not fit"},
		{"an exclusive card takes no shares, and a request for some memory gets all of it", exclusive, exclusive,
			[]string{ask("memory: 5Gi"), ask("memory: 5Gi"), whole}, "3b alone, af alone, does not fit"},
		{"replicas", replicated, exclusive, []string{whole, whole, whole, whole},
			"3b 1 of 2, 3b 1 of 2, af alone, does not fit"},
		{"a share of memory is not a replica", replicated, fractional, []string{ask("memory: 5Gi")}, "af 5Gi/0"},
		{"both replicas for one claim", replicated, exclusive, []string{ask(`shares: "2"`), whole},
			"3b 2 of 2, af alone"},
		{"any number of claims on an unlimited card", unlimited, unlimited, []string{whole, whole, whole, whole},
			"3b 0/0, 3b 0/0, 3b 0/0, 3b 0/0"},
		{"an unlimited card counts the claims that ask for an amount", unlimited, exclusive,
			[]string{ask("memory: 10Gi"), whole, ask("memory: 10Gi"), ask("memory: 5Gi"), whole},
			"3b 10Gi/0, 3b 0/0, af alone, 3b 5Gi/0, 3b 0/0"},
		{"an unlimited card has no replicas", unlimited, exclusive, []string{ask(`shares: "1"`)}, "does not fit"},
		{"shared-only replicas need the class of shared GPUs", renamed, fractional,
			[]string{whole, whole, "shared: " + whole, "shared: " + whole, "shared: " + whole},
			"af 15Gi/0, does not fit, 3b 1 of 2, 3b 1 of 2, does not fit"},
		{"the class of shared GPUs has only these replicas", fractional, exclusive,
			[]string{"shared: " + whole}, "does not fit"},
		{"the class of shared GPUs has unlimited ones", fractional, unlimited,
			[]string{"shared: " + whole, "shared: " + whole}, "af 0/0, af 0/0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			devices := simtest.Discover(t, "t4-x2")
			for i := range devices {
				devices[i].Use = map[string]gpu.SharingMode{"gpu-3b-00-0": row.first,
					"gpu-af-00-0": row.second}[devices[i].Name]
			}
			held := nothingAllocated()
			var got []string
			for _, c := range row.claims {
				class := driver
				if capacity, ok := strings.CutPrefix(c, "shared: "); ok {
					class, c = "shared."+driver, capacity
				}
				claim := newClaim(t, fmt.Sprintf("[{name: gpu, exactly: {deviceClassName: %s, capacity: %s}}]", class,
					c))
				results, problem := allocateIn(t, held, slicesOf(devices), claim)
				got = append(got, problem)
				for _, r := range results {
					got[len(got)-1] = shareText(r)
					held.Add(r)
				}
			}
			if got := strings.Join(got, ", "); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

func shareText(r resourceapi.DeviceRequestAllocationResult) string {
	card := strings.TrimSuffix(strings.TrimPrefix(r.Device, "gpu-"), "-00-0")
	if r.ShareID == nil {
		return card + " alone"
	}
	amount := func(name resourceapi.QualifiedName) string {
		q := r.ConsumedCapacity[name]
		return q.String()
	}
	if _, replica := r.ConsumedCapacity["shares"]; replica {
		return fmt.Sprintf("%s %s of 2", card, amount("shares"))
	}
	return fmt.Sprintf("%s %s/%s", card, amount("memory"), amount("cores"))
}

// MPS limits nothing on GPUs before Volta.
func TestUseBeforeVolta(t *testing.T) {
	product := func(major int) gpu.Product { return gpu.Product{ComputeCapability: gpu.Version{Major: major}} }
	hook := gpu.SharingMode{Isolation: gpu.IsolationHook}
	for _, row := range []struct {
		name  string
		major int
		use   gpu.SharingMode
		want  string
	}{
		{"Pascal by default", 6, gpu.SharingMode{}, "exclusive, isolation none"},
		{"Maxwell", 5, gpu.SharingMode{}, "exclusive, isolation none"},
		{"Volta", 7, gpu.SharingMode{}, "fractional, isolation mps"},
		{"Hopper", 9, gpu.SharingMode{}, "fractional, isolation mps"},
		{"unknown", 0, gpu.SharingMode{}, "fractional, isolation mps"},
		{"Pascal with counted shares", 6, gpu.SharingMode{Isolation: gpu.IsolationNone}, "fractional, isolation none"},
		{"Pascal with a library", 6, hook, "fractional, isolation hook"},
		{"replicas of Pascal", 6, gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2}, "replicated, isolation none"},
		{"unlimited Pascal", 6, gpu.SharingMode{Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone},
			"unlimited, isolation none"},
	} {
		d := gpu.Device{Name: "gpu-3b-00-0", UUID: "GPU-1", Type: gpu.TypeGPU, Memory: 16 << 30,
			Product: product(row.major)}
		inv := inventory.Unclaimed([]gpu.Device{d}, func(gpu.Device) gpu.SharingMode { return row.use })
		is := inv.Attributes("n", d.Name)
		got := fmt.Sprintf("%s, isolation %s", *is["sharing"].StringValue, *is["isolation"].StringValue)
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}
