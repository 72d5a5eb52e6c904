// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/convert"
)

// template renders the chart as release x in namespace default.
func template(t *testing.T, args ...string) string {
	t.Helper()
	text, err := helm(t, append([]string{"template", "x", chart}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return text
}

// rendered decodes the object of the kind whose name ends in suffix. It says whether there is one.
func rendered(t *testing.T, text, kind, suffix string, into any) bool {
	t.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind != kind || !strings.HasSuffix(object.Name, suffix) {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Fatalf("%s %s: %v", kind, object.Name, err)
		}
		return true
	}
	return false
}

// images returns the images of the plugin, the supervisor, the controller and the scheduler.
func images(t *testing.T, args ...string) string {
	t.Helper()
	text := template(t, append(args, "--set", "scheduler.enabled=true", "--kube-version", "v1.36.2-gke.100",
		"--skip-tests")...)
	var all []string
	for _, found := range regexp.MustCompile(`(?m)^ +image: (.*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return strings.Join(all, "\n")
}

func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	const scheduler = "registry.k8s.io/kube-scheduler:v1.36.2\n"
	driver := "localhost/gpu-dra-driver:" + strings.TrimSpace(read(t, "../../VERSION")) + "\n"
	for _, tc := range []struct {
		name string
		set  []string
		want string // of the plugin, the supervisor, the controller and the scheduler
	}{
		{"the defaults", nil, driver + driver + driver + scheduler},
		{"a tag of one's own is that of all programs", []string{"image.tag=v9"},
			strings.Repeat("localhost/gpu-dra-driver:v9\n", 3) + scheduler},
		{"so is a digest", []string{"image.digest=" + digest},
			strings.Repeat("localhost/gpu-dra-driver@"+digest+"\n", 3) + scheduler},
		{"the supervisor of an earlier build", []string{"image.tag=v9", "mps.supervisor.image.tag=v8"},
			"localhost/gpu-dra-driver:v9\nlocalhost/gpu-dra-driver:v8\nlocalhost/gpu-dra-driver:v9\n" + scheduler},
		{"its tag is not overruled by the driver's digest", []string{"image.digest=" + digest,
			"mps.supervisor.image.tag=v8"}, "localhost/gpu-dra-driver@" + digest + "\nlocalhost/gpu-dra-driver:v8\n" +
			"localhost/gpu-dra-driver@" + digest + "\n" + scheduler},
		{"a mirror", []string{"global.imageRegistry=example.com/mirror/", "image.repository=quay.io/team/driver",
			"image.tag=v9"}, strings.Repeat("example.com/mirror/team/driver:v9\n", 3) +
			"example.com/mirror/kube-scheduler:v1.36.2\n"},
		{"a mirror of a repository without a registry", []string{"global.imageRegistry=example.com:5000",
			"image.repository=team/driver", "image.tag=v9"}, strings.Repeat("example.com:5000/team/driver:v9\n", 3) +
			"example.com:5000/kube-scheduler:v1.36.2\n"},
		{"a scheduler of one's own", []string{"scheduler.image.repository=example.com/s",
			"scheduler.image.digest=" + digest}, driver + driver + driver + "example.com/s@" + digest + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var args []string
			for _, set := range tc.set {
				args = append(args, "--set", set)
			}
			if got := images(t, args...) + "\n"; got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// Flux and helm --wait wait until all pods of a DaemonSet have its template. Nothing replaces those of the supervisor.
func TestReleasesDoNotTouchTheSupervisor(t *testing.T) {
	text := templateOf(t, "v9.9.9", "--set", "kubeletPlugin.maxSurge=5")
	var before, after, plugin appsv1.DaemonSet
	if !rendered(t, templateOf(t, "v9.9.8"), "DaemonSet", "-mps-supervisor", &before) ||
		!rendered(t, text, "DaemonSet", "-mps-supervisor", &after) ||
		!rendered(t, text, "DaemonSet", "-kubelet-plugin", &plugin) {
		t.Fatal("want both DaemonSets")
	}
	if got, want := asYAML(t, after.Spec), asYAML(t, before.Spec); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if image := plugin.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(image, ":v9.9.9") {
		t.Errorf("got plugin %s, want the later version", image)
	}
}

// templateOf renders the chart as the release with the version.
func templateOf(t *testing.T, version string, args ...string) string {
	t.Helper()
	released := filepath.Join(t.TempDir(), chart)
	if err := os.CopyFS(released, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	metadata := regexp.MustCompile(`(?m)^(version|appVersion): .*$`).ReplaceAllString(read(t, released+"/Chart.yaml"),
		"$1: "+version)
	if err := os.WriteFile(released+"/Chart.yaml", []byte(metadata), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := helm(t, append([]string{"template", "x", released}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return text
}

func asYAML(t *testing.T, o any) string {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Whoever set a value of an earlier chart can upgrade with --reset-then-reuse-values, which passes these values to the
// new chart: each of its values is still accepted, and none changes which classes there are. testdata/values has the
// values of the first chart, and of the last one with a value that was removed since.
func TestUpgradeFromEarlierCharts(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("got %v, error %v, want the first values and later ones", files, err)
	}
	for _, file := range files {
		text := template(t, "--values", file)
		if got, want := migClasses(t, "--values", file), migClasses(t); asYAML(t, got) != asYAML(t, want) {
			t.Errorf("%s: got classes\n%s\nwant those of the defaults\n%s", file, asYAML(t, got), asYAML(t, want))
		}
		var plugin appsv1.DaemonSet
		if !rendered(t, text, "DaemonSet", "-kubelet-plugin", &plugin) ||
			plugin.Spec.UpdateStrategy.RollingUpdate.MaxSurge.String() != "1" {
			t.Errorf("%s: got %v, want the value of that chart", file, plugin.Spec.UpdateStrategy.RollingUpdate)
		}
	}
}

func TestController(t *testing.T) {
	required := func(pod corev1.PodSpec) string {
		if pod.Affinity == nil || pod.Affinity.NodeAffinity == nil {
			return ""
		}
		return pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].
			MatchExpressions[0].Key
	}
	for _, tc := range []struct {
		name, set string
		wrong     func(pod corev1.PodSpec, d appsv1.Deployment) bool
	}{
		{"in the network of its node", "controller.hostNetwork=true", func(p corev1.PodSpec, d appsv1.Deployment) bool {
			return !p.HostNetwork || p.DNSPolicy != corev1.DNSClusterFirstWithHostNet ||
				d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal != 1
		}},
		{"not by default", "", func(p corev1.PodSpec, d appsv1.Deployment) bool {
			return p.HostNetwork || p.DNSPolicy != "" || d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal != 0 ||
				required(p) != "" || len(p.Tolerations) != 0
		}},
		{"on the control plane", "controller.onControlPlane=true,controller.tolerations[0].key=x",
			func(p corev1.PodSpec, _ appsv1.Deployment) bool {
				return required(p) != "node-role.kubernetes.io/control-plane" || len(p.Tolerations) != 2
			}},
		{"OpenShift chooses the user", "controller.podSecurityContext.runAsUser=null," +
			"controller.podSecurityContext.runAsGroup=null", func(p corev1.PodSpec, _ appsv1.Deployment) bool {
			return p.SecurityContext.RunAsUser != nil || p.SecurityContext.RunAsGroup != nil ||
				!*p.SecurityContext.RunAsNonRoot
		}},
		{"more arguments and variables", "controller.extraArgs={--vmodule=x=4},controller.extraEnv.GODEBUG=x=1",
			func(p corev1.PodSpec, _ appsv1.Deployment) bool {
				return !slices.Contains(p.Containers[0].Args, "--vmodule=x=4") ||
					!slices.Contains(p.Containers[0].Env, corev1.EnvVar{Name: "GODEBUG", Value: "x=1"})
			}},
		{"labels of one's own", "commonLabels.team=ml", func(_ corev1.PodSpec, d appsv1.Deployment) bool {
			return d.Labels["team"] != "ml" || d.Spec.Template.Labels["team"] != "ml" ||
				d.Spec.Selector.MatchLabels["team"] != ""
		}},
		{"replicas of this version are spread", "", func(p corev1.PodSpec, _ appsv1.Deployment) bool {
			return !slices.Equal(p.TopologySpreadConstraints[0].MatchLabelKeys, []string{"pod-template-hash"})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := strings.Trim("enabled=true,"+tc.set, ",") // enabled: the condition of a parent chart
			var d appsv1.Deployment
			if !rendered(t, template(t, "--set", set), "Deployment", "-controller", &d) {
				t.Fatal("no controller")
			}
			if tc.wrong(d.Spec.Template.Spec, d) {
				t.Errorf("got\n%s", asYAML(t, d.Spec))
			}
		})
	}
}

// A model stands for the profiles that its GPUs have.
func TestModelsOfPartitions(t *testing.T) {
	var models map[string][]string
	if err := yaml.Unmarshal([]byte(read(t, chart+"/mig-profiles.yaml")), &models); err != nil {
		t.Fatal(err)
	}
	for model, file := range map[string]string{"A30": "a30-24gb", "A100-40GB": "a100-40gb", "A100-80GB": "a100-80gb",
		"H100-80GB": "h100-80gb", "H200": "h200-141gb", "B200": "b200-180gb", "RTX-PRO-6000": "rtxpro6000-96gb"} {
		var names []string
		for _, found := range regexp.MustCompile(` name: ([^,]+),`).FindAllStringSubmatch(
			read(t, "../../pkg/hwprofile/mig/"+file+".yaml"), -1) {
			names = append(names, found[1])
		}
		slices.Sort(names)
		if got := slices.Sorted(slices.Values(models[model])); !slices.Equal(got, names) || len(names) == 0 {
			t.Errorf("%s: got %v, want %v", model, got, names)
		}
	}
	if got := len(migClasses(t, "--set", "deviceClasses.migProfiles={H100-80GB,A100-80GB,1g.5gb}")); got != 9 {
		t.Errorf("got %d classes, want that of all partitions, seven of two models and one more", got)
	}
}

// Only a server that may drop fields of claims has them written down.
func TestOptionalFieldsWebhook(t *testing.T) {
	for version, want := range map[string]bool{"v1.34.4": true, "v1.35.4-eks-1": true, "v1.36.0": false} {
		for _, strongest := range []string{"true", "false"} {
			text := template(t, "--kube-version", version, "--set", "controller.strongest.enabled="+strongest,
				"--set-json", "controller.conversion.families=[]")
			var c admissionv1.MutatingWebhookConfiguration
			got := rendered(t, text, "MutatingWebhookConfiguration", "controller", &c)
			if got != (want || strongest == "true") {
				t.Errorf("%s, strongest %s: got a configuration: %v", version, strongest, got)
			}
			var names []string
			for _, w := range c.Webhooks {
				names = append(names, w.Name)
			}
			if slices.Contains(names, "optional-fields.gpu.nvidia.com") != want ||
				slices.Contains(names, "strongest.gpu.nvidia.com") != (strongest == "true") {
				t.Errorf("%s, strongest %s: got %q", version, strongest, names)
			}
		}
	}
}

// The chart converts pods of every family that the controller knows, where claims can be for shares.
func TestConversion(t *testing.T) {
	var defaults struct {
		Controller struct{ Conversion struct{ Families []string } }
	}
	if err := yaml.Unmarshal([]byte(read(t, chart+"/values.yaml")), &defaults); err != nil {
		t.Fatal(err)
	}
	if got, want := defaults.Controller.Conversion.Families, convert.Names(); !slices.Equal(got, want) {
		t.Errorf("values.yaml has %q, the controller %q", got, want)
	}
	condition := regexp.MustCompile(`a\.startsWith\('([^']+)'\)`).FindAllStringSubmatch(template(t), -1)
	for _, name := range convert.Annotations() {
		if !slices.ContainsFunc(condition, func(found []string) bool { return strings.HasPrefix(name, found[1]) }) {
			t.Errorf("pods with the annotation %s alone are not sent to the webhook", name)
		}
	}
	for _, tc := range []struct {
		name string
		args []string
		want []string // arguments of the controller
	}{
		{"the defaults", nil, []string{"--convert-families=" + strings.Join(convert.Names(), ",")}},
		{"Kubernetes 1.35", []string{"--kube-version", "v1.35.4"}, nil},
		{"no families", []string{"--set-json", "controller.conversion.families=[]"}, nil},
		{"names", []string{"--set", "controller.conversion.families={hami}", "--set-json",
			`controller.conversion.names={"nvidia.com/vgpu":"nvidia.com/gpu"}`},
			[]string{"--convert-families=hami", "--convert-name=nvidia.com/vgpu=nvidia.com/gpu"}},
		{"one family and models", []string{"--set", "controller.conversion.families={hami}", "--set-json",
			`controller.conversion.models=[{"memory":"15Gi","tflops":65}]`},
			[]string{"--convert-families=hami", "--convert-model=15Gi/65"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := template(t, tc.args...)
			var d appsv1.Deployment
			rendered(t, text, "Deployment", "controller", &d)
			args := slices.DeleteFunc(d.Spec.Template.Spec.Containers[0].Args,
				func(arg string) bool { return !strings.HasPrefix(arg, "--convert-") })
			if !slices.Equal(args, tc.want) {
				t.Errorf("got %q, want %q", args, tc.want)
			}
			var c admissionv1.MutatingWebhookConfiguration
			rendered(t, text, "MutatingWebhookConfiguration", "controller", &c)
			converts := slices.ContainsFunc(c.Webhooks, func(w admissionv1.MutatingWebhook) bool {
				return w.Name == "convert.gpu.nvidia.com"
			})
			mayCreate := strings.Contains(text, "[resourceclaimtemplates]\n    verbs: [get, list, watch, create")
			if want := len(tc.want) > 0; converts != want || mayCreate != want {
				t.Errorf("got a webhook: %t, the right to create templates: %t, want %t", converts, mayCreate, want)
			}
		})
	}
}

// The controller reads both of its webhook configurations to own its lease, whoever makes its certificate.
func TestControllerReadsItsWebhooks(t *testing.T) {
	for _, own := range []string{"true", "false"} {
		var role rbacv1.ClusterRole
		text := template(t, "--set", "controller.certManager.enabled="+own)
		if !rendered(t, text, "ClusterRole", "-controller", &role) {
			t.Fatal("no ClusterRole of the controller")
		}
		for _, kind := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, kind) && slices.Contains(r.Verbs, "get")
			}) {
				t.Errorf("certManager.enabled=%s: the controller may not get %s", own, kind)
			}
		}
	}
}

// Draining nodes leaves one replica of what has several.
func TestDisruptionBudgets(t *testing.T) {
	for _, component := range []string{"controller", "scheduler"} {
		var d appsv1.Deployment
		var one, two policyv1.PodDisruptionBudget
		text := template(t, "--set", "scheduler.enabled=true")
		if !rendered(t, text, "Deployment", component, &d) || !rendered(t, text, "PodDisruptionBudget", component,
			&two) || !maps.Equal(two.Spec.Selector.MatchLabels, d.Spec.Selector.MatchLabels) {
			t.Errorf("%s: got the budget %+v, want one for its pods", component, two.Spec)
		}
		if rendered(t, template(t, "--set", "scheduler.enabled=true", "--set", component+".replicas=1"),
			"PodDisruptionBudget", component, &one) {
			t.Errorf("%s: got a budget for one replica, want none", component)
		}
	}
}

// Only API servers may know the paths of the webhooks: the chart does not have them. What is known of API servers is
// asked for, and limits who reaches the port.
func TestCallers(t *testing.T) {
	text := template(t, "--set", "scheduler.enabled=true", "--set",
		"controller.callers.addresses={10.0.0.0/24,fd00::/8}", "--set", "controller.callers.clientCA=authorities")
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		var c unstructured.Unstructured
		if !rendered(t, text, kind, "controller", &c.Object) {
			t.Fatalf("no %s", kind)
		}
		webhooks, _, err := unstructured.NestedSlice(c.Object, "webhooks")
		if err != nil || len(webhooks) == 0 {
			t.Fatalf("%s: got %d webhooks, %v", kind, len(webhooks), err)
		}
		for _, w := range webhooks {
			if path, has, _ := unstructured.NestedString(w.(map[string]any), "clientConfig", "service", "path"); has {
				t.Errorf("%s: got the path %s, want none", kind, path)
			}
		}
	}
	var d appsv1.Deployment
	rendered(t, text, "Deployment", "controller", &d)
	for _, arg := range []string{"--webhook-addresses=10.0.0.0/24,fd00::/8", "--webhook-client-ca=/callers/ca.crt"} {
		if !slices.Contains(d.Spec.Template.Spec.Containers[0].Args, arg) {
			t.Errorf("the controller has no %s", arg)
		}
	}
	var narrow, wide networkingv1.NetworkPolicy
	rendered(t, text, "NetworkPolicy", "controller", &narrow)
	rendered(t, template(t), "NetworkPolicy", "controller", &wide)
	if len(narrow.Spec.Ingress[0].From) != 3 || len(wide.Spec.Ingress[0].From) != 0 {
		t.Errorf("got %v and %v, want two networks and the scheduler, and everybody where no address is known",
			narrow.Spec.Ingress[0].From, wide.Spec.Ingress[0].From)
	}
	for _, rule := range wide.Spec.Ingress {
		for _, port := range rule.Ports {
			if port.Port.StrVal != "webhook" && len(rule.From) == 0 {
				t.Errorf("everybody may reach the port %s", port.Port.StrVal)
			}
		}
	}
	if out, err := helm(t, "template", "r", chart, "--set", "controller.callers.addresses={10.0.0.1}"); err == nil {
		t.Errorf("an address without its length is accepted:\n%s", out)
	}
}

// The longest name of a release fits into what is made of it: X.509 allows 64 characters of a common name.
func TestLongReleaseName(t *testing.T) {
	text, err := helm(t, "template", strings.Repeat("r", 53), chart, "--set", "controller.certManager.enabled=true")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	found := regexp.MustCompile(`commonName: (\S+)`).FindStringSubmatch(text)
	if found == nil || len(found[1]) > 64 || !strings.HasPrefix(found[1], "rrr") {
		t.Errorf("got the common name %q, want one of at most 64 characters", found)
	}
}

// The controller has a memory limit, knows it, and may follow the DeviceTaintRules that its metrics count.
func TestControllerIsLimited(t *testing.T) {
	text := template(t, "--set", "controller.waitingEvents.enabled=false")
	var d appsv1.Deployment
	var role rbacv1.ClusterRole
	if !rendered(t, text, "Deployment", "-controller", &d) || !rendered(t, text, "ClusterRole", "-controller", &role) {
		t.Fatal("no controller")
	}
	c := d.Spec.Template.Spec.Containers[0]
	if c.Resources.Limits.Memory().IsZero() || !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.Name == "MEMORY_LIMIT" && e.ValueFrom.ResourceFieldRef.Resource == "limits.memory" &&
			e.ValueFrom.ResourceFieldRef.ContainerName == c.Name
	}) {
		t.Errorf("got %+v and %+v, want a memory limit", c.Resources, c.Env)
	}
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "devicetaintrules") && slices.Equal(r.Verbs, []string{"list", "watch"})
	}) {
		t.Errorf("got %+v, want list and watch of devicetaintrules", role.Rules)
	}
}
