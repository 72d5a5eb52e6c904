// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

const (
	namespaceOnCluster = "why"
	caseLabel          = "case"
	holderLabel        = "holder" // of claims of others
	// scheduled is how long the scheduler may take. It tries a pod again after at most 10 s.
	scheduled    = time.Minute
	pollInterval = 50 * time.Millisecond
)

// atOnce deletes without a grace period: no kubelet would end it.
var atOnce = metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}

// judgedLess is for how many advices the scheduler is asked about less, too.
const judgedLess = 300

// Random pods that do not fit on random fleets are put to an API server and a scheduler, which are those of
// $KUBECONFIG. With the advice, the scheduler places the pod. With less than the advice it does not, which is tried for
// the first advices. WHY_SCHEDULER sets how many pods, and WHY_SEED the first seed: make why-scheduler starts the
// cluster. Nodes have no kubelet, so no pod starts.
func TestRandomClaimsOnScheduler(t *testing.T) {
	want, _ := strconv.Atoi(os.Getenv("WHY_SCHEDULER"))
	if want == 0 {
		t.Skip("WHY_SCHEDULER is not set: make why-scheduler sets it and starts a cluster")
	}
	seed := uint64(1)
	if text := os.Getenv("WHY_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	c := connectScheduler(t)
	count, ofLess := tally{all: map[string]int{}, wrong: map[string]int{}}, tally{all: map[string]int{},
		wrong: map[string]int{}}
	judged := 0 // the advices for which less was tried
	var mu sync.Mutex
	t.Run("pods", func(t *testing.T) {
		for made := 0; made < want; seed++ {
			of := randomCase(t, seed)
			if of == nil {
				continue
			}
			made++
			t.Run(of.name, func(t *testing.T) {
				t.Parallel()
				defer c.remove(t, of)
				a, keys, err := c.judge(t.Context(), of)
				if err != nil {
					t.Errorf("seed %s: %v", of.name, err)
				}
				mu.Lock()
				count.add(keys, err != nil)
				rest := slices.DeleteFunc(less(a), func(with lesser) bool { // no kubelet refuses pods here
					placed, starts := outcome(t, of.fleet, of.report.search, with.steps)
					return placed && !starts
				})
				again := err == nil && len(rest) > 0 && judged < judgedLess
				if again {
					judged++
				}
				mu.Unlock()
				if !again {
					return
				}
				for _, with := range rest {
					err := c.judgeLess(t.Context(), of, with)
					if err != nil {
						t.Errorf("seed %s: %v", of.name, err)
					}
					mu.Lock()
					ofLess.add([]string{with.key}, err != nil)
					mu.Unlock()
				}
				// The cases above are refused for want of what is left out, if this is placed.
				if err := c.place(t.Context(), of, advice.With(of.report.search.Workload, a)); err != nil {
					t.Errorf("seed %s: after less was refused: %v", of.name, err)
				}
			})
		}
	})
	text := fmt.Sprintf("Of %d answers, %d were wrong. With less than the advice, %d of %d pods were placed.\n\n%s\n%s",
		count.total, count.totalWrong, ofLess.totalWrong, ofLess.total, count.table("the answer"), ofLess.table("less"))
	t.Log(text)
	tell(t, "make why-scheduler", text)
}

// schedulerCase is a pod that waits on a fleet.
type schedulerCase struct {
	name    string
	fleet   *cluster.Snapshot
	holders []*resourceapi.ResourceClaim
	claims  []*resourceapi.ResourceClaim
	pod     *corev1.Pod

	report *Answer
	uids   map[string]types.UID // of the claims that the report is about
	ended  map[string]bool      // the holders that do not exist now
	tried  int                  // how many workloads have been tried instead of the pod
}

// randomCase returns that of a seed, or nil if the pod fits. The names of its objects are used once in the cluster.
func randomCase(t *testing.T, seed uint64) *schedulerCase {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	of := &schedulerCase{name: fmt.Sprint(seed), fleet: randomFleet(t, r), ended: map[string]bool{},
		uids: map[string]types.UID{}}
	fill(t, r, of.fleet)
	of.holders = of.fleet.Claims
	for i := range fleettest.Pick(r, 1, 1, 1, 2) {
		of.claims = append(of.claims, claim(t, fmt.Sprint("c", i), randomClaim(r)))
	}
	if on, _, err := judge(t, of.fleet, nil, of.claims...); err == nil && on != "" {
		return nil
	}
	for _, node := range of.fleet.Nodes {
		node.Name = of.onCluster(node.Name)
		node.Labels = map[string]string{corev1.LabelHostname: node.Name, caseLabel: of.name}
		node.Status.Capacity = node.Status.Allocatable
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	for _, s := range of.fleet.Slices {
		s.Name, s.Labels = of.name+"-"+s.Name, map[string]string{caseLabel: of.name}
		s.Spec.NodeName = ptr.To(of.onCluster(*s.Spec.NodeName))
		s.Spec.Pool.Name = of.onCluster(s.Spec.Pool.Name)
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if len(d.Attributes)+len(d.Capacity) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				delete(d.Attributes, "uuid") // no random claim reads it
			}
		}
	}
	for _, c := range of.holders {
		of.label(&c.ObjectMeta)
		c.Labels[holderLabel] = ""
		a := c.Status.Allocation
		a.NodeSelector = nil
		for i := range a.Devices.Results {
			a.Devices.Results[i].Pool = of.onCluster(a.Devices.Results[i].Pool)
		}
	}
	for _, c := range of.claims {
		of.label(&c.ObjectMeta)
	}
	of.pod = pod("p", of.claims...)
	of.label(&of.pod.ObjectMeta)
	of.pod.Spec.NodeSelector = map[string]string{caseLabel: of.name}
	of.pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // nodes have no heartbeat
	of.pod.Spec.Containers[0].Image = "localhost/never-pulled:v1"
	return of
}

// onCluster returns the name of a node or pool of the case.
func (of *schedulerCase) onCluster(name string) string { return "why-" + of.name + "-" + name }

func (of *schedulerCase) label(o *metav1.ObjectMeta) {
	*o = metav1.ObjectMeta{Namespace: namespaceOnCluster, Name: o.Name + "-" + of.name,
		Labels: map[string]string{caseLabel: of.name}}
}

// schedulerCluster has a real scheduler.
type schedulerCluster struct{ kubernetes.Interface }

// connectScheduler connects to the cluster of $KUBECONFIG and creates the classes of the chart and the namespace.
func connectScheduler(t *testing.T) schedulerCluster {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := schedulerCluster{client}
	_, err = c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespaceOnCluster}}, metav1.CreateOptions{})
	for _, class := range clustertest.Classes(t) {
		_, next := c.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{})
		err = errors.Join(err, next)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Second, scheduled, true, func(ctx context.Context) (bool,
		error) {
		_, err := c.CoreV1().ServiceAccounts(namespaceOnCluster).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil // pods need it
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// judge creates the objects of the case, asks why its pod waits, applies the advice, and waits until the scheduler has
// placed the pod. It returns the advice, and the number and the kinds of its changes.
func (c schedulerCluster) judge(ctx context.Context, of *schedulerCase) (advice.Advice, []string, error) {
	if err := c.create(ctx, of); err != nil {
		return nil, []string{"no answer"}, err
	}
	if err := c.await(ctx, of.pod.Name, "the scheduler to refuse the pod", refused); err != nil {
		return nil, []string{"no answer"}, err
	}
	s, err := c.read(ctx, of)
	if err != nil {
		return nil, []string{"no answer"}, err
	}
	report, err := Pod(ctx, s, of.pod.Namespace, of.pod.Name)
	if err != nil {
		return nil, []string{"no answer"}, err
	}
	of.report = report
	for _, claim := range s.Claims {
		of.uids[claim.Name] = claim.UID
	}
	if report.Outcome != Waits || report.search == nil {
		return nil, []string{"no answer"}, fmt.Errorf("got the outcome %s: %s", report.Outcome, report.Cause)
	}
	if len(report.search.Found) == 0 {
		return nil, []string{"nothing helps"}, nil
	}
	a := report.search.Found[0]
	keys := append(keysOf(a), "all")
	if err := c.place(ctx, of, advice.With(report.search.Workload, a)); err != nil {
		return a, keys, fmt.Errorf("%w\n%s\n%s", err, report.Cause, report.Advice())
	}
	return a, keys, nil
}

// refused reports whether the scheduler has tried the pod and found no node.
func refused(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
	})
}

// placed reports whether the pod has a node.
func placed(p *corev1.Pod) bool { return p.Spec.NodeName != "" }

// judgeLess tries less than the advice, and returns an error unless the scheduler refuses the pod. It may refuse a pod
// because it has not seen yet that a claim has ended. But it knows the pod's own claims, which are younger. So when it
// refuses a second pod with these claims, it has seen all.
func (c schedulerCluster) judgeLess(ctx context.Context, of *schedulerCase, rest lesser) error {
	pod, err := c.try(ctx, of, advice.With(of.report.search.Workload, rest.steps))
	if err == nil {
		err = c.await(ctx, pod.Name, "the scheduler to refuse the pod with less", refused)
	}
	if err == nil {
		again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("again-", of.tried)}, Spec: pod.Spec}
		of.label(&again.ObjectMeta)
		if _, err = c.CoreV1().Pods(namespaceOnCluster).Create(ctx, again, metav1.CreateOptions{}); err == nil {
			err = c.await(ctx, again.Name, "the scheduler to refuse a second pod with less", refused)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s\n%s", rest.text, err, of.report.Cause, of.report.Advice())
	}
	return nil
}

// create creates all objects of the case.
func (c schedulerCluster) create(ctx context.Context, of *schedulerCase) error {
	for _, node := range of.fleet.Nodes {
		if _, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, s := range of.fleet.Slices {
		if _, err := c.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, claim := range slices.Concat(of.holders, of.claims) {
		if err := c.createClaim(ctx, claim); err != nil {
			return err
		}
	}
	_, err := c.CoreV1().Pods(namespaceOnCluster).Create(ctx, of.pod, metav1.CreateOptions{})
	return err
}

// createClaim creates the claim with its devices.
func (c schedulerCluster) createClaim(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	claims := c.ResourceV1().ResourceClaims(namespaceOnCluster)
	made, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil || claim.Status.Allocation == nil {
		return err
	}
	made.Status = claim.Status
	_, err = claims.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// await waits until the pod is as wanted. It is an error if it gets a node before.
func (c schedulerCluster) await(ctx context.Context, pod, what string, is func(*corev1.Pod) bool) error {
	var last *corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, pollInterval, scheduled, true, func(ctx context.Context) (bool,
		error) {
		var err error
		last, err = c.CoreV1().Pods(namespaceOnCluster).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && last.Spec.NodeName != "" && !is(last) {
			err = fmt.Errorf("it is on node %s", last.Spec.NodeName)
		}
		return err == nil && is(last), err
	})
	if err != nil && last != nil {
		return fmt.Errorf("wait for %s: %w; its conditions: %+v", what, err, last.Status.Conditions)
	}
	return err
}

// read reads the cluster without the objects of other cases, which the scheduler runs at the same time.
func (c schedulerCluster) read(ctx context.Context, of *schedulerCase) (*cluster.Snapshot, error) {
	s := read.Reader{Client: c}.Read(ctx, cluster.Nodes, cluster.Slices, cluster.Classes, cluster.Claims,
		cluster.Templates, cluster.Pods, cluster.Quotas)
	s.Nodes, s.Slices = only(s.Nodes, of.name), only(s.Slices, of.name)
	s.Claims, s.Pods = only(s.Claims, of.name), only(s.Pods, of.name)
	return s, s.Err()
}

func only[T metav1.Object](all []T, name string) []T {
	return slices.DeleteFunc(all, func(o T) bool { return o.GetLabels()[caseLabel] != name })
}

// place tries the workload, and waits until its pod has a node.
func (c schedulerCluster) place(ctx context.Context, of *schedulerCase, w *schedule.Workload) error {
	pod, err := c.try(ctx, of, w)
	if err != nil {
		return err
	}
	return c.await(ctx, pod.Name, "the scheduler to place the pod with the advice", placed)
}

// try removes the pods and the claims of the workload tried before, ends the claims that have ended in this one and
// creates the others again, and then the claims and the pod of the workload.
func (c schedulerCluster) try(ctx context.Context, of *schedulerCase, w *schedule.Workload) (*corev1.Pod, error) {
	pods, claims := c.CoreV1().Pods(namespaceOnCluster), c.ResourceV1().ResourceClaims(namespaceOnCluster)
	these := metav1.ListOptions{LabelSelector: caseLabel + "=" + of.name + ",!" + holderLabel}
	if err := errors.Join(pods.DeleteCollection(ctx, atOnce, these),
		claims.DeleteCollection(ctx, atOnce, these)); err != nil {
		return nil, err
	}
	if err := wait.PollUntilContextTimeout(ctx, pollInterval, scheduled, true, func(ctx context.Context) (bool, error) {
		left, err := claims.List(ctx, these) // a claim with devices is removed when its pod has gone
		return err == nil && len(left.Items) == 0, err
	}); err != nil {
		return nil, fmt.Errorf("wait for the end of claims that were tried before: %w", err)
	}
	for _, holder := range of.holders {
		switch ended := w.Ended[of.uids[holder.Name]]; {
		case ended == of.ended[holder.Name]:
			continue
		case ended:
			if err := claims.Delete(ctx, holder.Name, metav1.DeleteOptions{}); err != nil {
				return nil, fmt.Errorf("end claim %s: %w", holder.Name, err)
			}
		default:
			if err := c.createClaim(ctx, holder); err != nil {
				return nil, err
			}
		}
		of.ended[holder.Name] = !of.ended[holder.Name]
	}
	of.tried++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("try-", of.tried)}, Spec: *of.pod.Spec.DeepCopy()}
	pod.Spec.ResourceClaims = nil
	of.label(&pod.ObjectMeta)
	for i, changed := range w.Claims {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("try-%d-%d", of.tried, i)},
			Spec: changed.Spec}
		of.label(&claim.ObjectMeta)
		if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("the changed claim: %w", err)
		}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: fmt.Sprint("c", i), ResourceClaimName: &claim.Name})
	}
	return pods.Create(ctx, pod, metav1.CreateOptions{})
}

// remove removes all objects of the case.
func (c schedulerCluster) remove(t *testing.T, of *schedulerCase) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	these := metav1.ListOptions{LabelSelector: caseLabel + "=" + of.name}
	err := errors.Join(
		c.CoreV1().Pods(namespaceOnCluster).DeleteCollection(ctx, atOnce, these),
		c.ResourceV1().ResourceClaims(namespaceOnCluster).DeleteCollection(ctx, atOnce, these),
		c.ResourceV1().ResourceSlices().DeleteCollection(ctx, atOnce, these),
		c.CoreV1().Nodes().DeleteCollection(ctx, atOnce, these))
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
