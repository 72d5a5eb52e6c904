// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"iter"
	"math/bits"
	"math/rand"
	"runtime"
	"slices"
	"sync"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

const (
	migLoad       = 0.6     // of the memory slices that would be in use if every request were served
	searchedCalls = 1500    // requests of each mix on which an order is tried
	servedCalls   = 200_000 // other requests of each mix, for the results
)

// requestKinds are the profiles that claims request. On one GPU "gpu" and 7g are the same.
var requestKinds = []string{"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "gpu"}

// mix is the frequency of each of them.
type mix [5]float64

// mixes are mostly small ones, a balanced one, and one with many large ones. The driver cannot know the future mix.
var mixes = []mix{{0.70, 0.10, 0.10, 0.05, 0.05}, {0.50, 0.20, 0.20, 0.05, 0.05}, {0.30, 0.20, 0.20, 0.20, 0.10}}

// site is a possible placement: a GPU and its memory slices.
type site struct {
	gpu   int
	takes uint8
}

// sites holds the placements of each profile in the scheduler's order.
type sites [][]site

// published returns the sites of an inventory.
func published(inv inventory.Inventory) sites {
	all := make(sites, len(requestKinds))
	for _, d := range inv {
		what, at := "gpu", site{d.Index, 0xff}
		if p := d.Partition; p != nil {
			what, at.takes = p.Profile, uint8((1<<p.Size-1)<<p.Start)
		}
		if i := slices.Index(requestKinds, what); i >= 0 {
			all[i] = append(all[i], at)
		}
	}
	return all
}

// ascending returns the same sites sorted by first memory slice on each GPU. GPUs keep their order.
func (s sites) ascending() sites {
	var all sites
	for _, places := range s {
		all = append(all, slices.Clone(places))
		for of := range byGPU(all[len(all)-1]) {
			slices.SortFunc(of, func(a, b site) int { return cmp.Compare(a.takes, b.takes) })
		}
	}
	return all
}

// byGPU groups the places by GPU.
func byGPU(places []site) iter.Seq[[]site] {
	return func(yield func([]site) bool) {
		for len(places) > 0 {
			n := 1
			for n < len(places) && places[n].gpu == places[0].gpu {
				n++
			}
			if !yield(places[:n]) {
				return
			}
			places = places[n:]
		}
	}
}

// demand is a request: its arrival, its profile, and its lifetime if it is served.
type demand struct {
	at, until float64
	what      int
}

// demands returns random requests with exponentially distributed times that load that number of GPUs.
func (m mix) demands(rng *rand.Rand, count, gpus int, of sites) []demand {
	perRequest := 0.0
	for i, share := range m {
		perRequest += share * float64(bits.OnesCount8(of[i][0].takes))
	}
	rate := migLoad * 8 * float64(gpus) / perRequest
	var all []demand
	now := 0.0
	for range count {
		now += rng.ExpFloat64() / rate
		all = append(all, demand{now, now + rng.ExpFloat64(), m.draw(rng.Float64())})
	}
	return all
}

func (m mix) draw(x float64) int {
	for i, share := range m {
		if x -= share; x < 0 {
			return i
		}
	}
	return 0
}

// served returns the share of requests that find a free place; each takes the first. The others are dropped.
func served(all []demand, s sites, gpus int) float64 {
	type stay struct {
		until float64
		site
	}
	used := make([]uint8, gpus)
	var stays []stay
	found := 0
	for _, d := range all {
		rest := stays[:0]
		for _, s := range stays {
			if s.until > d.at {
				rest = append(rest, s)
			} else {
				used[s.gpu] &^= s.takes
			}
		}
		stays = rest
		for _, at := range s[d.what] {
			if used[at.gpu]&at.takes == 0 {
				used[at.gpu] |= at.takes
				stays = append(stays, stay{d.until, at})
				found++
				break
			}
		}
	}
	return float64(found) / float64(len(all))
}

// orders returns all orders in which the places of one GPU can be tried: 7! of a 1g times 3! of a 2g times 2 of a 3g.
// Larger profiles have one order.
func orders(s sites) []sites {
	all := []sites{nil}
	for _, places := range s {
		var longer []sites
		for _, order := range permutations(places) {
			for _, before := range all {
				longer = append(longer, append(slices.Clone(before), order))
			}
		}
		all = longer
	}
	return all
}

func permutations(places []site) [][]site {
	if len(places) <= 1 {
		return [][]site{places}
	}
	var all [][]site
	for i, first := range places {
		rest := slices.Delete(slices.Clone(places), i, i+1)
		for _, order := range permutations(rest) {
			all = append(all, append([]site{first}, order...))
		}
	}
	return all
}

// best returns the order that serves most requests of all mixes together.
func best(candidates []sites) sites {
	var all [][]demand
	for i, m := range mixes {
		all = append(all, m.demands(rand.New(rand.NewSource(int64(i))), searchedCalls, 1, candidates[0]))
	}
	shares := make([]float64, len(candidates))
	var wait sync.WaitGroup
	for worker := range runtime.NumCPU() {
		wait.Go(func() {
			for i := worker; i < len(candidates); i += runtime.NumCPU() {
				for _, demands := range all {
					shares[i] += served(demands, candidates[i], 1)
				}
			}
		})
	}
	wait.Wait()
	return candidates[slices.Index(shares, slices.Max(shares))]
}

// spread applies the order of one GPU's places to all GPUs of many.
func (s sites) spread(many sites) sites {
	var all sites
	for i, places := range many {
		var order []site
		for of := range byGPU(places) {
			for _, at := range s[i] {
				order = append(order, site{of[0].gpu, at.takes})
			}
		}
		all = append(all, order)
	}
	return all
}

// compare returns the percentage of requests of each mix that the published order, the ascending order and the best
// order serve.
func compare(ours, best sites, gpus int) [][]float64 {
	var all [][]float64
	for i, m := range mixes {
		demands := m.demands(rand.New(rand.NewSource(int64(100+i))), servedCalls, gpus, ours)
		var shares []float64
		for _, order := range []sites{ours, ours.ascending(), best} {
			shares = append(shares, 100*served(demands, order, gpus))
		}
		all = append(all, shares)
	}
	return all
}

// mean returns the mean of each column.
func mean(rows [][]float64) []float64 {
	means := make([]float64, len(rows[0]))
	for _, r := range rows {
		for i, x := range r {
			means[i] += x / float64(len(rows))
		}
	}
	return means
}

// measureFragmentation compares the published order of placements with others, for claims that come and go.
func measureFragmentation(_ context.Context, b *bench) error {
	one, err := partitionable(migTables, 1)
	if err != nil {
		return err
	}
	eight, err := partitionable(migTables, 8)
	if err != nil {
		return err
	}
	ours, ours8 := published(one), published(eight)
	found := best(orders(ours))
	b.results["fragments"] = mean(compare(ours, found, 1))
	b.results["fragments8"] = mean(compare(ours8, found.spread(ours8), 8))
	return nil
}
