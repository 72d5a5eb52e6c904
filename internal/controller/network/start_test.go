// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// TestStart: the leader follows server pods and claims by itself, and the class owns the pool.
func TestStart(t *testing.T) {
	w := newWorld(t)
	p := &publisher{client: w.api, driver: "remote.gpu.nvidia.com"}
	w.Controller.publish = p.publish
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Start(ctx) }()
	published := func() (found *resourceapi.ResourceSlice) {
		list, err := w.api.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if s := &list.Items[i]; s.Spec.Driver == p.driver && len(s.Spec.Devices) > 0 {
				found = s
			}
		}
		return found
	}
	until := func(what string, done func() bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) { return done(), nil }); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	w.do("server a 1 0")
	until("the server is published", func() bool { return published() != nil })
	s := published()
	if owners := s.OwnerReferences; len(owners) != 1 || owners[0].Kind != "DeviceClass" || owners[0].UID != "class" {
		t.Errorf("got the owners %v, want the class", owners)
	}
	if s.Spec.NodeSelector == nil || s.Spec.NodeName != nil ||
		s.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Key != remote.ClientLabel {
		t.Errorf("got the nodes %v, want those with the label", s.Spec.NodeSelector)
	}
	w.do("claim c a")
	w.follow()
	until("the claim is admitted", func() bool {
		c, err := w.api.ResourceV1().ResourceClaims("ml").Get(ctx, "c", metav1.GetOptions{})
		return err == nil && len(c.Status.Devices) == 1
	})
	w.use("c", "pod", "client", "pod")
	w.request("c", account, "client")
	until("the certificate is signed", func() bool {
		csr, err := w.api.CertificatesV1().CertificateSigningRequests().Get(ctx, "r", metav1.GetOptions{})
		return err == nil && len(csr.Status.Certificate) > 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.controller.Stop()
}

// TestSliceRefused: the class of remote devices has an event, once, although each attempt to create a slice gives it
// another name.
func TestSliceRefused(t *testing.T) {
	w := newWorld(t)
	var attempts atomic.Int64
	w.api.PrependReactor("create", "resourceslices",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			name := fmt.Sprint("remote-", attempts.Add(1))
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, name, field.ErrorList{
				field.TooLongMaxLength(field.NewPath("spec", "devices").Index(0), "", 64)})
		})
	p := &publisher{client: w.api, driver: "remote.gpu.nvidia.com", tell: w.tell}
	class, _ := w.view.Class(p.driver)
	if err := p.publish(t.Context(), class, nil); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return attempts.Load() > 2, nil })
	p.controller.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var list corev1.EventList
	if err := w.direct.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Fatalf("got %d events, want 1", len(list.Items))
	}
	e := list.Items[0]
	got := fmt.Sprintf("%s of %s %s in %s: %s", e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Namespace,
		e.Message)
	const want = "SliceRefused of DeviceClass remote.gpu.nvidia.com in default: a slice is refused: " +
		"spec.devices[0]: Too long: may not be more than 64 bytes"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
