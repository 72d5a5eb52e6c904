// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

func TestPrepareEach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var together sync.WaitGroup
	together.Add(3)
	handle := func(_ context.Context, request any) (any, error) {
		claims := request.(*drapb.NodePrepareResourcesRequest).Claims
		if len(claims) != 1 {
			t.Errorf("got a call with %d claims, want 1", len(claims))
		}
		together.Done()
		together.Wait() // for ever, if the calls came one after the other
		if claims[0].Uid == "b" {
			return nil, errors.New("claim got replaced")
		}
		return &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{
			claims[0].Uid: {Devices: []*drapb.Device{{DeviceName: "gpu-" + claims[0].Uid}}}}}, nil
	}
	done := make(chan struct{})
	var got []string
	go func() {
		defer close(done)
		answer, err := prepareEach(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "a"},
			{Uid: "b"}, {Uid: "c"}}}, nil, handle)
		if err != nil {
			t.Errorf("got %v", err)
			return
		}
		for uid, claim := range answer.(*drapb.NodePrepareResourcesResponse).Claims {
			text := uid + " " + claim.Error
			for _, device := range claim.Devices {
				text += device.DeviceName
			}
			got = append(got, text)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("the calls waited for each other")
	}
	slices.Sort(got)
	if diff := cmp.Diff(got, []string{"a gpu-a", "b claim got replaced", "c gpu-c"}); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
}

func TestPrepareEachPassesOtherCalls(t *testing.T) {
	for _, request := range []any{
		&drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "a"}}},
		&drapb.NodePrepareResourcesRequest{},
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "a"}, {Uid: "b"}}},
	} {
		calls := 0
		_, _ = prepareEach(t.Context(), request, nil, func(_ context.Context, passed any) (any, error) {
			calls++
			if passed != request {
				t.Errorf("got %v, want %v", passed, request)
			}
			return nil, nil
		})
		if calls != 1 {
			t.Errorf("%v: got %d calls, want 1", request, calls)
		}
	}
}
