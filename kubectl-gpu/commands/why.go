// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

type whyOptions struct {
	output
	allNamespaces bool
	kind, name    string // of the object; empty: the list
}

func whyCommand(p *plugin) *cobra.Command {
	var o whyOptions
	cmd := &cobra.Command{
		Use:   "why [POD|KIND/NAME]",
		Short: "Explain why a pod or ResourceClaim waits for devices, and what would help.",
		Long: "Explain why a pod or ResourceClaim waits for devices. The first line is the cause, the second the " +
			"smallest change with which it would be scheduled now. A name without a kind is that of a pod, or of a " +
			"claim if there is no such pod. A workload, such as deployment/NAME or job/NAME, counts as one of its " +
			"pods, of which one that waits comes first. Without a name, list all pods with devices that have not " +
			"started, and all claims that wait without such a pod, with the cause of each; -o wide adds what would " +
			"help.",
		Example: "  kubectl gpu why trainer\n  kubectl gpu why deployment/vllm\n  kubectl gpu why claim/big-gpu -o " +
			"json\n  kubectl gpu why -A",
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			if len(args) > 0 && (o.allNamespaces || o.format == wide || o.format == names) {
				return errors.New("--all-namespaces and the formats wide and name are for the list: leave out the name")
			}
			o.kind, o.name, err = parseObject(strings.Join(args, "")) // at most one
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.whyAll(cmd.Context(), o)
			}
			return p.why(cmd.Context(), o)
		},
		ValidArgsFunction: p.complete(p.waiting),
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "List what waits in all namespaces.")
	o.addFlags(p, cmd, wide, names)
	return cmd
}

// kinds are the names of each kind in arguments, its own first.
var kinds = []string{"pod pods po", "claim claims resourceclaim resourceclaims", "deployment deployments deploy",
	"replicaset replicasets rs", "statefulset statefulsets sts", "daemonset daemonsets ds", "job jobs"}

// parseObject splits KIND/NAME. The kind is one of kinds, or empty.
func parseObject(arg string) (kind, name string, err error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok {
		return "", arg, nil
	}
	kind, _, _ = strings.Cut(strings.ToLower(kind), ".") // deployment.apps is a deployment
	i := slices.IndexFunc(kinds, func(all string) bool { return slices.Contains(strings.Fields(all), kind) })
	if i < 0 || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q is no pod, claim or workload; write NAME, pod/NAME, claim/NAME, or deployment, "+
			"replicaset, statefulset, daemonset or job with /NAME, and the namespace with --namespace", arg)
	}
	return strings.Fields(kinds[i])[0], name, nil
}

func (p *plugin) why(ctx context.Context, o whyOptions) error {
	if o.kind != "" && o.kind != "pod" && o.kind != "claim" {
		name, err := p.podOf(ctx, o.kind, o.name)
		if err != nil {
			return err
		}
		o.kind, o.name = "pod", name
	}
	report, err := p.current(ctx, o.kind, p.namespace, o.name)
	if err != nil {
		return err
	}
	asTold(ctx, p.client, report)
	err = printEach(p, o.output, "ReportList", []*why.Answer{report}, (*why.Answer).Text)
	if report.Outcome == why.Undecided {
		err = errors.Join(err, errors.New("what could be read is not enough for an answer, or there was too little "+
			"time"))
	}
	return err
}

// asTold makes what the controller has last written about the object the answer, where the user lacks rights.
func asTold(ctx context.Context, client kubernetes.Interface, r *why.Answer) {
	if r.Outcome != why.Undecided || r.Search.Complete {
		return
	}
	events, err := client.CoreV1().Events(r.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		"involvedObject.uid": string(r.UID), "reason": "NotAllocated"}.String()})
	if err != nil || len(events.Items) == 0 {
		return
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	r.Outcome, r.Cause, r.Notes = why.Waits, last.Message, []string{fmt.Sprintf("the controller has said so at %s; %s",
		last.CreationTimestamp.UTC().Format(time.RFC3339), r.Cause)}
}

// podOf returns the name of a pod of the workload: one that waits for a node, or else one that does not run, or any.
func (p *plugin) podOf(ctx context.Context, kind, name string) (string, error) {
	namespace := p.namespace
	selector, err := selectorOf(ctx, p.client, kind, namespace, name)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no %s %s in namespace %s", kind, name, namespace)
	}
	if err != nil {
		return "", err
	}
	pods, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return "", err
	}
	if len(pods.Items) == 0 {
		return "", fmt.Errorf("%s %s has no pods: kubectl describe %s/%s -n %s says why; kubectl gpu fits -f FILE "+
			"says whether a pod of it would get devices", kind, name, kind, name, namespace)
	}
	best := slices.MinFunc(pods.Items, func(a, b corev1.Pod) int {
		return cmp.Or(progress(a)-progress(b), strings.Compare(a.Name, b.Name))
	})
	return best.Name, nil
}

// progress orders pods: those that wait for a node first, then those that do not run.
func progress(pod corev1.Pod) int {
	switch {
	case pod.Spec.NodeName == "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed:
		return 0
	case pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodSucceeded:
		return 1
	}
	return 2
}

// selectorOf returns the label selector of the pods of a workload.
func selectorOf(ctx context.Context, client kubernetes.Interface, kind, namespace, name string) (string, error) {
	rest := client.AppsV1().RESTClient()
	if kind == "job" {
		rest = client.BatchV1().RESTClient()
	}
	raw, err := rest.Get().Namespace(namespace).Resource(kind+"s").Name(name).SetHeader("Accept",
		runtime.ContentTypeJSON).Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var of struct {
		Spec struct{ Selector *metav1.LabelSelector }
	}
	if err := json.Unmarshal(raw, &of); err != nil {
		return "", err
	}
	s, err := metav1.LabelSelectorAsSelector(of.Spec.Selector)
	if err != nil {
		return "", err
	}
	return s.String(), nil
}

// attempts is how often an object is read that changes while it is explained.
const attempts = 5

// current returns a report that is not older than its object.
func (p *plugin) current(ctx context.Context, kind, namespace, name string) (*why.Answer, error) {
	bypassed := false // the scheduler, as the attempt before says
	for range attempts {
		report, err := p.explain(ctx, kind, namespace, name)
		if err != nil {
			return nil, err
		}
		now, err := p.object(ctx, report)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%s %s/%s was deleted meanwhile", strings.ToLower(report.Kind), namespace, name)
		}
		if err != nil {
			return nil, err
		}
		if now.GetUID() != report.UID || now.GetResourceVersion() != report.ResourceVersion {
			continue
		}
		// Claims may have been read before the scheduler allocated them, and the pod after it got its node.
		pod, ok := now.(*corev1.Pod)
		if again := ok && pod.Spec.NodeName != "" && report.Outcome == why.Waits; again && !bypassed {
			bypassed = true
			continue
		}
		return report, nil
	}
	return nil, fmt.Errorf("%s/%s changed %d times while it was explained: try again", namespace, name, attempts)
}

func (p *plugin) explain(ctx context.Context, kind, namespace, name string) (*why.Answer, error) {
	s := p.readAll(ctx, namespace, why.Manifest{})
	var report *why.Answer
	var err error
	if kind != "claim" {
		report, err = why.Pod(ctx, s, namespace, name)
	}
	if kind == "claim" || kind == "" && errors.Is(err, why.ErrNotFound) {
		report, err = why.Claim(ctx, s, namespace, name)
	}
	if !errors.Is(err, why.ErrNotFound) {
		return report, err
	}
	if unread := s.Err(); unread != nil { // it may be among what could not be read
		return nil, unread
	}
	what := map[string]string{"": "pod or resourceclaim", "pod": "pod", "claim": "resourceclaim"}[kind]
	return nil, fmt.Errorf("there is no %s %s in namespace %s%s", what, name, namespace, p.elsewhere(ctx, name))
}

// elsewhere names the namespaces that have such a pod.
func (p *plugin) elsewhere(ctx context.Context, name string) string {
	found, err := p.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil || len(found.Items) == 0 {
		return ""
	}
	var in []string
	for _, pod := range found.Items {
		in = append(in, pod.Namespace)
	}
	return "; one is in " + joined(in) + ": name it with --namespace"
}

func (p *plugin) object(ctx context.Context, of *why.Answer) (metav1.Object, error) {
	if of.Kind == "Pod" {
		return p.client.CoreV1().Pods(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	}
	return p.client.ResourceV1().ResourceClaims(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
}

// waiting are the arguments that name what waits in the namespace. If nothing does, a hint names other namespaces.
func (p *plugin) waiting(ctx context.Context, given []string) (all []string) {
	if len(given) > 0 {
		return nil
	}
	s := p.read(ctx, cluster.Claims, cluster.Classes)
	readPendingPods(ctx, p.client, s, p.namespace)
	others := sets.New[string]()
	for _, o := range pending(s) {
		if o.Namespace == p.namespace {
			all = append(all, o.Kind+"/"+o.Name)
		}
		others.Insert(o.Namespace)
	}
	if len(all) == 0 && len(others) > 0 {
		return cobra.AppendActiveHelp(nil, fmt.Sprintf("nothing waits in namespace %s; with --namespace: %s",
			p.namespace, joined(sets.List(others))))
	}
	return all
}

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
