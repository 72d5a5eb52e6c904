// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/config"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/dra"
	"sigs.k8s.io/kueue/pkg/resources"
	"sigs.k8s.io/kueue/pkg/scheduler"
	preemptexpectations "sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
	"sigs.k8s.io/kueue/pkg/webhooks"
)

const (
	root = "../.."
	node = "template" // the name of the node in the slices of `dra-controller slices`
)

// cluster is a client of a control plane with Kueue.
type cluster struct {
	client.Client
	namespaces int
}

// start starts a control plane with one node of eight H100, and Kueue with the configuration.
func start(t *testing.T, configuration string) *cluster {
	t.Helper()
	ctrl.SetLogger(zap.New(zap.WriteTo(logFile(t, "kueue")), zap.UseDevMode(true)))
	programs := os.Getenv("PROGRAMS")
	if programs == "" {
		t.Fatal("PROGRAMS does not name the folder of kube-apiserver: run `make test-kueue`")
	}
	env := &envtest.Environment{BinaryAssetsDirectory: programs, ErrorIfCRDPathMissing: true,
		CRDDirectoryPaths:     []string{filepath.Join(moduleFolder(t), "config/components/crd/bases")},
		WebhookInstallOptions: webhooksOf(t)}
	server := env.ControlPlane.GetAPIServer()
	server.Configure().Append("disable-admission-plugins", "TaintNodesByCondition") // nobody would remove the taint
	server.Out, server.Err = logFile(t, "kube-apiserver"), logFile(t, "kube-apiserver-errors")
	rest, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(clientgoscheme.AddToScheme(scheme), kueue.AddToScheme(scheme),
		configapi.AddToScheme(scheme)))
	c := &cluster{}
	if c.Client, err = client.New(rest, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, env.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, programs, "kube-controller-manager", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers=job-controller,resourceclaim-controller,resourcequota-controller,garbage-collector-controller")
	run(t, programs, "kube-scheduler", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("1Ti"),
			"pods": resource.MustParse("110")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	for _, o := range append(published(t), deviceClasses(t)...) {
		c.create(t, o)
	}
	runKueue(t, env, scheme, configuration)
	return c
}

// runKueue runs Kueue's controllers, webhooks and scheduler in this process, as its program does.
func runKueue(t *testing.T, env *envtest.Environment, scheme *runtime.Scheme, configuration string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(configuration), 0o600))
	options, cfg, err := config.Load(scheme, file)
	must(t, err)
	must(t, utilfeature.DefaultMutableFeatureGate.SetFromMap(cfg.FeatureGates))
	at := env.WebhookInstallOptions
	options.WebhookServer = webhook.NewServer(webhook.Options{Host: at.LocalServingHost, Port: at.LocalServingPort,
		CertDir: at.LocalServingCertDir})
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.HealthProbeBindAddress, options.LeaderElection = "0", false
	skip := true // there is a Kueue for each test
	options.Controller.SkipNameValidation = &skip
	manager, err := ctrl.NewManager(env.Config, options)
	must(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	jobs := []jobframework.Option{jobframework.WithEnabledFrameworks(cfg.Integrations.Frameworks)}
	must(t, indexer.Setup(ctx, manager.GetFieldIndexer()))
	must(t, jobframework.SetupIndexes(ctx, manager.GetFieldIndexer(), jobs...))
	mapper, backed := dra.NewResourceMapper(), dra.NewExtendedResourceCache()
	must(t, mapper.PopulateFromConfiguration(cfg.Resources.DeviceClassMappings))
	must(t, core.SetupResourceSliceIndexer(ctx, manager.GetFieldIndexer()))
	preempted := preemptexpectations.New()
	requeuer := qcache.NewRequeuer()
	must(t, manager.Add(requeuer))
	cached := schdcache.New(manager.GetClient())
	queues := qcache.NewManager(manager.GetClient(), cached, requeuer, qcache.WithPreemptionExpectations(preempted),
		qcache.WithDRABackedResources(backed))
	_, err = core.SetupControllers(manager, queues, cached, &cfg, core.SetupControllersOpts{
		PreemptionExpectations: preempted, DRAMapper: mapper, DRABackedResources: backed,
		ResourceFormatter: resources.NewResourceFormatter(), ResourceSliceAPIAvailable: true})
	must(t, err)
	namespaces, err := metav1.LabelSelectorAsSelector(cfg.ManagedJobsNamespaceSelector)
	must(t, err)
	jobs = append(jobs, jobframework.WithManagerName(constants.KueueName), jobframework.WithCache(cached),
		jobframework.WithQueues(queues), jobframework.WithManagedJobsNamespaceSelector(namespaces))
	must(t, jobframework.SetupControllers(ctx, manager, ctrl.Log, jobs...))
	_, err = webhooks.Setup(manager, nil)
	must(t, err)
	events := manager.GetEventRecorder("kueue-admission")
	must(t, manager.Add(scheduler.New(queues, cached, manager.GetClient(), events,
		scheduler.WithPreemptionExpectations(preempted))))
	go queues.CleanUpOnContext(ctx)
	go cached.CleanUpOnContext(ctx)
	done := make(chan error)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() { // before the control plane stops
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	until(t, "Kueue's webhooks", func(ctx context.Context) (bool, string, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp",
			net.JoinHostPort(at.LocalServingHost, strconv.Itoa(at.LocalServingPort)))
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // they are not served yet
		}
		return true, "", conn.Close()
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// moduleFolder returns the folder of Kueue's source.
func moduleFolder(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue").Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// webhooksOf returns Kueue's webhooks for its own objects and for jobs. Those of other kinds of work are not served.
func webhooksOf(t *testing.T) (options envtest.WebhookInstallOptions) {
	t.Helper()
	other := func(rules []admissionregistration.RuleWithOperations) bool {
		return !slices.ContainsFunc(rules[0].APIGroups, func(group string) bool {
			return group == "kueue.x-k8s.io" || group == "batch"
		})
	}
	data, err := os.ReadFile(filepath.Join(moduleFolder(t), "config/components/webhook/manifests.yaml"))
	must(t, err)
	for _, document := range documents(t, string(data)) {
		if document.GetKind() == "MutatingWebhookConfiguration" {
			all := &admissionregistration.MutatingWebhookConfiguration{}
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(document.Object, all))
			all.Webhooks = slices.DeleteFunc(all.Webhooks, func(w admissionregistration.MutatingWebhook) bool {
				return other(w.Rules)
			})
			options.MutatingWebhooks = append(options.MutatingWebhooks, all)
			continue
		}
		all := &admissionregistration.ValidatingWebhookConfiguration{}
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(document.Object, all))
		all.Webhooks = slices.DeleteFunc(all.Webhooks, func(w admissionregistration.ValidatingWebhook) bool {
			return other(w.Rules)
		})
		options.ValidatingWebhooks = append(options.ValidatingWebhooks, all)
	}
	return options
}

// published returns the slices of a node, from the command that users run.
func published(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	controller := os.Getenv("DRA_CONTROLLER")
	if controller == "" {
		t.Fatal("DRA_CONTROLLER does not name the built controller: run `make test-kueue`")
	}
	out, err := exec.Command(controller, "slices", "--profile", "dgx-h100").Output()
	must(t, err)
	all := documents(t, string(out))
	for _, slice := range all {
		must(t, unstructured.SetNestedField(slice.Object, node, "spec", "nodeName"))
	}
	return all
}

// deviceClasses returns the classes of the chart.
func deviceClasses(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(root + "/deployments/helm/testdata/default.golden.yaml")
	must(t, err)
	return slices.DeleteFunc(documents(t, string(data)), func(o *unstructured.Unstructured) bool {
		return o.GetKind() != "DeviceClass"
	})
}

// run runs a program of Kubernetes until the test ends.
func run(t *testing.T, programs, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(programs, name), args...)
	log := logFile(t, name)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error is that it was killed
	})
}

// logFile returns a file in the folder of logs of the repository.
func logFile(t *testing.T, name string) io.Writer {
	t.Helper()
	folder := root + "/_output/logs/kueue"
	must(t, os.MkdirAll(folder, 0o755))
	file, err := os.Create(filepath.Join(folder, name+".log"))
	must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// yamlBlocks returns the blocks of YAML of a page.
func yamlBlocks(page string) (all []string) {
	for {
		_, rest, ok := strings.Cut(page, "\n```yaml\n")
		if !ok {
			return all
		}
		var block string
		block, page, _ = strings.Cut(rest, "\n```\n")
		all = append(all, block)
	}
}

// documents returns the objects of the text.
func documents(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	decoder := yamlreader.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		case len(o.Object) > 0:
			all = append(all, o)
		}
	}
}

// apply creates the objects of the text, in the namespace unless it is empty.
func (c *cluster) apply(t *testing.T, namespace, text string) {
	t.Helper()
	for _, o := range documents(t, text) {
		if namespace != "" {
			o.SetNamespace(namespace)
		}
		c.create(t, o)
	}
}

func (c *cluster) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatalf("%T %s: %v", o, o.GetName(), err)
	}
}

// namespace creates a namespace with the LocalQueue of the text.
func (c *cluster) namespace(t *testing.T, queue string) string {
	t.Helper()
	c.namespaces++
	name := fmt.Sprintf("team-%d", c.namespaces)
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	for _, o := range documents(t, queue) {
		if o.GetKind() == "LocalQueue" {
			o.SetNamespace(name)
			c.create(t, o)
		}
	}
	return name
}

func (c *cluster) until(t *testing.T, what string, done func(context.Context) (bool, string, error)) {
	t.Helper()
	until(t, what, done)
}

// until waits for something, at most until shortly before the tests would be ended.
func until(t *testing.T, what string, done func(context.Context) (bool, string, error)) {
	t.Helper()
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-20*time.Second))
		defer cancel()
	}
	state := ""
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ok, now, err := done(ctx)
		state = now
		return ok, err
	})
	if err != nil {
		t.Fatalf("waited for %s: %v; last: %s", what, err, state)
	}
}
