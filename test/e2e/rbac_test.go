//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// auditCommand is the environment variable with the command that prints the API server's audit log. `make test-e2e`
// sets it.
const auditCommand = "E2E_AUDIT_COMMAND"

// auditEvent is the used part of audit.k8s.io/v1 Event.
type auditEvent struct {
	Verb      string
	UserAgent string
	User      struct{ Username string }
	ObjectRef *struct{ APIGroup, Resource, Subresource, Name string }

	ResponseStatus struct {
		Code    int
		Message string
	}
}

// right is the request in the form "patch events.k8s.io/events".
func (e auditEvent) right() string {
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return right(e.Verb, e.ObjectRef.APIGroup, resource)
}

func right(verb, group, resource string) string {
	if group != "" {
		resource = group + "/" + resource
	}
	return verb + " " + resource
}

// testRights runs last: by then, the plugin and the controller must have used all of their permissions, and requested
// nothing else.
func (s *suite) testRights(t *testing.T) {
	command := strings.Fields(os.Getenv(auditCommand))
	if len(command) == 0 {
		t.Skip(auditCommand + " is not set: make test-e2e starts a cluster with an audit log")
	}
	log, err := exec.CommandContext(t.Context(), command[0], command[1:]...).Output()
	s.must(t, err)
	plugin := s.plugin(t, s.node(t, "l40s-x4"))
	t.Run("plugin", func(t *testing.T) { s.testRightsOf(t, plugin, log, sparePlugin) })
	remote := plugin.DeepCopy() // its pod is gone
	remote.Spec.ServiceAccountName = strings.Replace(remote.Spec.ServiceAccountName, "-kubelet-plugin", "-remote", 1)
	t.Run("plugin of clients' nodes", func(t *testing.T) { s.testRightsOf(t, remote, log, nil) })
	controller := s.controllers(t)[0]
	t.Run("controller", func(t *testing.T) { s.testRightsOf(t, &controller, log, spareController) })
}

// testRightsOf compares the permissions of a pod's service account with its requests in the audit log.
func (s *suite) testRightsOf(t *testing.T, pod *corev1.Pod, log []byte, spare map[string]string) {
	user := "system:serviceaccount:" + pod.Namespace + ":" + pod.Spec.ServiceAccountName
	used := map[string]bool{}
	for line := range bytes.Lines(log) {
		var e auditEvent
		s.must(t, json.Unmarshal(line, &e))
		if e.User.Username != user || e.ObjectRef == nil || e.UserAgent == misusedToken {
			continue
		}
		used[e.right()] = true
		// An event may arrive while its namespace is being deleted.
		late := strings.Contains(e.ResponseStatus.Message, "is being terminated")
		if e.ResponseStatus.Code == 401 || e.ResponseStatus.Code == 403 && !late {
			t.Errorf("refused: %s %s: %s", e.right(), e.ObjectRef.Name, e.ResponseStatus.Message)
		}
	}
	granted := s.granted(t, pod.Namespace, pod.Spec.ServiceAccountName)
	t.Logf("granted:\n%s", strings.Join(granted, "\n"))
	whole := flag.Lookup("test.run").Value.String() == "" // a part of the suite does not use everything
	for _, right := range granted {
		if whole && !used[usedBy(right)] && spare[right] == "" {
			t.Errorf("granted and never used: %s", right)
		}
	}
	for _, right := range slices.Sorted(maps.Keys(used)) {
		if !slices.Contains(granted, right) {
			t.Errorf("used and not granted by the chart: %s", right)
		}
	}
}

// evictsItself is why the controller evicts no pod here.
const evictsItself = "Kubernetes before 1.37.2 does not evict pods with extended resources"

// Permissions for other clusters or for failures that the tests do not cause, with the reason.
var (
	sparePlugin = map[string]string{
		"list resource.k8s.io/resourceslices": "where the API server does not stream lists (its feature gate " +
			"WatchList is off)",
		"list configmaps": "the same",
	}
	spareController = map[string]string{
		"list " + webhooks + "validatingwebhookconfigurations": "the same",
		"list " + webhooks + "mutatingwebhookconfigurations":   "the same",

		"get nodes":         "the plugin of a node is away for as long as the kubelet waits",
		"get pods":          evictsItself,
		"patch pods/status": evictsItself,
		"delete pods":       evictsItself,
		"list resource.k8s.io/resourceslices": "where the API server does not stream lists (its feature gate " +
			"WatchList is off)",
		"list certificates.k8s.io/certificatesigningrequests": "the same",
		"approve certificates.k8s.io/signers":                 "a part of the request that approves",
		"sign certificates.k8s.io/signers":                    "a part of the request that signs",
		"delete resource.k8s.io/resourceslices":               "with fewer slices of GPUs over the network than before",
		"list resource.k8s.io/resourceclaims":                 "the same",
		"list resource.k8s.io/deviceclasses":                  "the same",
		"list resource.k8s.io/resourceclaimtemplates":         "the same",
		"list pods":                                     "the same",
		"get resource.k8s.io/resourceclaims":            "those of a pod that the scheduler refuses",
		"patch resource.k8s.io/deviceclasses":           "when the scheduler counts a share twice",
		"delete resource.k8s.io/resourceclaimtemplates": "those that no pod has used for ten minutes",
		"patch events":                                  "one that comes again",
		"get persistentvolumeclaims":                    "those of a pod that preempts others",
		"get persistentvolumes":                         "the same",
		"get scheduling.k8s.io/podgroups":               "those of pods that may be preempted",
		"delete coordination.k8s.io/leases":             "where it is needed to set the owner (OpenShift)",
	}
)

// usedBy returns the request that needs the permission: a write of a claim's status is authorized twice, the second
// time for the driver's part.
func usedBy(right string) string {
	if verb, ok := strings.CutSuffix(right, " resource.k8s.io/resourceclaims/driver"); ok {
		_, verb, _ = strings.Cut(verb, ":")
		return verb + " resource.k8s.io/resourceclaims/status"
	}
	return right
}

// granted returns all permissions of the service account, sorted.
func (s *suite) granted(t *testing.T, namespace, account string) []string {
	t.Helper()
	var bindings rbacv1.ClusterRoleBindingList
	s.must(t, s.List(t.Context(), &bindings))
	var rules []rbacv1.PolicyRule
	for _, b := range bindings.Items {
		if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == namespace && s.Name == account
		}) {
			var role rbacv1.ClusterRole
			s.must(t, s.Get(t.Context(), client.ObjectKey{Name: b.RoleRef.Name}, &role))
			rules = append(rules, role.Rules...)
		}
	}
	var own rbacv1.RoleBindingList
	s.must(t, s.List(t.Context(), &own, client.InNamespace(namespace)))
	for _, b := range own.Items {
		if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Name == account
		}) {
			var role rbacv1.Role
			s.must(t, s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: b.RoleRef.Name}, &role))
			rules = append(rules, role.Rules...)
		}
	}
	if len(rules) == 0 {
		t.Fatalf("no role for service account %s/%s", namespace, account)
	}
	rights := map[string]bool{}
	for _, r := range rules {
		if len(r.NonResourceURLs) > 0 || slices.Contains(append(append(r.Verbs, r.Resources...), r.APIGroups...), "*") {
			t.Errorf("a rule is too wide: %v", fmt.Sprint(r))
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					rights[right(verb, group, resource)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(rights))
}
