// SPDX-License-Identifier: Apache-2.0

package explain

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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

func TestClaims(t *testing.T) {
	const plain = `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`
	const share = `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 5Gi}}}}]`
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b",
		Profile: "l40s-x4"},
		clustertest.SimNode{Name: "e", Profile: "t4-x2", Use: gpu.SharingMode{Sharing: gpu.Exclusive}})
	has := func(pool, device string) func(*resourceapi.ResourceClaim) {
		return func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: clustertest.Driver,
					Pool:   pool,
					Device: device}}}}
		}
	}
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	claim := func(name, devices string, change ...func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
		c := clustertest.Claim(t, devices)
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
			c.Annotations = map[string]string{"gpu.nvidia.com/optional-fields": "gpu.capacity"}
		}),
		claim("kept", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, tolerations: [{key: a, operator: `+
			`Exists}]}}]`, func(c *resourceapi.ResourceClaim) {
			c.Annotations = map[string]string{"gpu.nvidia.com/optional-fields": "gpu.tolerations"}
		}),
		claim("share-of-no-shares", share, has("e", "gpu-3b-00-0"), func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
		}),
		claim("share", share, has("e", "gpu-3b-00-0"), func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].ShareID = ptr.To(types.UID("share"))
		}),
		claim("all-of-it", strings.Replace(share, "5Gi", "15Gi", 1), has("e", "gpu-3b-00-0")),
		claim("whole", strings.Replace(plain, "strongest.gpu", "gpu", 1), has("e", "gpu-3b-00-0")),
		claim("of-another-driver", share, has("e", "gpu-3b-00-0"), func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
		}),
		claim("not-published", share, has("nowhere", "gpu-3b-00-0")),
		claim("old", plain, func(c *resourceapi.ResourceClaim) {
			c.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * time.Hour))
		}),
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	for _, want := range []float64{2, 0} { // a second leader sees the same claims, and tells nothing again
		u := NewClaims(expander, feature.NewGuard())
		u.controller = &feature.Controller{Direct: cluster}
		for range 2 { // informers may read a claim twice
			for _, c := range claims {
				u.See(c)
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
		line := fmt.Sprint(e.Namespace, " ", e.InvolvedObject.Name, " ", e.Type, " ", e.Reason)
		if e.Reason == Events.WholeGPU.Reason {
			line += ": " + e.Message
		}
		got = append(got, line)
	}
	slices.Sort(got)
	const whole = " Warning WholeGPU: request gpu asks for memory 5Gi and has all of GPU gpu-3b-00-0 of e, which has " +
		"no shares: for a share of another one, add the selector " +
		"device.attributes['gpu.nvidia.com'].sharing == 'fractional'"
	if want := []string{"ns allocated Warning NotRanked", "ns lost Warning FieldsDropped",
		"ns p" + whole, "ns share-of-no-shares" + whole,
		"ns waits Warning NotRanked"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
