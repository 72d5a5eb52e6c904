// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

type whyOptions struct {
	output
	allNamespaces bool
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
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return p.whyAll(cmd.Context(), o)
			case o.allNamespaces || o.format == wide || o.format == names:
				return errors.New("--all-namespaces and the formats wide and name are for the list: leave out the name")
			}
			return p.why(cmd.Context(), args[0], o.output)
		},
		ValidArgsFunction: p.completeWaiting,
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "List what waits in all namespaces.")
	o.addFlags(p, cmd, wide, names)
	return cmd
}

// kinds are the names of kinds in arguments.
var kinds = map[string]string{"pod": "pod", "pods": "pod", "po": "pod", "claim": "claim", "claims": "claim",
	"resourceclaim": "claim", "resourceclaims": "claim", "deployment": "deployment", "deployments": "deployment",
	"deploy": "deployment", "replicaset": "replicaset", "replicasets": "replicaset", "rs": "replicaset",
	"statefulset": "statefulset", "statefulsets": "statefulset", "sts": "statefulset", "daemonset": "daemonset",
	"daemonsets": "daemonset", "ds": "daemonset", "job": "job", "jobs": "job"}

// parseObject splits KIND/NAME. The kind is one of kinds, or empty.
func parseObject(arg string) (kind, name string, err error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok {
		return "", arg, nil
	}
	kind, _, _ = strings.Cut(strings.ToLower(kind), ".") // deployment.apps is a deployment
	if kinds[kind] == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q is no pod, claim or workload; write NAME, pod/NAME, claim/NAME, or deployment, "+
			"replicaset, statefulset, daemonset or job with /NAME, and the namespace with --namespace", arg)
	}
	return kinds[kind], name, nil
}

func (p *plugin) why(ctx context.Context, arg string, o output) error {
	kind, name, err := parseObject(arg)
	if err != nil {
		return err
	}
	if kind != "" && kind != "pod" && kind != "claim" {
		if name, err = p.podOf(ctx, kind, name); err != nil {
			return err
		}
		kind = "pod"
	}
	report, err := p.current(ctx, kind, p.namespace, name)
	if err != nil {
		return err
	}
	asTold(ctx, p.client, report)
	err = printEach(p, o, "ReportList", []*why.Answer{report}, (*why.Answer).Text)
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
	r, stop := p.reader()
	s := schedule.Read(ctx, r, namespace, nil, nil)
	stop()
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
	return nil, fmt.Errorf("there is no %s %s in namespace %s", what, name, namespace)
}

func (p *plugin) object(ctx context.Context, of *why.Answer) (metav1.Object, error) {
	if of.Kind == "Pod" {
		return p.client.CoreV1().Pods(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	}
	return p.client.ResourceV1().ResourceClaims(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
}

// completeWaiting completes the names of pods and claims that wait.
func (p *plugin) completeWaiting(cmd *cobra.Command, args []string, prefix string) ([]string,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if p.connect() != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	s := p.read(cmd.Context(), cluster.Pods, cluster.Claims)
	var all []string
	for _, pod := range s.Pods {
		if pod.Namespace == p.namespace && pod.Spec.NodeName == "" {
			all = append(all, "pod/"+pod.Name)
		}
	}
	for _, claim := range s.Claims {
		if claim.Namespace == p.namespace && claim.Status.Allocation == nil {
			all = append(all, "claim/"+claim.Name)
		}
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	return all, cobra.ShellCompDirectiveNoFileComp
}
