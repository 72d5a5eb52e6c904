// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// IdleHolder is a claim that holds a GPU, a share or a partition of it, and does not use it.
type IdleHolder struct {
	Node   string `json:"node"`
	GPU    string `json:"gpu"` // name of the device of the whole GPU
	Holder `json:",inline"`
}

// topIdle lists idle claims, longest first.
func (p *plugin) topIdle(ctx context.Context, o topOptions) error {
	f := filter{names: o.names}
	nothing := "No claim holds a GPU that it does not use."
	if !o.allNamespaces {
		f.namespace = p.namespace
		nothing = fmt.Sprintf("No claim of the namespace %s holds a GPU that it does not use.", f.namespace)
	}
	gpus, s, err := p.gpus(ctx, f)
	if err != nil {
		return err
	}
	var all []*IdleHolder
	for _, g := range gpus {
		for _, h := range g.Holders {
			if h.IdleSince != nil && (f.namespace == "" || h.Namespace == f.namespace) {
				all = append(all, &IdleHolder{g.place(), g.Name, h})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *IdleHolder) int { return a.IdleSince.Compare(b.IdleSince.Time) })
	t := table{header: []string{"NAMESPACE", "CLAIM", "PODS", "NODE", "GPU", "HELD FOR", "IDLE FOR"}}
	for _, h := range all {
		t.add(h.Namespace, h.Claim, joined(h.Pods), h.Node, h.GPU, age(h.Since), age(h.IdleSince))
	}
	err = printList(p, o.output, "IdleHolderList", all, nil, nothing, t)
	return errors.Join(err, s.Err())
}
