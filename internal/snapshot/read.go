// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
)

// The resources that Read can read: the keys of Snapshot.Unread.
const (
	Nodes     = "nodes"
	Slices    = "resourceslices"
	Classes   = "deviceclasses"
	Claims    = "resourceclaims"
	Templates = "resourceclaimtemplates"
	Pods      = "pods"
	Quotas    = "resourcequotas"
	// TaintRules are read with Slices.
	TaintRules = "devicetaintrules"
)

// groups are the API groups of the resources; those of others are in the core group.
var groups = map[string]string{Slices: resourceapi.GroupName, Classes: resourceapi.GroupName,
	Claims: resourceapi.GroupName, Templates: resourceapi.GroupName, TaintRules: resourceapi.GroupName}

// Reader reads snapshots.
type Reader struct {
	Client kubernetes.Interface
	// Namespace is read where the user may not list a namespaced resource in all namespaces.
	Namespace string
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
func (r Reader) Read(ctx context.Context, resources ...string) *Snapshot {
	s := &Snapshot{Unread: map[string]error{}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	if slices.Contains(resources, Slices) {
		resources = append(slices.Clone(resources), TaintRules)
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
	s.Slices = Tainted(s.Slices, s.TaintRules)
	return s
}

// read reads one resource into its field.
func (r Reader) read(ctx context.Context, s *Snapshot, resource string) (err error) {
	core, dra := r.Client.CoreV1(), r.Client.ResourceV1()
	switch resource {
	case Nodes:
		s.Nodes, err = list[*corev1.Node](ctx, r, core.Nodes().List)
	case Slices:
		s.Slices, err = list[*resourceapi.ResourceSlice](ctx, r, dra.ResourceSlices().List)
	case TaintRules:
		s.TaintRules, err = list[*resourceapi.DeviceTaintRule](ctx, r, dra.DeviceTaintRules().List)
		switch {
		case apierrors.IsNotFound(err): // before Kubernetes 1.37 they are not in resource.k8s.io/v1
			s.TaintRules, err = nil, nil
		case err == nil && s.TaintRules == nil:
			s.TaintRules = []*resourceapi.DeviceTaintRule{}
		}
	case Classes:
		s.Classes, err = list[*resourceapi.DeviceClass](ctx, r, dra.DeviceClasses().List)
	case Claims:
		s.Claims, err = namespaced[*resourceapi.ResourceClaim](ctx, r, dra.ResourceClaims)
	case Templates:
		s.Templates, err = namespaced[*resourceapi.ResourceClaimTemplate](ctx, r, dra.ResourceClaimTemplates)
	case Pods:
		s.Pods, err = namespaced[*corev1.Pod](ctx, r, core.Pods)
	case Quotas:
		s.Quotas, err = namespaced[*corev1.ResourceQuota](ctx, r, core.ResourceQuotas)
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
	return own, &PartialError{Namespace: r.Namespace, Err: err}
}

// PartialError means that a resource was read in one namespace only.
type PartialError struct {
	Namespace string
	Err       error
}

// Error implements error.
func (e *PartialError) Error() string {
	return fmt.Sprintf("only those of namespace %s are known: %v", e.Namespace, e.Err)
}

// Unwrap returns the reason why it was not read in all namespaces.
func (e *PartialError) Unwrap() error { return e.Err }

const (
	perPage = 500 // objects; that of kubectl
	// slicesPerPage is less, because a page of 500 slices with all partitions needs 300 MiB while it is decoded.
	slicesPerPage = 50
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
	p.PageSize, p.PageBufferSize = size, 1
	slim := func(o runtime.Object) runtime.Object { return o }
	if r.Slim != nil {
		slim = r.Slim()
	}
	err = p.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
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

// Err returns what could not be read, with the right that is missing; nil: nothing. If the API server cannot be
// reached, it says so once.
func (s *Snapshot) Err() error {
	var all []error
	for _, resource := range slices.Sorted(maps.Keys(s.Unread)) {
		err := s.Unread[resource]
		var unreachable *url.Error
		if errors.As(err, &unreachable) {
			return err
		}
		all = append(all, explain(resource, err))
	}
	if slices.ContainsFunc(all, func(err error) bool { return errors.As(err, new(*missingRight)) }) {
		all = append(all, errors.New("a ClusterRole to copy: "+rightsPage))
	}
	return errors.Join(all...)
}

// rightsPage has a ClusterRole with all rights of readers.
const rightsPage = "https://github.com/gpudra/gpu-dra-driver/blob/main/docs/kubectl-gpu.md#rights"

// missingRight means that the user may not list the resource.
type missingRight struct {
	resource string
	err      error
}

// Error implements error. It leaves out what the API server says: that has the same content.
func (e *missingRight) Error() string {
	only := ""
	var partial *PartialError
	if errors.As(e.err, &partial) {
		only = fmt.Sprintf("only those of namespace %s are known; ", partial.Namespace)
	}
	return fmt.Sprintf("read %s: %sthe missing right is the verb \"list\" on %s in a ClusterRole", e.resource, only,
		FullName(e.resource))
}

// Unwrap returns the answer of the API server.
func (e *missingRight) Unwrap() error { return e.err }

func explain(resource string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return &missingRight{resource, err}
	case apierrors.IsNotFound(err) && groups[resource] != "":
		return fmt.Errorf("read %s: the API server does not serve %s/v1: Kubernetes 1.34 or newer is needed (%w)",
			resource, groups[resource], err)
	}
	return fmt.Errorf("read %s: %w", resource, err)
}
