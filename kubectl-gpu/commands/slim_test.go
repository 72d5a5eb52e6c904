// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
)

// What a command drops while it reads slices changes nothing that it shows.
func TestSlimSlices(t *testing.T) {
	const h100 = "gpu-1b-00-0"
	claims := []*resourceapi.ResourceClaim{claim("small", "a", h100+"-mig-1g10gb-me-3"), // with the time of now
		claim("half", "a", "gpu-43-00-0-mig-3g40gb-4"), claim("whole", "b", "gpu-52-00-0"),
		claim("last", "b", "gpu-df-00-0-mig-7g80gb-0")}
	read := func() *cluster.Snapshot {
		s := &cluster.Snapshot{Unread: map[string]error{}, Nodes: []*corev1.Node{node("a"), node("b"), node("c")},
			Claims: claims}
		for i, profile := range []string{"dgx-h100", "dgx-h100", "mixed"} {
			s.Slices = append(s.Slices, published(t, s.Nodes[i].Name, profile)...)
		}
		for _, slice := range s.Slices { // of this GPU, only partitions are published
			if slice.Spec.Devices != nil && slice.Spec.Devices[0].Name == h100 && *slice.Spec.NodeName == "b" {
				slice.Spec.Devices = slice.Spec.Devices[1:]
			}
		}
		return s
	}
	whole, slim := read(), read()
	var list resourceapi.ResourceSliceList
	before, after := 0, 0
	for _, slice := range slim.Slices {
		before += len(slice.Spec.Devices)
		list.Items = append(list.Items, *slice)
	}
	keptDevices().Shorten(&list)
	for i := range list.Items {
		slim.Slices[i] = &list.Items[i]
		after += len(slim.Slices[i].Spec.Devices)
	}
	if after > before/2 {
		t.Errorf("got %d of %d devices, want fewer", after, before)
	}
	for _, what := range []func(s *cluster.Snapshot) any{
		func(s *cluster.Snapshot) any { return gpusOf(s, []string{driver}) },
		func(s *cluster.Snapshot) any { return modelsOf(t.Context(), gpusOf(s, []string{driver}), s) },
	} {
		got, err := json.MarshalIndent(what(slim), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.MarshalIndent(what(whole), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// The API server forgets the version of the first page. The slices are read again, and what the first pages had must
// not be taken for known.
func TestSlimSlicesAfterExpiry(t *testing.T) {
	all := published(t, "a", "dgx-h100")
	client := fake.NewClientset()
	calls := 0
	client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		calls++
		list := &resourceapi.ResourceSliceList{}
		for _, s := range all {
			list.Items = append(list.Items, *s.DeepCopy())
		}
		switch calls {
		case 1:
			list.Continue = "more"
		case 2:
			return true, nil, apierrors.NewResourceExpired("the continue token is too old")
		}
		return true, list, nil
	})
	s := read.Reader{Client: client, Devices: keptDevices}.Read(t.Context(), cluster.Slices)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	s.Claims = []*resourceapi.ResourceClaim{claim("small", "a", "gpu-1b-00-0-mig-1g10gb-me-3")}
	gpus := gpusOf(s, []string{driver})
	models := modelsOf(t.Context(), gpus, s)
	if len(models[0].Profiles) == 0 {
		t.Errorf("models: got no profiles of %s", models[0].Name)
	}
	for _, g := range gpus {
		for _, h := range g.Holders {
			if h.Profile != "1g.10gb+me" || h.Memory == 0 {
				t.Errorf("ls: got profile %q with %d bytes, want 1g.10gb+me with its memory", h.Profile, h.Memory)
			}
		}
	}
}
