// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// cluster is a fake cluster with a Sweeper. It records the sweeper's actions.
type cluster struct {
	*Sweeper
	client.WithWatch
	actions  []string
	registry *prometheus.Registry
	errors   map[string]error // "DELETE name", "GET name", "LIST *v1.…"
	minute   int
}

func (c *cluster) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	about := regarding.(*corev1.ObjectReference)
	c.actions = append(c.actions, fmt.Sprintf("%s %s about %s %s", kind, reason, about.Kind, about.Name))
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, resourceapi.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{registry: prometheus.NewRegistry(), errors: map[string]error{}}
	c.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(
		interceptor.Funcs{
			Delete: func(ctx context.Context, with client.WithWatch, o client.Object,
				options ...client.DeleteOption) error {
				if err := c.errors["DELETE "+o.GetName()]; err != nil {
					return err
				}
				var how client.DeleteOptions
				how.ApplyOptions(options)
				if p := how.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil {
					t.Errorf("%s is deleted without preconditions", o.GetName())
				}
				c.actions = append(c.actions, "delete "+o.GetName())
				return with.Delete(ctx, o, options...)
			},
			Get: func(ctx context.Context, with client.WithWatch, key client.ObjectKey, o client.Object,
				options ...client.GetOption) error {
				c.actions = append(c.actions, "get "+key.Name)
				if err := c.errors["GET "+key.Name]; err != nil {
					return err
				}
				return with.Get(ctx, key, o, options...)
			},
			List: func(ctx context.Context, with client.WithWatch, list client.ObjectList,
				options ...client.ListOption) error {
				if err := c.errors[fmt.Sprintf("LIST %T", list)]; err != nil {
					return err
				}
				return with.List(ctx, list, options...)
			},
		}).Build()
	metrics, err := NewMetrics(c.registry)
	if err != nil {
		t.Fatal(err)
	}
	c.Sweeper = &Sweeper{Driver: ours, Namespace: "gpus", Plugins: labels.SelectorFromSet(labels.Set{"app": "plugin"}),
		Grace:   grace,
		Objects: c.WithWatch, API: c.WithWatch, Recorder: c, Metrics: metrics}
	return c
}

// after sweeps that many minutes later, and returns the actions except reads.
func (c *cluster) after(t *testing.T, minutes int) string {
	t.Helper()
	c.actions = nil
	c.minute += minutes
	err := c.sweep(t.Context(), start.Add(time.Duration(c.minute)*time.Minute))
	if err != nil {
		c.actions = append(c.actions, "error "+err.Error())
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(c.actions),
		func(d string) bool { return strings.HasPrefix(d, "get ") }), "; ")
}

// metric returns the value of a series.
func (c *cluster) metric(t *testing.T, name, reason string) (sum float64) {
	t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == reason {
					sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\ngot  %v\nwant %v", what, got, want)
	}
}

func nodeObject(name string, uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
			Status: corev1.ConditionTrue}}}}
}

func plugin(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "plugin-" + node,
		Labels: map[string]string{"app": "plugin"}},
		Spec: corev1.PodSpec{NodeName: node}}
}

func podObject(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: uid}}
}

func TestOneOfEach(t *testing.T) {
	ownGone, foreignGone := slice("own-gone", ours, "w9", "n9"), slice("foreign-gone", theirs, "w9", "n9")
	ownBare, foreignBare := slice("own-bare", ours, "w2", "n2"), slice("foreign-bare", theirs, "w2", "n2")
	nobodys := slice("nobodys", ours, "w9", "")
	own, foreign := claim("own", []string{ours}, madeFor("p", "dead")), claim("foreign", []string{theirs},
		madeFor("p", "dead"))
	again, hand := claim("again", []string{ours}, madeFor("again", "dead-too")),
		claim("hand", []string{ours}, reservedFor("p", "dead"))
	used := claim("used", []string{ours}, madeFor("alive", "alive"), reservedFor("alive", "alive"))
	c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), podObject("alive", "alive"),
		podObject("again", "another"),
		&ownGone, &foreignGone, &ownBare, &foreignBare, &nobodys, &own, &foreign, &again, &hand, &used)

	equal(t, "at first sight", c.after(t, 0), "")
	equal(t, "as told by metrics", c.metric(t, "gpu_dra_orphans", "NodeGone"), 0.0)
	equal(t, "after the grace", c.after(t, 5), "delete again; Normal ClaimRemoved about ResourceClaim again; "+
		"Warning ReservationStale about ResourceClaim hand; delete own; Normal ClaimRemoved about ResourceClaim own; "+
		"Warning NodeGone about ResourceSlice nobodys; "+
		"delete own-bare; Normal SliceRemoved about ResourceSlice own-bare; delete own-gone; Normal SliceRemoved "+
		"about ResourceSlice own-gone")
	equal(t, "a minute later everything has been told", c.after(t, 1), "")
	for reason, want := range map[string]float64{"NodeGone": 1, "PluginGone": 0, "PodGone": 0, "ReservationStale": 1,
		"DeletionStuck": 0} {
		equal(t, "left of "+reason, c.metric(t, "gpu_dra_orphans", reason), want)
	}
	for reason, want := range map[string]float64{"NodeGone": 1, "PluginGone": 1, "PodGone": 2} {
		equal(t, "removed of "+reason, c.metric(t, "gpu_dra_orphans_removed_total", reason), want)
	}
	for _, o := range []client.Object{&foreignGone, &foreignBare, &nobodys, &foreign, &hand, &used} {
		if err := c.WithWatch.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Errorf("%s: %v, want it to survive", o.GetName(), err)
		}
	}
}

func TestOneEventPerNode(t *testing.T) {
	s, another := slice("s", ours, "w2", "n2"), slice("t", ours, "w2", "n2")
	w2 := nodeObject("w2", "n2")
	w2.Status.Conditions = nil
	train := claim("train", []string{ours},
		func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "w2" })
	c := newCluster(t, nodeObject("w1", "n1"), w2, plugin("w1"), &s, &another, &train)
	c.after(t, 0)
	equal(t, "not ready", c.after(t, 5), "Warning PluginGone about Node w2")
	equal(t, "told of", c.after(t, 1), "")
	ready := nodeObject("w2", "n2")
	if err := c.Status().Update(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	equal(t, "ready, and used", c.after(t, 1), "Warning PluginGone about Node w2")
	equal(t, "told of again", c.after(t, 1), "")
}

// Nodes of a driver with the same name, and exempt nodes, are not read.
func TestReadsOnlyNodesWithoutPlugin(t *testing.T) {
	bare, exempt, other := slice("bare", ours, "w2", "n2"), slice("exempt", ours, "w3", "n3"),
		slice("other", ours, "w4", "n4")
	other.Spec.Devices[0].Attributes = nil
	w3 := nodeObject("w3", "n3")
	w3.Labels = map[string]string{"gpu.nvidia.com/sweep": "off"}
	c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), w3, nodeObject("w4", "n4"), plugin("w1"), &bare,
		&exempt, &other)
	c.after(t, 0)
	equal(t, "read", strings.Join(c.actions, "; "), "get w2")
	equal(t, "removed", c.after(t, 5), "delete bare; Normal SliceRemoved about ResourceSlice bare")
}

func TestObjectAlreadyDeleted(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "resourceslices"}, "s", errors.New("changed"))
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "resourceslices"}, "s")
	for _, err := range []error{conflict, gone} {
		s := slice("s", ours, "w9", "n9")
		c := newCluster(t, nodeObject("w1", "n1"), plugin("w1"), &s)
		c.errors["DELETE s"] = err
		c.after(t, 0)
		equal(t, err.Error(), c.after(t, 5), "")
		equal(t, "removed", c.metric(t, "gpu_dra_orphans_removed_total", "NodeGone"), 0.0)
	}
}

func TestChangedSliceIsRemovedLater(t *testing.T) {
	s := slice("s", ours, "w2", "n2")
	c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), &s)
	c.errors["DELETE s"] = apierrors.NewConflict(schema.GroupResource{Resource: "resourceslices"}, "s",
		errors.New("changed"))
	c.after(t, 0)
	equal(t, "changed", c.after(t, 5), "")
	delete(c.errors, "DELETE s")
	equal(t, "as it was", c.after(t, 1), "delete s; Normal SliceRemoved about ResourceSlice s")
}

func TestRepublishedSliceStays(t *testing.T) {
	s := slice("s", ours, "w2", "n2")
	c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), &s)
	c.after(t, 0)
	equal(t, "removed", c.after(t, 5), "delete s; Normal SliceRemoved about ResourceSlice s")
	back := slice("s", ours, "w2", "n2")
	back.UID, back.ResourceVersion = "again", ""
	if err := c.Create(t.Context(), &back); err != nil {
		t.Fatal(err)
	}
	c.after(t, 1)
	equal(t, "told of", c.after(t, 5), "Warning PluginGone about Node w2")
	if err := c.Create(t.Context(), plugin("w2")); err != nil {
		t.Fatal(err)
	}
	equal(t, "the plugin is there", c.after(t, 1), "")
	if err := c.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("gpus")); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), plugin("w1")); err != nil {
		t.Fatal(err)
	}
	c.after(t, 1)
	equal(t, "lost again", c.after(t, 5), "delete s; Normal SliceRemoved about ResourceSlice s")
}

// The cache does not yet show that a device was allocated.
func TestStaleCache(t *testing.T) {
	s := slice("s", ours, "w2", "n2")
	c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), &s)
	api := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"))
	train := claim("train", []string{ours},
		func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "w2" })
	train.ResourceVersion = ""
	if err := api.Create(t.Context(), &train); err != nil {
		t.Fatal(err)
	}
	c.API = api
	c.after(t, 0)
	equal(t, "the slice stays", c.after(t, 5), "Warning PluginGone about Node w2")
}

func TestNothingIsRemovedAfterErrors(t *testing.T) {
	down := errors.New("no answer")
	s, own := slice("s", ours, "w2", "n2"), claim("own", []string{ours}, madeFor("p", "dead"))
	for _, tc := range []struct{ name, errors, want string }{
		{"nodes", "LIST *v1.PartialObjectMetadataList", "error list nodes: no answer"},
		{"the plugin's pods", "LIST *v1.PodList", "error list the plugin's pods: no answer"},
		{"a node", "GET w2", "error read node w2: no answer"},
		{"slices", "LIST *v1.ResourceSliceList", "error list slices: no answer"},
		{"claims", "LIST *v1.ResourceClaimList", "error list claims: no answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, own := s.DeepCopy(), own.DeepCopy()
			c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), s, own)
			c.after(t, 0)
			c.errors[tc.errors] = down
			equal(t, "while it does not answer", c.after(t, 5), tc.want)
			delete(c.errors, tc.errors)
			equal(t, "grace starts again", c.after(t, 1), "")
			equal(t, "and runs", c.after(t, 5), "delete own; Normal ClaimRemoved about ResourceClaim own; delete s; "+
				"Normal SliceRemoved about ResourceSlice s")
		})
	}
	t.Run("a pod", func(t *testing.T) {
		c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), s.DeepCopy(), own.DeepCopy())
		c.after(t, 0)
		c.errors["GET p"] = down
		equal(t, "the rest goes on", c.after(t, 5), "delete s; Normal SliceRemoved about ResourceSlice s; error look "+
			"for pod ml/p: no answer")
		delete(c.errors, "GET p")
		equal(t, "the clock of the claim starts anew", c.after(t, 1), "")
		equal(t, "and runs", c.after(t, 5), "delete own; Normal ClaimRemoved about ResourceClaim own")
	})
	t.Run("a deletion", func(t *testing.T) {
		c := newCluster(t, nodeObject("w1", "n1"), nodeObject("w2", "n2"), plugin("w1"), s.DeepCopy())
		c.errors["DELETE s"] = down
		c.after(t, 0)
		equal(t, "refused", c.after(t, 5), "error remove ResourceSlice s: no answer")
		equal(t, "left", c.metric(t, "gpu_dra_orphans", "PluginGone"), 1.0)
		delete(c.errors, "DELETE s")
		equal(t, "done a minute later", c.after(t, 1), "delete s; Normal SliceRemoved about ResourceSlice s")
		equal(t, "nothing left", c.metric(t, "gpu_dra_orphans", "PluginGone"), 0.0)
	})
}

// A cluster has thousands of claims in use.
func TestLivePodsAreReadOncePerGrace(t *testing.T) {
	used := claim("used", []string{ours}, madeFor("alive", "alive"), reservedFor("alive", "alive"))
	foreign := claim("foreign", []string{theirs}, madeFor("elsewhere", "elsewhere"))
	c := newCluster(t, podObject("alive", "alive"), &used, &foreign)
	for minute, want := range []string{"get alive", "", "", "", "", "get alive", ""} {
		c.after(t, min(minute, 1))
		equal(t, fmt.Sprintf("minute %d", minute), strings.Join(c.actions, "; "), want)
	}
}
