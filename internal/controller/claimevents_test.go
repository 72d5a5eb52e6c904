// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/internal/controller/viewtest"
)

func TestClaimReporter(t *testing.T) {
	const plain = `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`
	v := viewtest.New(t, viewtest.Node{Name: "a", Profile: "t4-x2"}, viewtest.Node{Name: "b", Profile: "l40s-x4"})
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	claim := func(name, devices string, change ...func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
		c := viewtest.Claim(t, devices)
		c.Name, c.UID, c.CreationTimestamp = name, types.UID(name), metav1.Now()
		for _, each := range change {
			each(c)
		}
		return c
	}
	claims := []*resourceapi.ResourceClaim{
		claim("waits", plain),
		claim("allocated", plain, func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation = &resourceapi.AllocationResult{}
		}),
		claim("ranked", plain, func(c *resourceapi.ResourceClaim) { expander.Expand(t.Context(), &c.Spec) }),
		claim("another-class", strings.Replace(plain, "strongest.gpu", "gpu", 1)),
		claim("one-model", strings.Replace(plain, "com}", `com, selectors: [{cel: {expression: `+
			`"device.attributes['gpu.nvidia.com'].architecture == 'Turing'"}}]}`, 1)),
		claim("of-the-scheduler", plain, func(c *resourceapi.ResourceClaim) {
			c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
		}),
		claim("lost", strings.Replace(plain, "strongest.gpu", "gpu", 1), func(c *resourceapi.ResourceClaim) {
			c.Annotations = map[string]string{optionalFieldsAnnotation: "gpu.capacity"}
		}),
		claim("kept", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, tolerations: [{key: a, operator: `+
			`Exists}]}}]`, func(c *resourceapi.ResourceClaim) {
			c.Annotations = map[string]string{optionalFieldsAnnotation: "gpu.tolerations"}
		}),
		claim("old", plain, func(c *resourceapi.ResourceClaim) {
			c.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * time.Hour))
		}),
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	for _, want := range []float64{2, 0} { // a second leader sees the same claims, and tells nothing again
		u := &claimReporter{client: cluster, expander: expander, unranked: metrics.NewUnrankedClaims(),
			seen: map[types.UID]seenClaim{}, safe: &guarded{metrics.NewPanics()}}
		for range 2 { // informers may read a claim twice
			for _, c := range claims {
				u.see(c)
			}
			if err := u.report(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := testutil.ToFloat64(u.unranked); got != want {
			t.Errorf("got %v counted, want %v", got, want)
		}
	}
	var events corev1.EventList
	if err := cluster.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events.Items {
		got = append(got, fmt.Sprint(e.Namespace, " ", e.InvolvedObject.Name, " ", e.Type, " ", e.Reason))
	}
	slices.Sort(got)
	if want := []string{"ns allocated Warning NotRanked", "ns lost Warning FieldsDropped",
		"ns waits Warning NotRanked"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
