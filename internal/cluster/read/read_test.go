// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// objects are one of each resource, and pods in two namespaces.
func objects() []runtime.Object {
	in := func(namespace string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: "x"} }
	return []runtime.Object{&corev1.Node{ObjectMeta: in("")}, &resourceapi.ResourceSlice{ObjectMeta: in("")},
		&resourceapi.DeviceClass{ObjectMeta: in("")}, &resourceapi.ResourceClaim{ObjectMeta: in("ml")},
		&resourceapi.ResourceClaimTemplate{ObjectMeta: in("ml")}, &corev1.ResourceQuota{ObjectMeta: in("ml")},
		&corev1.Pod{ObjectMeta: in("ml")}, &corev1.Pod{ObjectMeta: in("other")}}
}

func TestRead(t *testing.T) {
	read := 0
	client := fake.NewClientset(objects()...)
	done := make(chan struct{}, 100)
	s := Reader{Client: client, Progress: func() { done <- struct{}{} }}.Read(t.Context(), cluster.Nodes,
		cluster.Slices, cluster.Classes,
		cluster.Claims, cluster.Templates, cluster.Pods, cluster.Quotas)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{len(s.Nodes), len(s.Slices), len(s.Classes), len(s.Claims), len(s.Templates),
		len(s.Quotas)} {
		if n != 1 {
			t.Errorf("got %d objects of a resource, want 1: %+v", n, s)
		}
		read += n
	}
	if len(s.Pods) != 2 {
		t.Errorf("got %d pods, want those of both namespaces", len(s.Pods))
	}
	if want := read + len(s.Pods); len(done) != want {
		t.Errorf("got %d calls of Progress, want %d", len(done), want)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "list" {
			t.Errorf("got the verb %s, want list only", action.GetVerb())
		}
	}
}

// Slim decides what is kept.
func TestReadSlim(t *testing.T) {
	slim := func(o runtime.Object) runtime.Object {
		if pod, ok := o.(*corev1.Pod); ok && pod.Namespace == "other" {
			return nil
		}
		if node, ok := o.(*corev1.Node); ok {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "slim-" + node.Name}}
		}
		return o
	}
	r := Reader{Client: fake.NewClientset(objects()...)}
	r.Slim = func() func(runtime.Object) runtime.Object { return slim }
	s := r.Read(t.Context(), cluster.Nodes, cluster.Pods, cluster.Claims)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || s.Pods[0].Namespace != "ml" || len(s.Claims) != 1 || len(s.Nodes) != 1 ||
		s.Nodes[0].Name != "slim-x" {
		t.Errorf("got pods %v, claims %v and nodes %v, want one of each, the node changed", s.Pods, s.Claims, s.Nodes)
	}
}

// A resource that may not be read in all namespaces is read in one.
func TestReadForbidden(t *testing.T) {
	for _, row := range []struct {
		name      string
		forbidden func(namespace string) bool
		pods      int
		partial   bool
	}{
		{"all namespaces", func(namespace string) bool { return namespace == "" }, 1, true},
		{"every namespace", func(string) bool { return true }, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := fake.NewClientset(objects()...)
			client.PrependReactor("list", cluster.Pods, func(a clienttesting.Action) (bool, runtime.Object, error) {
				if row.forbidden(a.GetNamespace()) {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: cluster.Pods}, "",
						errors.New("no"))
				}
				return false, nil, nil
			})
			s := Reader{Client: client, Namespace: "ml"}.Read(t.Context(), cluster.Pods)
			if len(s.Pods) != row.pods {
				t.Errorf("got %d pods, want %d", len(s.Pods), row.pods)
			}
			var partial *cluster.PartialError
			if errors.As(s.Unread[cluster.Pods], &partial) != row.partial {
				t.Errorf("got %v, want a PartialError: %t", s.Unread[cluster.Pods], row.partial)
			}
			if err := s.Err(); err == nil || !strings.Contains(err.Error(), `the verb "list" on pods in a ClusterRole`) {
				t.Errorf("got %v, want the missing right", err)
			}
		})
	}
}

// An API server that cannot be reached is reported once.
func TestUnreachable(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "http://localhost", Err: errors.New("connection refused")}
	s := cluster.Snapshot{Unread: map[string]error{cluster.Slices: refused, cluster.Claims: refused}}
	if got, want := s.Err().Error(), `Get "http://localhost": connection refused`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The API server forgets the version of a list while it is read.
func TestReadExpired(t *testing.T) {
	client := fake.NewClientset(objects()...)
	calls := 0
	client.PrependReactor("list", cluster.Slices, func(clienttesting.Action) (bool, runtime.Object, error) {
		if calls++; calls > 1 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewResourceExpired("too old")
	})
	s := Reader{Client: client}.Read(t.Context(), cluster.Slices)
	if len(s.Slices) != 1 || s.Err() != nil {
		t.Errorf("got %d slices, %v, want the slice", len(s.Slices), s.Err())
	}
}
