// SPDX-License-Identifier: Apache-2.0

// Package read reads snapshots of a cluster from the API server, with the rights of the user.
package read

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// Reader reads snapshots.
type Reader struct {
	Client kubernetes.Interface
	// Namespace is read where the user may not list a namespaced resource in all namespaces.
	Namespace string
	// Devices returns what to keep of slices, for one list of them. nil: everything.
	Devices func() Devices
	// PageSize is how many objects are read at once, other than slices. 0: perPage.
	PageSize int64
	// Progress is called for each object that is read, from several goroutines. nil: nothing is called.
	Progress func()
	// Slim returns a function for one list of objects. That returns what to keep of each, of the same type, or nil for
	// nothing, and is called after each page, so that not all objects are in memory at once. If a list is read again
	// from the start, it gets another function. Slim is called from several goroutines. nil: objects are kept as they
	// are.
	Slim func() func(runtime.Object) runtime.Object
}

// Read reads these resources at the same time. What cannot be read is in Unread.
func (r Reader) Read(ctx context.Context, resources ...string) *cluster.Snapshot {
	s := &cluster.Snapshot{Unread: map[string]error{}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	if slices.Contains(resources, cluster.Slices) {
		resources = append(slices.Clone(resources), cluster.TaintRules)
	}
	for _, resource := range resources {
		wg.Go(func() {
			if err := r.read(ctx, s, resource); err != nil {
				mu.Lock()
				defer mu.Unlock()
				s.Unread[resource] = err
			}
		})
	}
	wg.Wait()
	s.Slices = cluster.Tainted(s.Slices, s.TaintRules)
	return s
}

// read reads one resource into its field.
func (r Reader) read(ctx context.Context, s *cluster.Snapshot, resource string) (err error) {
	core, dra := r.Client.CoreV1(), r.Client.ResourceV1()
	switch resource {
	case cluster.Nodes:
		s.Nodes, err = list[*corev1.Node](ctx, r, core.Nodes().List)
	case cluster.Slices:
		s.Slices, err = list[*resourceapi.ResourceSlice](ctx, r, r.slices(dra))
	case cluster.TaintRules:
		s.TaintRules, err = list[*resourceapi.DeviceTaintRule](ctx, r, dra.DeviceTaintRules().List)
		switch {
		case apierrors.IsNotFound(err): // before Kubernetes 1.37 they are not in resource.k8s.io/v1
			s.TaintRules, err = nil, nil
		case err == nil && s.TaintRules == nil:
			s.TaintRules = []*resourceapi.DeviceTaintRule{}
		}
	case cluster.Classes:
		s.Classes, err = list[*resourceapi.DeviceClass](ctx, r, dra.DeviceClasses().List)
	case cluster.Claims:
		s.Claims, err = namespaced[*resourceapi.ResourceClaim](ctx, r, dra.ResourceClaims)
	case cluster.Templates:
		s.Templates, err = namespaced[*resourceapi.ResourceClaimTemplate](ctx, r, dra.ResourceClaimTemplates)
	case cluster.Pods:
		s.Pods, err = namespaced[*corev1.Pod](ctx, r, core.Pods)
	case cluster.Events:
		for _, namespace := range []string{r.Namespace, metav1.NamespaceDefault} { // that has those of nodes
			more, failed := list[*corev1.Event](ctx, r, func(ctx context.Context, o metav1.ListOptions) (
				*corev1.EventList, error) {
				o.FieldSelector = "type=" + corev1.EventTypeWarning
				return core.Events(namespace).List(ctx, o)
			})
			s.Warnings, err = append(s.Warnings, more...), cmp.Or(err, failed)
		}
	case cluster.Quotas:
		s.Quotas, err = namespaced[*corev1.ResourceQuota](ctx, r, core.ResourceQuotas)
	case cluster.GPUQuotas:
		s.GPUQuotas, err = namespaced[*cluster.GPUQuota](ctx, r, func(namespace string) gpuQuotas {
			return gpuQuotas{dra.RESTClient(), namespace}
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	default:
		err = fmt.Errorf("%s is no resource of a snapshot", resource)
	}
	return err
}

// lister is a typed client of one resource.
type lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
}

// namespaced reads a resource in all namespaces. If the user may not do that, it reads those of the reader's namespace
// and returns them together with the error.
func namespaced[T, L runtime.Object, C lister[L]](ctx context.Context, r Reader,
	client func(namespace string) C) ([]T, error) {
	all, err := list[T](ctx, r, client(metav1.NamespaceAll).List)
	if !apierrors.IsForbidden(err) || r.Namespace == "" {
		return all, err
	}
	own, ownErr := list[T](ctx, r, client(r.Namespace).List)
	if ownErr != nil {
		return nil, ownErr
	}
	return own, &cluster.PartialError{Namespace: r.Namespace, Err: err}
}

const (
	perPage = 500 // objects; that of kubectl
	// slicesPerPage is less: a slice with 128 partitions has 90 KiB. A later page has up to twice as many as the one
	// before, but at most perPage, and if they are as large as those not more than pageBytes.
	slicesPerPage = 100
	pageBytes     = 4 << 20
)

// list reads page by page. If the API server has forgotten the version of the first page, it starts again without
// pages.
func list[T, L runtime.Object](ctx context.Context, r Reader,
	of func(context.Context, metav1.ListOptions) (L, error)) ([]T, error) {
	size := cmp.Or(r.PageSize, perPage)
	if _, ok := any(*new(T)).(*resourceapi.ResourceSlice); ok {
		size = slicesPerPage
	}
	all, err := pages[T](ctx, r, of, size)
	if apierrors.IsResourceExpired(err) {
		return pages[T](ctx, r, of, 0)
	}
	return all, err
}

func pages[T, L runtime.Object](ctx context.Context, r Reader,
	of func(context.Context, metav1.ListOptions) (L, error), size int64) (all []T, err error) {
	p := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return of(ctx, opts) })
	p.PageSize, p.PageBufferSize = size, 0 // one page is read while another is used
	slim := func(o runtime.Object) runtime.Object { return o }
	if r.Slim != nil {
		slim = r.Slim()
	}
	err = p.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) (err error) {
		if u, ok := o.(*undecodedSlice); ok {
			if o, err = u.decode(); err != nil {
				return err
			}
		}
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("the list has a %T", o)
		}
		if r.Progress != nil {
			r.Progress()
		}
		if object, ok = slim(object).(T); ok {
			all = append(all, object)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
