// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Snapshot is the state of a cluster, as far as the user may read it.
type Snapshot struct {
	Nodes []*corev1.Node
	// Slices have the taints of the rules, too. The rules are nil if the API server does not serve them.
	Slices     []*resourceapi.ResourceSlice
	TaintRules []*resourceapi.DeviceTaintRule
	Classes    []*resourceapi.DeviceClass
	Claims     []*resourceapi.ResourceClaim
	Templates  []*resourceapi.ResourceClaimTemplate
	Pods       []*corev1.Pod
	Warnings   []*corev1.Event // of the reader's namespace and of nodes
	Quotas     []*corev1.ResourceQuota
	GPUQuotas  []*GPUQuota // nil, too, if the API server has no such kind
	// Unread are the resources that could not be read, with the reason.
	Unread map[string]error // key: plural resource name, such as "resourceslices"
}

// The resources of a snapshot: the keys of Unread.
const (
	Nodes      = "nodes"
	Slices     = "resourceslices"
	Classes    = "deviceclasses"
	Claims     = "resourceclaims"
	Templates  = "resourceclaimtemplates"
	Pods       = "pods"
	Events     = "events"
	Quotas     = "resourcequotas"
	GPUQuotas  = "gpuquotas"
	TaintRules = "devicetaintrules"
)

// ofDRA are the resources of the API group resource.k8s.io; the others, but for GPUQuotas, are in the core group.
var ofDRA = []string{Slices, Classes, Claims, Templates, TaintRules}

// FullName returns the name of the resource with its API group.
func FullName(resource string) string {
	if slices.Contains(ofDRA, resource) {
		return resource + "." + resourceapi.GroupName
	}
	if resource == GPUQuotas {
		return resource + "." + QuotaVersion.Group
	}
	return resource
}

// PartialError means that a resource was read in one namespace only.
type PartialError struct {
	Namespace string
	Err       error // why it was not read in all namespaces
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("only those of namespace %s are known: %v", e.Namespace, e.Err)
}

func (e *PartialError) Unwrap() error { return e.Err }

// Unknown returns why objects of that resource in the namespace are not known, or nil.
func (s *Snapshot) Unknown(resource, namespace string) error {
	err := s.Unread[resource]
	var partial *PartialError
	if errors.As(err, &partial) && partial.Namespace == namespace {
		return nil
	}
	return err
}

// rightsPage has a ClusterRole with all rights of readers.
const rightsPage = "https://github.com/gpudra/gpu-dra-driver/blob/main/docs/reference/kubectl-gpu.md#rights"

// Err returns what could not be read, with the right that is missing; nil: nothing. If the API server cannot be
// reached, it says so once.
func (s *Snapshot) Err() error {
	var all []error
	forbidden := false
	for _, resource := range slices.Sorted(maps.Keys(s.Unread)) {
		err := s.Unread[resource]
		if resource == Events {
			continue // no answer needs them
		}
		var unreachable *url.Error
		if errors.As(err, &unreachable) {
			return err
		}
		forbidden = forbidden || apierrors.IsForbidden(err)
		all = append(all, explain(resource, err))
	}
	if forbidden {
		all = append(all, errors.New("a ClusterRole to copy: "+rightsPage))
	}
	return errors.Join(all...)
}

func explain(resource string, err error) error {
	var partial *PartialError
	switch {
	case apierrors.IsForbidden(err): // without what the API server says: that has the same content
		only := ""
		if errors.As(err, &partial) {
			only = fmt.Sprintf("only those of namespace %s are known; ", partial.Namespace)
		}
		return fmt.Errorf("read %s: %sthe missing right is the verb \"list\" on %s in a ClusterRole", resource, only,
			FullName(resource))
	case apierrors.IsNotFound(err) && slices.Contains(ofDRA, resource):
		return fmt.Errorf("read %s: the API server does not serve %s/v1: Kubernetes 1.34 or newer is needed (%w)",
			resource, resourceapi.GroupName, err)
	}
	return fmt.Errorf("read %s: %w", resource, err)
}
