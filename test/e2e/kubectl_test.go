//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/kubectl-gpu/commands"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testKubectl runs the commands of kubectl-gpu while containers have a share and a whole GPU of a node, as a user with
// the rights that docs/reference/kubectl-gpu.md asks for, and as one without rights.
func (s *suite) testKubectl(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	const model = "NVIDIA H100 80GB HBM3"
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "kubectl")
	some := s.allocating(t, ns, "some", "4Gi", onNode(node),
		withTemplate(s.templateFor(t, ns, "some", share("gpu", model, "5Gi", "30"))))
	whole := s.running(t, s.pod(t, ns, "whole", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	shared, taken := s.allocated(t, some), s.allocated(t, whole)
	user := s.kubectlUser(t, ns)

	list, err := kubectlGPU(t.Context(), "ls", node, "--as", user)
	s.must(t, err)
	row := rowOf(t, list, shared.Name)
	for _, want := range []string{node, model, "5Gi/79.6Gi", "30%", ns + "/some-gpu-", "(5Gi, 30%)"} {
		if !strings.Contains(row, want) {
			t.Errorf("ls: got %q, want in it %q", row, want)
		}
	}
	if row := rowOf(t, list, taken.Name); !strings.Contains(row, "79.6Gi/79.6Gi") || !strings.Contains(row, "100%") {
		t.Errorf("ls: got %q, want the whole GPU held", row)
	}

	described, err := kubectlGPU(t.Context(), "describe", node+"/"+shared.Name, "--as", user)
	s.must(t, err)
	if held := rowOf(t, described, "some-gpu-"); !strings.Contains(held, " "+some.Name+" ") {
		t.Errorf("describe: got %q, want the pod %s", held, some.Name)
	}

	models, err := kubectlGPU(t.Context(), "models", "--model", "h100", "--as", user)
	s.must(t, err)
	if row := rowOf(t, models, model); !strings.Contains(row, "gpu.nvidia.com, strongest.gpu.nvidia.com") {
		t.Errorf("models: got %q, want the classes that accept it", row)
	}

	s.must(t, kube.Until(t.Context(), soon, "the use of both pods", func(ctx context.Context) (bool, string, error) {
		top, err := kubectlGPU(ctx, "top", "-n", ns, "--as", user)
		return strings.Contains(top, " 4Gi/5Gi ") && strings.Contains(top, whole.Name), top, err
	}))

	_, err = kubectlGPU(t.Context(), "ls", "--as", "system:serviceaccount:"+ns+":default")
	if want := "the missing right is the verb \"list\" on resourceslices.resource.k8s.io"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("without rights: got %v, want %q", err, want)
	}
}

// testKubectlWhy: a pod asks for more memory than a GPU has. The scheduler is the judge of the advice: it places a pod
// with the amount that the advice names, and none with the next larger one. fits agrees with both.
func (s *suite) testKubectlWhy(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	const model = "NVIDIA H100 80GB HBM3"
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "why")
	user := s.kubectlUser(t, ns)
	asks := func(name, memory string) client.ObjectKey {
		return s.pod(t, ns, name, onNode(node),
			withTemplate(s.templateFor(t, ns, name, share("gpu", model, memory, "30"))))
	}
	pod := asks("too-much", "100Gi")
	s.waitUnschedulable(t, pod)
	text, err := kubectlGPU(t.Context(), "why", pod.Name, "-n", ns, "--as", user)
	s.must(t, err)
	advice := regexp.MustCompile(`(?m)^smallest change: .* ask for (\S+) memory instead of 100Gi`).FindStringSubmatch(text)
	if advice == nil {
		t.Fatalf("why: got\n%s\nwant the amount of memory that would fit", text)
	}
	list, err := kubectlGPU(t.Context(), "why", "-n", ns, "--as", user)
	s.must(t, err)
	cause, _, _ := strings.Cut(strings.TrimPrefix(text, "pod "+pod.Name+" waits: "), "\n")
	if lines := strings.Split(strings.TrimSpace(list), "\n"); len(lines) != 2 ||
		!strings.HasPrefix(lines[1], "pod/"+pod.Name+" ") || !strings.HasSuffix(lines[1], cause) {
		t.Errorf("why without a name: got\n%s\nwant one line, of the pod, with the cause\n%s", list, cause)
	}
	s.waitAnswer(t, pod, "pod "+pod.Name+" waits: ", "100Gi", "; smallest change: ", "ask for "+advice[1]+" memory")
	more := resource.MustParse(advice[1])
	more.Add(resource.MustParse("1Mi"))

	for _, row := range []struct {
		name, memory string
		fits         bool
	}{{"advised", advice[1], true}, {"more", more.String(), false}} {
		claim := resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1",
			Kind: "ResourceClaim"}, ObjectMeta: metav1.ObjectMeta{Name: row.name}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{share("gpu", model, row.memory, "30")}
		manifest, err := yaml.Marshal(claim)
		s.must(t, err)
		file := filepath.Join(t.TempDir(), "claim.yaml")
		s.must(t, os.WriteFile(file, manifest, 0o600))
		text, err := kubectlGPU(t.Context(), "fits", "-f", file, "-n", ns, "--as", user)
		if (err == nil) != row.fits {
			t.Errorf("fits with %s: got error %v and\n%s", row.memory, err, text)
		}
		pod := asks(row.name, row.memory)
		if row.fits {
			s.running(t, pod)
		} else {
			s.waitUnschedulable(t, pod)
		}
		s.deletePod(t, pod)
	}
}

// testKubectlDefrag: two Deployments have shares of two GPUs. defrag moves the smaller share beside the other one, as a
// user with the rights that docs/reference/kubectl-gpu.md asks for.
func (s *suite) testKubectlDefrag(t *testing.T) {
	s.needs(t, append(slices.Clone(sharesOfMIG), "Kubernetes 1.37", "DRADeviceTaintRules")...)
	node := s.node(t, "dgx-h100")
	gpus := s.wholeGPUs(t, node)
	ns := s.namespace(t, "defrag")
	user := s.kubectlUser(t, ns)
	on := func(number int) func(string) bool {
		return func(device string) bool { return device == gpus[number].Name }
	}
	for i, name := range []string{"small", "large"} {
		asks := func() resourceapi.DeviceRequest {
			return share("gpu", "NVIDIA H100 80GB HBM3", []string{"5Gi", "20Gi"}[i], "10")
		}
		pinned := asks()
		pinned.Exactly.Selectors = append(pinned.Exactly.Selectors, resourceapi.DeviceSelector{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes['%s'].uuid == '%s'", *driver,
				stringAttribute(gpus[i], "uuid"))}})
		s.templateFor(t, ns, name, pinned)
		s.replicas(t, ns, name, node, name, 1)
		s.waitReplicas(t, ns, name, 1, on(i))
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		s.must(t, s.Delete(t.Context(), template))
		s.templateFor(t, ns, name, asks()) // for replacements
	}

	plan, err := kubectlGPU(t.Context(), "defrag", "--driver", *driver, "--as", user)
	s.must(t, err)
	row := rowOf(t, plan, ns+"/small-")
	for _, want := range []string{gpus[0].Name, node + "/" + gpus[1].Name, "5Gi, 10%"} {
		if !strings.Contains(row, want) {
			t.Errorf("defrag: got %q, want in it %q", row, want)
		}
	}
	done, err := kubectlGPU(t.Context(), "defrag", "--driver", *driver, "--as", user, "--apply")
	if want := node + "/" + gpus[0].Name + " is free now."; err != nil || !strings.Contains(done, want) {
		t.Fatalf("defrag --apply: got %v and\n%s\nwant %q", err, done, want)
	}
	s.waitReplicas(t, ns, "small", 1, on(1))
	list, err := kubectlGPU(t.Context(), "ls", node+"/"+gpus[0].Name, "--as", user)
	s.must(t, err)
	if row := rowOf(t, list, gpus[0].Name); !strings.Contains(row, " 0/79.6Gi") || strings.Contains(row, "defrag") {
		t.Errorf("afterwards: got %q, want a GPU without holders and taints", row)
	}
}

// testKubectlReserve keeps a GPU for a team, as a user with the rights that docs/reference/kubectl-gpu.md asks for. A
// pod that asks for this GPU waits until that ends. One with the toleration that the command prints does not.
func (s *suite) testKubectlReserve(t *testing.T) {
	s.needs(t, append(slices.Clone(sharesOfMIG), "Kubernetes 1.37", "DRADeviceTaintRules")...)
	node := s.node(t, "dgx-h100")
	s.shell(t, "kubectl version --client") // or it is skipped
	one := s.wholeGPUs(t, node)[0]
	ns := s.namespace(t, "reserve")
	user := s.kubectlUser(t, ns)
	this := fmt.Sprintf("device.attributes['%s'].uuid == '%s'", *driver, stringAttribute(one, "uuid"))

	text, err := kubectlGPU(t.Context(), "reserve", ns, node, "--driver", *driver, "--selector", this, "--as", user)
	s.must(t, err)
	t.Cleanup(func() { // it has ended by then, unless the test has failed
		s.must(t, s.DeleteAllOf(context.WithoutCancel(t.Context()), &resourceapi.DeviceTaintRule{},
			client.MatchingLabels{"gpu.nvidia.com/reserved": ns}))
	})
	asks := share("gpu", "NVIDIA H100 80GB HBM3", "5Gi", "10")
	asks.Exactly.Selectors = append(asks.Exactly.Selectors, resourceapi.DeviceSelector{
		CEL: &resourceapi.CELDeviceSelector{Expression: this}})
	template := s.templateFor(t, ns, "outsider", asks)
	create := func() client.ObjectKey { return s.pod(t, ns, "outsider", onNode(node), withTemplate(template)) }
	outsider := create()
	s.must(t, kube.Until(t.Context(), soon, "a scheduler that knows of the reservation", func(ctx context.Context) (
		bool, string, error) {
		var pod corev1.Pod
		err := s.Get(ctx, outsider, &pod)
		if pod.Spec.NodeName != "" { // the scheduler did not know it then
			s.deletePod(t, outsider)
			create()
		}
		return unschedulable(&pod), kube.PodState(&pod), err
	}))
	_, block, _ := strings.Cut(text, "\ntolerations:\n")
	block, _, _ = strings.Cut(block, "\n\n")
	s.must(t, yaml.UnmarshalStrict([]byte(block), &asks.Exactly.Tolerations))
	member := s.running(t, s.pod(t, ns, "member", onNode(node), withTemplate(s.templateFor(t, ns, "member", asks))))
	if got := s.allocated(t, member); got.Name != one.Name {
		t.Errorf("got %s for the pod that tolerates the taint, want %s", got.Name, one.Name)
	}
	s.waitUnschedulable(t, outsider)
	for _, row := range [][2]string{{"why outsider -n " + ns, "kept for " + ns + " by kubectl gpu reserve"},
		{"ls " + node + "/" + one.Name, " kept for " + ns + " "}, {"reserve --no-headers", ns + " "}} {
		got, err := kubectlGPU(t.Context(), append(strings.Fields(row[0]), "--as", user)...)
		if err != nil || !strings.Contains(got, row[1]) {
			t.Errorf("%s: got error %v and\n%s\nwant in it %q", row[0], err, got, row[1])
		}
	}
	_, end, _ := strings.Cut(text, "To end it: ")
	s.shell(t, strings.TrimSpace(end)+" --as "+user)
	s.running(t, outsider)
}

// waitAnswer waits for the event with which the controller says why the claim of the pod waits.
func (s *suite) waitAnswer(t *testing.T, pod client.ObjectKey, parts ...string) {
	t.Helper()
	if len(s.controllers(t)) == 0 {
		t.Log("no controller is installed, so no event says why claims wait")
		return
	}
	var waiting corev1.Pod
	s.must(t, s.Get(t.Context(), pod, &waiting))
	claim := s.claimOf(t, &waiting)
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), append(parts, "NotAllocated: ")...)
}

// kubectlUser returns the name of a user with the rights of docs/reference/kubectl-gpu.md, until the test ends.
func (s *suite) kubectlUser(t *testing.T, namespace string) string {
	t.Helper()
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "kubectl-gpu"}}
	user := "system:serviceaccount:" + namespace + ":kubectl-gpu"
	blocks := s.yamlBlocks(t, "../../docs/reference/kubectl-gpu.md")
	for i, block := range blocks {
		var role rbacv1.ClusterRole
		s.must(t, yaml.UnmarshalStrict([]byte(block), &role))
		role.Name = fmt.Sprintf("%s-%d", namespace, i)
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}
		named := metav1.ObjectMeta{Name: role.Name}
		var binding client.Object = &rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: ref, Subjects: subjects}
		if i == len(blocks)-1 { // only in the namespace of the driver
			named.Namespace = controllerNamespace
			binding = &rbacv1.RoleBinding{ObjectMeta: named, RoleRef: ref, Subjects: subjects}
		}
		for _, object := range []client.Object{&role, binding} {
			s.must(t, s.Create(t.Context(), object))
			t.Cleanup(func() { s.must(t, s.Delete(context.WithoutCancel(t.Context()), object)) })
		}
		s.waitAllowed(t, user, named.Namespace, role.Rules)
	}
	return user
}

// waitAllowed waits until the API server grants the user new rights: it reads roles and bindings from a cache.
func (s *suite) waitAllowed(t *testing.T, user, namespace string, rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, asked := range rightsIn(rules) {
		asked.Namespace = namespace
		s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("the right of %s to %s %s", user, asked.Verb,
			asked.Resource), func(ctx context.Context) (bool, string, error) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
				ResourceAttributes: &asked}}
			err := s.Create(ctx, review)
			return review.Status.Allowed, review.Status.Reason, err
		}))
	}
}

// rightsIn returns each right of the rules by itself. Of those with names, it has the first.
func rightsIn(rules []rbacv1.PolicyRule) (rights []authorizationv1.ResourceAttributes) {
	for _, rule := range rules {
		var name string
		if len(rule.ResourceNames) > 0 {
			name = rule.ResourceNames[0]
		}
		for _, group := range rule.APIGroups {
			for _, text := range rule.Resources {
				resource, subresource, _ := strings.Cut(text, "/")
				for _, verb := range rule.Verbs {
					rights = append(rights, authorizationv1.ResourceAttributes{Verb: verb, Group: group,
						Resource: resource, Subresource: subresource, Name: name})
				}
			}
		}
	}
	return rights
}

// kubectlGPU runs kubectl-gpu on the cluster of $KUBECONFIG and returns what it prints.
func kubectlGPU(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := commands.Command(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}, "")
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// rowOf returns the first line with the text.
func rowOf(t *testing.T, table, text string) string {
	t.Helper()
	for line := range strings.Lines(table) {
		if strings.Contains(line, text) {
			return line
		}
	}
	t.Fatalf("got\n%s\nwant a line with %s", table, text)
	return ""
}
