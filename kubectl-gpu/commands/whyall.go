// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// pendingAnswer is an answer about a pending object.
type pendingAnswer struct {
	*why.Answer
	of pendingObject
}

// name returns the object as an argument of kubectl gpu why.
func (a pendingAnswer) name() string { return a.of.Kind + "/" + a.of.Name }

// whyAll prints a line about each pod that asks for devices and has not started, and about each claim that has no
// devices and no such pod: of the namespace, or of all namespaces.
func (p *plugin) whyAll(ctx context.Context, o whyOptions) error {
	namespace, nothing := "", "No pod or claim waits for devices."
	if !o.allNamespaces {
		namespace = p.namespace
		if err := p.unknownNamespace(ctx, namespace); err != nil {
			return err
		}
		nothing = fmt.Sprintf("No pod or claim of the namespace %s waits for devices.", namespace)
	}
	r, stop := p.reader()
	s := schedule.Read(ctx, r, namespace, nil, nil)
	objects := slices.DeleteFunc(pending(s), func(o pendingObject) bool {
		return namespace != "" && o.Namespace != namespace
	})
	if o.allNamespaces { // of pods that their nodes do not start
		of := sets.New[string]()
		for _, object := range objects {
			if object.Node != "" {
				of.Insert(object.Namespace)
			}
		}
		for _, r.Namespace = range sets.List(of) {
			events := r.Read(ctx, cluster.Events)
			s.Warnings = append(s.Warnings, events.Warnings...)
			maps.Copy(s.Unread, events.Unread)
		}
	}
	stop()
	if s.Unknown(cluster.Pods, namespace) != nil || s.Unknown(cluster.Claims, namespace) != nil {
		return s.Err()
	}
	var all []pendingAnswer
	explainer := why.NewExplainer(s, why.Options{})
	undecided := 0
	for _, object := range objects {
		explain := explainer.Claim
		if object.Kind == "pod" {
			explain = explainer.Pod
		}
		answer, err := explain(ctx, object.Namespace, object.Name)
		if err != nil {
			return err
		}
		if answer.Outcome == why.Waits && object.early {
			if now, err := p.current(ctx, object.Kind, object.Namespace, object.Name); err == nil {
				answer = now
			}
		}
		asTold(ctx, p.client, answer)
		if answer.Outcome == why.Undecided {
			undecided++
		}
		all = append(all, pendingAnswer{answer, object})
	}
	err := printList(p, o.output, "ReportList", all, pendingAnswer.name, nothing, pendingTable(all, o))
	if undecided > 0 {
		err = errors.Join(err, fmt.Errorf("what could be read is not enough for an answer about %d of them, or there "+
			"was too little time", undecided))
	}
	return err
}

func pendingTable(all []pendingAnswer, o whyOptions) table {
	t := table{header: []string{"NAMESPACE", "NAME", "AGE", "WHY", "WHAT HELPS"}, wide: []string{"WHAT HELPS"}}
	for _, a := range all {
		cause := strings.TrimPrefix(strings.TrimPrefix(a.Cause, a.of.Kind+" "+a.Name+" "), "waits: ")
		advice := cmp.Or(strings.TrimPrefix(a.Advice(), "smallest change: "), none)
		t.add(a.Namespace, a.name(), age(&a.of.Created), cause, advice)
	}
	if !o.allNamespaces {
		t.drop("NAMESPACE")
	}
	return t
}
