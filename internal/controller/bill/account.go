// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// maxGap is the longest time between two looks after which a GPU was in the state of one of them.
const maxGap = 10 * time.Minute

// ownersLifetime is how long the counter of an owner stays after its end: a rule records it every hour.
const ownersLifetime = 2 * time.Hour

// A ConfigMap, and a scrape, have room for so many counters. What is new above that counts as Others.
const (
	maxTotals     = 20_000
	maxOwnerBytes = 600 << 10 // of the names of owners and of their namespaces
)

// Others is the namespace, or the owner, of what has no counter of its own, because there are too many.
const Others = "(others)"

// account has the GPU seconds of the cluster until a time.
type account struct {
	at     time.Time // until then, each second of each GPU is in totals once
	gpus   map[gpuID]counted
	totals map[Key]float64
	owners map[Key]ofOwner // those parts of the totals that claims held
	// ownerBytes is the length of the names in owners.
	ownerBytes int
}

type gpuID struct{ Node, Pool, Name string }

// counted is a GPU as of the last look. Parts is nil if the leader before had that look, and could not store so much.
type counted struct {
	Model string
	Parts []part
}

type ofOwner struct {
	seconds float64
	last    time.Time // when it became more
}

// world is what an account needs to know beside the view.
type world struct {
	short  func(node string) string // what pods with GPUs lack on the node; empty: nothing, or it is not known
	exists func(node string) bool
}

// look counts the time since the last look, which may be that of another leader: each GPU was in the state that it had
// then. A GPU counts from the first look at which it is published until its node is gone.
func (a *account) look(v *cluster.View, w world, now time.Time) {
	gap := now.Sub(a.at)
	if gap <= 0 {
		return // the clock of the leader before was ahead
	}
	a.ownerBytes = 0
	for key := range a.owners {
		a.ownerBytes += key.ownerBytes()
	}
	before, nodes := a.gpus, map[string]bool{}
	a.at, a.gpus = now, published(v, w)
	for id, was := range before {
		is, ok := a.gpus[id]
		if !ok {
			if _, known := nodes[id.Node]; !known {
				nodes[id.Node] = w.exists(id.Node)
			}
			if !nodes[id.Node] {
				continue
			}
			is = was.unpublished(v)
			a.gpus[id] = is
		}
		switch {
		case gap > maxGap:
			a.add([]part{{Key: Key{Model: was.Model, State: Unknown}, Size: 1}}, gap)
		case was.Parts == nil:
			a.add(is.Parts, gap)
		default:
			a.add(was.Parts, gap)
		}
	}
	maps.DeleteFunc(a.owners, func(_ Key, of ofOwner) bool { return now.Sub(of.last) > ownersLifetime })
}

// published returns the GPUs that are published now.
func published(v *cluster.View, w world) map[gpuID]counted {
	all, short := map[gpuID]counted{}, map[string]string{}
	for g, held := range v.GPUs {
		all[gpuID{g.Node, g.Pool, g.Name}] = counted{g.Product(), divide(g, held)}
		short[g.Node] = ""
	}
	for node := range short { // the view is not locked any more
		short[node] = w.short(node)
	}
	for id, of := range all {
		for i := range of.Parts {
			if p := &of.Parts[i]; p.State == Free && short[id.Node] != "" {
				p.State, p.Reason = Stranded, short[id.Node]
			}
		}
	}
	return all
}

// unpublished returns the GPU while the plugin of its node is away: who holds it still does.
func (c counted) unpublished(v *cluster.View) counted {
	rest := part{Key: Key{Model: c.Model, State: Sick, Reason: unpublished}, Size: 1}
	var parts []part
	for _, p := range c.Parts {
		if _, held, _ := v.Pending(p.Claim); held {
			rest.Size -= p.Size
			parts = append(parts, p)
		}
	}
	if rest.Size > smallest {
		parts = append(parts, rest)
	}
	return counted{c.Model, parts}
}

// add counts the parts of a GPU for that time.
func (a *account) add(parts []part, gap time.Duration) {
	for _, p := range parts {
		seconds := p.Size * gap.Seconds()
		if key := p.Key; key.Owner != "" {
			if _, known := a.owners[key]; !known && a.ownerBytes+key.ownerBytes() > maxOwnerBytes {
				key.Namespace, key.Owner = Others, Others
			} else if !known {
				a.ownerBytes += key.ownerBytes()
			}
			a.owners[key] = ofOwner{a.owners[key].seconds + seconds, a.at}
		}
		key := p.Key
		key.Owner = ""
		if _, known := a.totals[key]; !known && key.Namespace != "" && len(a.totals) >= maxTotals {
			key.Namespace = Others
		}
		a.totals[key] += seconds
	}
}

func (k Key) ownerBytes() int { return len(k.Namespace) + len(k.Owner) }

// Row is one counter.
type Row struct {
	Key
	Seconds float64
	Last    time.Time `json:",omitzero"`
}

type storedGPU struct {
	gpuID
	counted
}

// State is an account as it is stored.
type State struct {
	At     time.Time
	GPUs   []storedGPU
	Totals []Row
	Owners []Row
}

// state returns what another leader needs to go on.
func (a *account) state() State {
	s := State{At: a.at}
	for id, of := range a.gpus {
		s.GPUs = append(s.GPUs, storedGPU{id, of})
	}
	slices.SortFunc(s.GPUs, func(a, b storedGPU) int { // equal parts are next to each other when it is compressed
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Name, b.Name))
	})
	for key, seconds := range a.totals {
		s.Totals = append(s.Totals, Row{Key: key, Seconds: seconds})
	}
	for key, of := range a.owners {
		s.Owners = append(s.Owners, Row{key, of.seconds, of.last})
	}
	return s
}

// resume returns the account of an earlier leader, or a new one for the zero state, which begins now.
func resume(s State, now time.Time) *account {
	a := &account{at: s.At, gpus: map[gpuID]counted{}, totals: map[Key]float64{}, owners: map[Key]ofOwner{}}
	if s.At.IsZero() {
		a.at = now
	}
	for _, g := range s.GPUs {
		a.gpus[g.gpuID] = g.counted
	}
	for _, row := range s.Totals {
		a.totals[row.Key] = row.Seconds
	}
	for _, row := range s.Owners {
		a.owners[row.Key] = ofOwner{row.Seconds, row.Last}
	}
	return a
}

// maxStored is the size of an account that a ConfigMap has room for.
const maxStored = 900 << 10

// encode returns the state as it is stored: without the parts of GPUs if there are too many, as with tens of thousands.
func (s State) encode() ([]byte, error) {
	var text bytes.Buffer
	w := gzip.NewWriter(&text)
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return nil, fmt.Errorf("encode GPU seconds: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress GPU seconds: %w", err)
	}
	if text.Len() > maxStored && slices.ContainsFunc(s.GPUs, func(g storedGPU) bool { return g.Parts != nil }) {
		s.GPUs = slices.Clone(s.GPUs)
		for i := range s.GPUs {
			s.GPUs[i].Parts = nil
		}
		return s.encode()
	}
	return text.Bytes(), nil
}

// decode reads what encode returns; nothing is the zero state.
func decode(text []byte) (s State, err error) {
	if len(text) == 0 {
		return s, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return s, fmt.Errorf("decompress GPU seconds: %w", err)
	}
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return s, fmt.Errorf("decode GPU seconds: %w", err)
	}
	return s, nil
}
