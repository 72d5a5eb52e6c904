// SPDX-License-Identifier: Apache-2.0

// Package helm_test renders the chart and compares it with golden files. It needs helm, in $HELM or in the PATH; make
// test-unit builds one. After an intended change, run: HELM=… go test ./deployments/helm -update
package helm_test

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

const chart = "gpu-dra-driver"

// reducedProfiles keeps golden files short. One golden file has the classes of all profiles, and the dashboard.
const reducedProfiles = "deviceClasses.migProfiles={1g.10gb+me},controller.dashboard.enabled=false"

// mutatingPolicies is what the API server of Kubernetes 1.36 and newer has, and helm template assumes nowhere.
const mutatingPolicies = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"

var dashboardText = regexp.MustCompile(`(?m)(^  gpus\.json: \|\n)(?:    .*\n| *\n)+`)

var update = flag.Bool("update", false, "write the golden files")

func TestTemplate(t *testing.T) {
	for _, tc := range []struct {
		name, golden string
		args         []string
	}{
		{"the defaults serve GPU nodes", "default", []string{"--api-versions", mutatingPolicies}},
		{"simulation serves labelled nodes", "simulate", []string{"--set", "simulate.enabled=true", "--set",
			reducedProfiles}},
		{"a profile for all nodes and profiles of one's own", "simulate-profiles",
			[]string{"--set", "simulate.enabled=true",
				"--set", "simulate.profile=tiny", "--set-string", "simulate.profiles.tiny=gpus: []\n", "--set",
				reducedProfiles}},
		{"everything that can be set", "everything", []string{"--values", "testdata/everything.yaml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := helm(t, append([]string{"template", "gpu-dra-driver", chart, "--namespace", "gpu-dra-driver"},
				tc.args...)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, got)
			}
			if tc.golden != "default" {
				got = dashboardText.ReplaceAllString(got, "$1    …\n") // one golden file has it
			}
			compare(t, filepath.Join("testdata", tc.golden+".golden.yaml"), got)
		})
	}
}

func TestNotes(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
		not  string
	}{
		{"hardware: which label is missing", nil, "nvidia.com/gpu.present=true", "SIMULATED"},
		{"simulation is called so", []string{"--set", "simulate.enabled=true"}, "SIMULATED", "gpu.present"},
		{"the class is the driver's", []string{"--set", "driverName=gpu.example.com"},
			"deviceClassName: gpu.example.com", "deviceClassName: gpu.nvidia.com"},
		{"the class of a profile", nil, "name mig.nvidia.com, or the class of its profile, such as " +
			"mig-1g.6gb.nvidia.com.", "SIMULATED"},
		{"no class", []string{"--set", "deviceClasses.create=false"}, "claims need a DeviceClass",
			"ResourceClaimTemplate"},
		{"a value of an earlier release, which --reset-then-reuse-values keeps",
			[]string{"--set", "controller.sweep.period=1m,controller.sweep.grace=5m"},
			"The value controller.sweep has no effect any more", "SIMULATED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := helm(t, append([]string{"install", "x", chart, "--dry-run=client"}, tc.args...)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, got)
			}
			_, notes, _ := strings.Cut(got, "\nNOTES:")
			if !strings.Contains(notes, tc.want) || strings.Contains(notes, tc.not) {
				t.Errorf("got\n%s\nwant %q in it and %q not", notes, tc.want, tc.not)
			}
		})
	}
}

func TestDriverNameChangesEverywhere(t *testing.T) {
	got, err := helm(t, "template", "x", chart, "--set", "driverName=gpu.example.com", "--api-versions",
		mutatingPolicies)
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	for i, line := range strings.Split(got, "\n") {
		// Labels of nodes, namespaces and pods do not depend on the driver's name.
		if strings.Contains(line, "gpu.nvidia.com") && !strings.Contains(line, "gpu.nvidia.com/sim-profile") &&
			!strings.Contains(line, "gpu.nvidia.com/admission") &&
			!strings.Contains(line, "gpu.nvidia.com/quota") &&
			!strings.Contains(line, "gpu.nvidia.com/convert") && // and gpu.nvidia.com/converted-from
			!strings.Contains(line, "gpu.nvidia.com/default-spreading") {
			t.Errorf("line %d still has the default name: %s", i+1, line)
		}
	}
	const class = "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu' && " +
		"!device.attributes['gpu.example.com'].?sharedOnly.orValue(false)"
	if !strings.Contains(got, class) {
		t.Errorf("got\n%s\nwant in it: %s", got, class)
	}
}

// migClasses returns the classes of partitions in a rendered chart: name → selector, extended resource.
func migClasses(t *testing.T, args ...string) map[string]string {
	t.Helper()
	text, err := helm(t, append([]string{"template", "x", chart}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	classes := map[string]string{}
	for _, document := range strings.Split(text, "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(document), &class); err != nil {
			t.Fatal(err)
		}
		if class.Kind != "DeviceClass" || !strings.HasPrefix(class.Name, "mig") {
			continue
		}
		if problems := validation.IsDNS1123Subdomain(class.Name); problems != nil || classes[class.Name] != "" {
			t.Errorf("class %s: is there twice, or %v", class.Name, problems)
		}
		resource := "none"
		if class.Spec.ExtendedResourceName != nil {
			resource = *class.Spec.ExtendedResourceName
			if problems := validation.IsQualifiedName(resource); problems != nil {
				t.Errorf("extended resource %s: %v", resource, problems)
			}
		}
		classes[class.Name] = class.Spec.Selectors[0].CEL.Expression + ", " + resource
	}
	return classes
}

func TestClassesOfPartitions(t *testing.T) {
	const (
		any  = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
		all  = any + ", none"
		a    = any + " && device.attributes['gpu.nvidia.com'].profile == '1g.24gb"
		five = "deviceClasses.migProfiles={1g.24gb,1g.24gb+me,1g.24gb-me,1g.24gb+me.all,1g.24gb+gfx}"
	)
	for _, tc := range []struct {
		name string
		args []string
		want map[string]string
	}{
		{"profiles that differ in their last sign only", []string{"--set", five}, map[string]string{
			"mig.nvidia.com":                all,
			"mig-1g.24gb.nvidia.com":        a + "', nvidia.com/mig-1g.24gb",
			"mig-1g.24gb.me.nvidia.com":     a + "+me', nvidia.com/mig-1g.24gb.me",
			"mig-1g.24gb-me.nvidia.com":     a + "-me', nvidia.com/mig-1g.24gb-me",
			"mig-1g.24gb.me.all.nvidia.com": a + "+me.all', nvidia.com/mig-1g.24gb.me.all",
			"mig-1g.24gb.gfx.nvidia.com":    a + "+gfx', nvidia.com/mig-1g.24gb.gfx",
		}},
		{"no profiles", []string{"--set-json", "deviceClasses.migProfiles=[]"},
			map[string]string{"mig.nvidia.com": all}},
		{"no extended resources", []string{"--set", "deviceClasses.migProfiles={1g.24gb}", "--set",
			"deviceClasses.migExtendedResourcePrefix="},
			map[string]string{"mig.nvidia.com": all, "mig-1g.24gb.nvidia.com": a + "', none"}},
		{"the driver has another name", []string{"--set-json", "deviceClasses.migProfiles=[]", "--set",
			"driverName=gpu.example.com"},
			map[string]string{"mig.example.com": strings.ReplaceAll(all, "gpu.nvidia.com", "gpu.example.com")}},
		{"the driver has a name that does not begin with gpu", []string{"--set-json", "deviceClasses.migProfiles=[]",
			"--set", "driverName=cards.example.com"},
			map[string]string{"mig.cards.example.com": strings.ReplaceAll(all, "gpu.nvidia.com", "cards.example.com")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := migClasses(t, tc.args...); !maps.Equal(got, tc.want) {
				t.Errorf("got\n%v\nwant\n%v", got, tc.want)
			}
		})
	}
	if n := len(migClasses(t)); n < 50 { // and every name is legal
		t.Errorf("got %d classes by default", n)
	}
}

// The driver can read the rendered node configurations.
func TestNodeConfigs(t *testing.T) {
	for _, document := range strings.Split(read(t, "testdata/everything.golden.yaml"), "\n---\n") {
		var object corev1.ConfigMap
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind != "ConfigMap" || !strings.HasSuffix(object.Name, "-node-config") {
			continue
		}
		if len(object.Data) != 3 {
			t.Errorf("got %d node configurations, want 3", len(object.Data))
		}
		for name, text := range object.Data {
			if _, err := nodeconfig.Parse([]byte(text)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		return
	}
	t.Error("no node configurations")
}

// Kubernetes 1.34 never frees the GPU of a pod that asks for an extended resource.
func TestExtendedResources(t *testing.T) {
	for version, want := range map[string]int{"v1.34.99": 0, "v1.35.0-gke.1": 3} {
		text, err := helm(t, "template", "x", chart, "--set", "deviceClasses.migProfiles={1g.10gb}", "--kube-version",
			version)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if got := strings.Count(text, "\n  extendedResourceName: "); got != want {
			t.Errorf("%s: got %d extended resources, want %d", version, got, want)
		}
	}
}

func TestSwitches(t *testing.T) {
	for _, tc := range []struct{ name, set, not string }{
		{"a device plugin serves the extended resource", "deviceClasses.extendedResourceName=",
			"extendedResourceName: nvidia.com/gpu\n"},
		{"partitions are not extended resources", "deviceClasses.migExtendedResourcePrefix=",
			"extendedResourceName: nvidia.com/mig-"},
		{"shared GPUs are not an extended resource", "deviceClasses.sharedExtendedResourceName=",
			"extendedResourceName: nvidia.com/gpu.shared"},
		{"no classes", "deviceClasses.create=false", "kind: DeviceClass"},
		{"the monitor device without its policy", "admissionPolicies.monitor=false", "asks for the monitor device"},
		{"the monitor device has no class", "monitorDevice.enabled=false", "name: monitor.gpu.nvidia.com"},
		{"no supervisor of MPS daemons", "mps.supervisor.enabled=false", "mps-supervisor"},
		{"plugins that may write for all nodes", "admissionPolicies.ownNode=false",
			"authentication.kubernetes.io/node-name"},
		{"a controller that may create any secret", "admissionPolicies.controller=false",
			"of the GPU driver may create only"},
		{"no namespace turns default spreading off", "admissionPolicies.defaultSpreading=false",
			`gpu.nvidia.com/default-spreading: "off"`},
		{"no dashboard", "controller.dashboard.enabled=false", "grafana_dashboard"},
		{"no dashboard without the controller", "controller.enabled=false", "grafana_dashboard"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			with := template(t, "--api-versions", mutatingPolicies)
			without := template(t, "--api-versions", mutatingPolicies, "--set", tc.set)
			if !strings.Contains(with, tc.not) || strings.Contains(without, tc.not) {
				t.Errorf("%q: got %t with the defaults and %t with --set %s, want it with the defaults only",
					tc.not, strings.Contains(with, tc.not), strings.Contains(without, tc.not), tc.set)
			}
		})
	}
}

func TestWrongValuesAreErrors(t *testing.T) {
	for _, tc := range []struct{ name, set, want string }{
		{"a misspelt key at the top", "simulated.enabled=true", "simulated"},
		{"a misspelt key below", "simulate.enable=true", "enable"},
		{"a misspelt key of the plugin", "kubeletPlugin.logVerbosty=4", "logVerbosty"},
		{"a misspelt key in a toleration", "kubeletPlugin.tolerations[0].kye=x", "kye"},
		{"an extended resource without a domain", "deviceClasses.extendedResourceName=gpu", "extendedResourceName"},
		{"one extended resource for two classes", "deviceClasses.sharedExtendedResourceName=nvidia.com/gpu",
			"one name cannot ask for two classes"},
		{"an extended resource of partitions for whole GPUs",
			"deviceClasses.extendedResourceName=nvidia.com/mig-1g.10gb.me", "of the profile 1g.10gb+me"},
		{"a prefix without a domain", "deviceClasses.migExtendedResourcePrefix=mig-", "migExtendedResourcePrefix"},
		{"a profile that is none", "deviceClasses.migProfiles={1g.10}", "migProfiles/0"},
		{"a profile of a compute instance", "deviceClasses.migProfiles={1c.3g.20gb}", "migProfiles/0"},
		{"a profile as it is in other names", "deviceClasses.migProfiles={1g.10gb.me}", "migProfiles/0"},
		{"a profile twice", "deviceClasses.migProfiles={1g.10gb,1g.10gb}", "migProfiles"},
		{"a misspelt way of partitioning", "nodeConfigs.default.gpus[0].partitions=auto", "gpus/0/partitions"},
		{"a node configuration whose name no label can have", "nodeConfigs.a/b=text", "a/b"},
		{"a node configuration without text", "nodeConfigs.default=", "nodeConfigs/default"},
		{"a node configuration without a head", "nodeConfigs.default.gpus[0].sharing=exclusive", "apiVersion"},
		{"a misspelt key in a node configuration", "nodeConfigs.default.gpus[0].sharin=exclusive", "sharin"},
		{"a misspelt way of sharing", "nodeConfigs.default.gpus[0].sharing=exclusiv", "gpus/0/sharing"},
		{"no replicas", "nodeConfigs.default.gpus[0].sharing.replicated=0", "gpus/0/sharing/replicated"},
		{"a misspelt effect", "nodeConfigs.default.gpus[0].health[0].effect=Evict", "gpus/0/health/0/effect"},
		{"a rule for nothing", "nodeConfigs.default.gpus[0].health[0].effect=None", "gpus/0/health/0"},
		{"an index that no GPU can have", "nodeConfigs.default.gpus[0].select.index=-1", "gpus/0/select/index"},
		{"a misspelt key in the device plugin's configuration", "nodeConfigs.default.sharing.timeslicing.resources=x",
			"timeslicing"},
		{"a misspelt key of the supervisor", "mps.supervisor.resource.limits.cpu=1", "resource"},
		{"a misspelt key of the dashboard", "controller.dashboard.label=x", "label"},
		{"a label of the dashboard that is no text", "controller.dashboard.labels.grafana_dashboard=1",
			"grafana_dashboard"},
		{"a digest without its kind", "image.digest=" + strings.Repeat("a", 64), "image/digest"},
		{"a variable whose name is none", "controller.extraEnv.a-b=c", "a-b"},
		{"a label of the chart's own", "commonLabels.app\\.kubernetes\\.io/name=x",
			"propertyName 'app.kubernetes.io/name'"},
		{"two affinities to nodes", "controller.onControlPlane=true,controller.affinity.nodeAffinity.x=y",
			"set only one of them"},
		{"an unknown model", "deviceClasses.migProfiles={H1000}", "migProfiles/0"},
		{"a misspelt key of the scheduler", "scheduler.enable=true", "enable"},
		{"a misspelt policy", "admissionPolicies.monitors=true", "monitors"},
		{"a word where a switch belongs", "simulate.enabled=often", "simulate/enabled"},
		{"an unknown pull policy", "image.pullPolicy=Sometimes", "image/pullPolicy"},
		{"a relative path", "kubeletDir=var/lib/kubelet", "kubeletDir"},
		{"a relative path of hooks", "hooksDir=opt", "hooksDir"},
		{"a driver name without a domain", "driverName=gpu", "driverName"},
		{"a driver name in capitals", "driverName=GPU.nvidia.com", "driverName"},
		{"a driver name without room for remote", "remote.enabled=true,driverName=" + strings.Repeat("a", 53) + ".com",
			"more than 56 characters"},
		{"a profile whose name is no name", "simulate.profiles.A_B=x", "A_B"},
		{"a timeout that Kubernetes refuses", "controller.admission.timeoutSeconds=31", "admission/timeoutSeconds"},
		{"no timeout", "controller.admission.timeoutSeconds=0", "admission/timeoutSeconds"},
		{"a verbosity out of range", "kubeletPlugin.logVerbosity=11", "logVerbosity"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := helm(t, "template", "x", chart, "--set", tc.set)
			if err == nil {
				t.Fatal("got no error")
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("got\n%s\nwant %q in it", got, tc.want)
			}
		})
	}
}

func TestLint(t *testing.T) {
	if got, err := helm(t, "lint", "--strict", chart); err != nil {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestVersionsFollowTheRepository(t *testing.T) {
	want := strings.TrimSpace(read(t, "../../VERSION"))
	var got struct{ Version, AppVersion string }
	if err := yaml.Unmarshal([]byte(read(t, chart+"/Chart.yaml")), &got); err != nil {
		t.Fatal(err)
	}
	if got.AppVersion != want || "v"+got.Version != want {
		t.Errorf("got appVersion %s and version %s, want those of the file VERSION, %s", got.AppVersion, got.Version,
			want)
	}
}

// helm returns the output of helm, including errors.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program := os.Getenv("HELM")
	if program == "" {
		var err error
		if program, err = exec.LookPath("helm"); err != nil {
			t.Skip("no helm in the PATH and none in $HELM: make test-unit builds one")
		}
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	return output.String(), err
}

func compare(t *testing.T, golden, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := strings.Split(read(t, golden), "\n")
	lines := strings.Split(got, "\n")
	for i := range max(len(want), len(lines)) {
		var g, w string
		if i < len(lines) {
			g = lines[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("%s line %d\ngot  %s\nwant %s", golden, i+1, g, w)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The controller runs as nobody, writes to no file, reaches only certain ports, and may access one secret. Its rights
// on its own webhooks go further (docs/operate/security.md).
func TestControllerHasFewRights(t *testing.T) {
	text := template(t)
	var deployment appsv1.Deployment
	var policy networkingv1.NetworkPolicy
	var role rbacv1.Role
	var clusterRole rbacv1.ClusterRole
	for kind, into := range map[string]any{"Deployment": &deployment, "NetworkPolicy": &policy, "Role": &role,
		"ClusterRole": &clusterRole} {
		if !rendered(t, text, kind, "-controller", into) {
			t.Fatalf("no %s of the controller", kind)
		}
	}
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0].SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser == 0 ||
		!*container.ReadOnlyRootFilesystem || *container.AllowPrivilegeEscalation ||
		len(container.Capabilities.Add) > 0 || len(container.Capabilities.Drop) != 1 ||
		container.Capabilities.Drop[0] != "ALL" || len(pod.Volumes) > 0 || pod.HostNetwork || pod.HostPID {
		t.Errorf("got %+v and %+v, want nobody, nothing to write to, and no capabilities", pod.SecurityContext,
			container)
	}
	if len(policy.Spec.PolicyTypes) != 1 || len(policy.Spec.Egress) != 0 ||
		len(policy.Spec.Ingress) != 2 || len(policy.Spec.Ingress[0].Ports)+len(policy.Spec.Ingress[1].Ports) != 2 {
		t.Errorf("got %+v, want the ports of webhooks and metrics in, and anything out: the port of the API server is "+
			"not the same everywhere", policy.Spec)
	}
	if !maps.Equal(policy.Spec.PodSelector.MatchLabels, deployment.Spec.Selector.MatchLabels) {
		t.Errorf("the policy is for %v, the pods are %v", policy.Spec.PodSelector.MatchLabels,
			deployment.Spec.Selector.MatchLabels)
	}
	for _, rule := range append(role.Rules, clusterRole.Rules...) {
		if slices.Contains(rule.Resources, "secrets") && !slices.Equal(rule.Verbs, []string{"create"}) &&
			len(rule.ResourceNames) == 0 {
			t.Errorf("got %v, want the rights of one secret by its name", rule)
		}
	}
	for _, rule := range clusterRole.Rules {
		if slices.Contains(rule.Resources, "secrets") {
			t.Errorf("got %v, want no secrets of other namespaces", rule)
		}
	}
}

// A plugin is told only what differs from its default: an older one does not know it.
func TestMonitorDevice(t *testing.T) {
	for set, want := range map[string]bool{"monitorDevice.enabled=false": true, "monitorDevice.enabled=true": false,
		"monitorDevice=null": false} { // values of a chart that had none of this
		var plugin appsv1.DaemonSet
		rendered(t, template(t, "--set", set), "DaemonSet", "kubelet-plugin", &plugin)
		if got := slices.Contains(plugin.Spec.Template.Spec.Containers[0].Env,
			corev1.EnvVar{Name: "MONITOR_DEVICE", Value: "false"}); got != want {
			t.Errorf("%s: switched off %t, want %t", set, got, want)
		}
	}
}
