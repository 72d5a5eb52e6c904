// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// FuzzUpdates sends updates, and pods, to the webhooks that change objects. Nothing panics, and what a webhook makes of
// an object can be applied to it.
func FuzzUpdates(f *testing.F) {
	for _, pair := range [][2]string{
		{`{}`, `{}`}, {`null`, `null`}, {`[]`, `{}`}, {`{"spec":{"devices":{"requests":[{}]}}}`, `{"spec":{"devices":5}}`},
		{`{"spec":{"devices":{"requests":[{"name":"a","firstAvailable":[]}]}}}`,
			`{"spec":{"devices":{"requests":[{"name":"a","exactly":{}}]}}}`},
		{`{"metadata":{"annotations":{"gpu.nvidia.com/optional-fields":",a,,b.capacity"}},"spec":{}}`,
			`{"metadata":null,"spec":{"devices":{"requests":[{"name":"a","exactly":{"capacity":{},"tolerations":[{}]}}]}}}`},
		{`{"spec":{"containers":[{"name":"a","resources":{"limits":{"tencent.com/vcuda-core":30}}}]}}`,
			`{"spec":{"containers":[5],"initContainers":[null],"resourceClaims":[{}]}}`},
		{`{"metadata":{"annotations":{"tensor-fusion.ai/tflops-request":"20"}},"spec":{"containers":[{}],` +
			`"resourceClaims":5}}`, `{"metadata":{"labels":5}}`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	v := clustertest.New(f, clustertest.Node{Name: "a", Profile: "t4-x2"}, clustertest.Node{Name: "b",
		Profile: "a30-x2"})
	rank := ranker{strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}}
	pods := newConverter(f, "t4-x2")
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, h := range []struct {
			kind    string
			handler webhook.Handler
		}{{"ResourceClaim", rank}, {"ResourceClaim", lister{}}, {"ResourceClaimTemplate", lister{}}, {"Pod", pods}} {
			for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
				req := admissionv1.AdmissionRequest{Kind: metav1.GroupVersionKind{Kind: h.kind}, Operation: operation,
					Namespace: "ns", Object: runtime.RawExtension{Raw: after},
					OldObject: runtime.RawExtension{Raw: before}}
				got := h.handler.Handle(context.Background(), webhook.Request{AdmissionRequest: req})
				if got.Allowed {
					patched(t, after, got)
				}
			}
		}
	})
}

// FuzzView follows objects that are no valid ones: nothing panics, also when the metrics are read.
func FuzzView(f *testing.F) {
	for _, text := range []string{`{}`, `{"slice":{"spec":{"driver":"gpu.nvidia.com","devices":[{},{"name":"gpu-3b-00-0"},` +
		`{"name":"gpu-3b-00-0-mig-1g10gb-0","attributes":{"type":{"string":"mig"}}}]}}}`,
		`{"claim":{"spec":{"devices":{"requests":[{},{"exactly":{"count":9223372036854775807}}]}}}}`,
		`{"claim":{"status":{"allocation":{"devices":{"results":[{"driver":"gpu.nvidia.com","device":"gpu-3b-00-0",` +
			`"consumedCapacity":{"shares":"9e18","memory":"-1"}}]}}}},"slice":{"spec":{"driver":"gpu.nvidia.com",` +
			`"devices":[{"name":"gpu-3b-00-0","attributes":{"type":{"string":"gpu"}},"capacity":{"shares":{"value":"1"}},` +
			`"allowMultipleAllocations":true}]}}}`,
		`{"rule":{"spec":{"deviceSelector":{"driver":"gpu.nvidia.com"},"taint":{"effect":"NoSchedule"}}}}`,
		`{"class":{"spec":{"selectors":[{},{"cel":{"expression":"device.driver == 'gpu.nvidia.com'"}}]}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var all struct {
			Slice resourceapi.ResourceSlice
			Claim resourceapi.ResourceClaim
			Rule  resourceapi.DeviceTaintRule
			Class resourceapi.DeviceClass
		}
		if json.Unmarshal(text, &all) != nil {
			return
		}
		v := cluster.New(clustertest.Driver)
		u := claimReporter{expander: strongest.Expander{View: v, Class: "gpu.nvidia.com", Ranks: 4}}
		for range 2 {
			v.SetClass(&all.Class)
			v.SetSlice(v.SlimSlice(&all.Slice))
			u.expander.Asked(&all.Claim.Spec)
			v.SetClaim(cluster.SlimClaim(&all.Claim))
			v.SetTaintRule(&all.Rule)
			for range v.GPUs {
			}
			u.expander.Expand(t.Context(), all.Claim.Spec.DeepCopy())
		}
		if _, err := metrics.Example().Gather(); err != nil {
			t.Error(err)
		}
	})
}
