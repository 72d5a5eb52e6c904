// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// slicesOf returns a slice for each node, with two GPUs and two partitions of each that the driver would create. Every
// field of a slice and of a device has a value somewhere.
func slicesOf(nodes ...string) *resourceapi.ResourceSliceList {
	list := &resourceapi.ResourceSliceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"}}
	selector := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.
		NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"x"}}}}}}
	counters := map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("8Gi")}}
	for _, node := range nodes {
		s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "1",
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "driver"}}}}
		s.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.example.com", NodeName: &node,
			Pool:                   resourceapi.ResourcePool{Name: node, Generation: 2, ResourceSliceCount: 1},
			PerDeviceNodeSelection: ptr.To(true), NodeSelector: selector, AllNodes: ptr.To(false),
			SharedCounters: []resourceapi.CounterSet{{Name: "gpu-0", Counters: counters}}}
		for gpu := range 2 {
			for part := range 3 {
				name := fmt.Sprint("gpu-", gpu)
				d := resourceapi.Device{Name: name, NodeName: &node, NodeSelector: selector,
					AllNodes: ptr.To(true), BindsToNode: ptr.To(true), BindingConditions: []string{"a"},
					BindingFailureConditions: []string{"b"}, AllowMultipleAllocations: ptr.To(true),
					Taints: []resourceapi.DeviceTaint{{Key: "k", Value: node, Effect: "NoSchedule"}},
					Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
						"uuid":  {StringValue: ptr.To(node + name)},
						"model": {StringValue: ptr.To("A")}, "index": {IntValue: ptr.To(int64(gpu))},
						"ecc": {BoolValue: ptr.To(true)}, "driver": {VersionValue: ptr.To("1.2.3")}},
					Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
						"memory": {Value: resource.MustParse("8Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
							Default: ptr.To(resource.MustParse("1Gi"))}}}}
				if part > 0 {
					d.Name += fmt.Sprint("-part-", part)
					d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{
						{CounterSet: name, Counters: counters}, {CounterSet: fmt.Sprint(part), Counters: counters}}
				}
				s.Spec.Devices = append(s.Spec.Devices, d)
			}
		}
		list.Items = append(list.Items, s)
	}
	return list
}

// From protobuf, only what is kept is decoded. It is what the typed client decodes, without the rest, on every page.
func TestDevices(t *testing.T) {
	all := slicesOf("a", "b", "c")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, runtime.ContentTypeProtobuf) {
			t.Errorf("got Accept: %s, want protobuf", accept)
		}
		page := slicesOf("a", "b")
		if page.Continue = "more"; r.URL.Query().Get("continue") != "" {
			page = slicesOf("c")
		}
		var body bytes.Buffer
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(page, &body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(body.Bytes()) // the client has gone
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	model := func(name resourceapi.QualifiedName) bool { return name == "model" || name == "uuid" }
	for name, devices := range map[string]func() Devices{
		"everything": nil,
		"some attributes": func() Devices {
			return Devices{Attribute: model, Counters: true}
		},
		"of each GPU the first partition, without identity": func() Devices {
			parts := map[string]int{}
			return Devices{Keep: func(s *resourceapi.ResourceSlice, device string, consumes bool) (bool, bool) {
				if s.Spec.Devices != nil || s.Name != *s.Spec.NodeName {
					t.Errorf("got slice %+v, want one without devices", s)
				}
				if consumes {
					parts[s.Name+device[:5]]++
				}
				return parts[s.Name+device[:5]] < 2, !consumes
			}}
		},
		"nothing": func() Devices {
			return Devices{Keep: func(*resourceapi.ResourceSlice, string, bool) (bool, bool) { return false, false }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Reader{Client: client, Devices: devices}.Read(t.Context(), cluster.Slices)
			if err := s.Unread[cluster.Slices]; err != nil {
				t.Fatal(err)
			}
			want := all.DeepCopy()
			if devices != nil {
				devices().Shorten(want)
			} else {
				Devices{Counters: true}.Shorten(want)
			}
			if len(s.Slices) != len(want.Items) {
				t.Fatalf("got %d slices, want %d", len(s.Slices), len(want.Items))
			}
			for i, got := range s.Slices {
				if diff := cmp.Diff(&want.Items[i], got); diff != "" {
					t.Errorf("slice %s (-want +got):\n%s", got.Name, diff)
				}
			}
		})
	}
}

// The second page is read while nothing of the first is decoded, because it is not known yet what is kept. It has more
// slices, if they are small.
func TestReadAhead(t *testing.T) {
	for _, row := range []struct {
		name  string
		bytes int // of a slice, at least
		limit string
	}{{"small slices", 0, "200"}, {"large slices", pageBytes / 2, "100"}} {
		t.Run(row.name, func(t *testing.T) {
			second := make(chan string, 1) // its limit
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				page := slicesOf("a")
				if query := r.URL.Query(); query.Get("continue") == "" {
					page.Continue = "more"
				} else {
					second <- query.Get("limit")
				}
				page.Items[0].Annotations = map[string]string{"x": strings.Repeat("x", row.bytes)}
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				// If that fails, the client has gone.
				_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(page, w)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			s := Reader{Client: client, Devices: func() Devices {
				if got := <-second; got != row.limit {
					t.Errorf("got limit %s, want %s", got, row.limit)
				}
				return Devices{}
			}}.Read(t.Context(), cluster.Slices)
			if err := s.Unread[cluster.Slices]; err != nil || len(s.Slices) != 2 {
				t.Errorf("got %d slices, %v, want 2", len(s.Slices), err)
			}
		})
	}
}

// What the API server says of a request is not lost: by the reason the reader begins again, and people see who may not.
func TestDevicesThatAreRefused(t *testing.T) {
	for _, refused := range []*apierrors.StatusError{
		apierrors.NewResourceExpired("the token has expired"),
		apierrors.NewForbidden(resourceapi.Resource("resourceslices"), "", errors.New("user x may not list")),
	} {
		t.Run(string(refused.ErrStatus.Reason), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				status := refused.ErrStatus
				status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				w.WriteHeader(int(status.Code))
				_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(&status, w) // the client has gone
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			_, err = page(t.Context(), client.ResourceV1(), metav1.ListOptions{}, &resourceapi.ResourceSliceList{})
			if got := apierrors.ReasonForError(err); got != refused.ErrStatus.Reason || err.Error() != refused.Error() {
				t.Errorf("got reason %s, %v, want %s, %v", got, err, refused.ErrStatus.Reason, refused)
			}
		})
	}
}

// An answer that is cut off, or no protobuf at all, is an error.
func TestDevicesOfBrokenAnswers(t *testing.T) {
	var body bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(slicesOf("a"), &body); err != nil {
		t.Fatal(err)
	}
	whole := body.Bytes()
	for name, text := range map[string][]byte{"empty": nil, "another format": []byte("{}"),
		"cut off": whole[:len(whole)/2], "a broken device": bytes.Replace(whole, []byte("\x0a\x05gpu-0"),
			[]byte("\x0a\x7fgpu-0"), 1)} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				_, _ = w.Write(text)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			s := Reader{Client: client}.Read(t.Context(), cluster.Slices)
			if s.Unread[cluster.Slices] == nil {
				t.Errorf("got %d slices, want an error", len(s.Slices))
			}
		})
	}
}
