//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// Environment variables with the paths of programs. `make test-e2e` sets them on a cluster of its own.
const (
	schedulerProgram = "E2E_KUBE_SCHEDULER"
	helmProgram      = "HELM"
)

// placingDriver publishes the devices of these tests. It has no plugin: a pod is placed, and never starts.
const placingDriver = "placing.e2e.example.com"

// TestSchedulers runs kube-scheduler with the files, flags and rights that users give it who want the profile
// gpu-first, and nothing else: in a mount namespace of this machine, because the cluster has no image of it.
func TestSchedulers(t *testing.T) {
	s := newSuite(t)
	program := os.Getenv(schedulerProgram)
	if program == "" || os.Getenv(helmProgram) == "" {
		t.Skipf("$%s and $%s are not set: make test-e2e starts a cluster and sets them", schedulerProgram, helmProgram)
	}
	if os.Getuid() != 0 {
		t.Skip("mounting the scheduler's files needs root")
	}
	s.needsVersionOf(t, program)
	s.publishPlaces(t)
	t.Run("the chart's second scheduler", func(t *testing.T) { s.testSecondScheduler(t, program) })
	t.Run("the scheduler of a kubeadm cluster with a second profile", func(t *testing.T) {
		s.testKubeadmScheduler(t, program)
	})
	t.Run("a scheduler that asks the controller for scores", func(t *testing.T) { s.testPlacement(t, program) })
}

// needsVersionOf skips the test if the program has another version than the API server.
func (s *suite) needsVersionOf(t *testing.T, program string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), program, "--version").Output()
	s.must(t, err)
	discover, err := discovery.NewDiscoveryClientForConfig(s.restConfig(t))
	s.must(t, err)
	version, err := discover.ServerVersion()
	s.must(t, err)
	if !strings.Contains(string(output), version.GitVersion) {
		t.Skipf("the cluster is Kubernetes %s, not %s", version.GitVersion, bytes.TrimSpace(output))
	}
}

// restConfig is how the tests reach the API server.
func (s *suite) restConfig(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	s.must(t, err)
	s.must(t, rest.LoadTLSFiles(config))
	return config
}

// publishPlaces publishes devices of placingDriver on a node, and a class for them.
func (s *suite) publishPlaces(t *testing.T) {
	t.Helper()
	var nodes corev1.NodeList
	s.must(t, s.List(t.Context(), &nodes))
	node := nodes.Items[0].Name
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: placingDriver},
		Spec: resourceapi.ResourceSliceSpec{Driver: placingDriver, NodeName: &node,
			Pool:    resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}},
	}
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: placingDriver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == '" + placingDriver + "'"}}}},
	}
	for _, o := range []client.Object{slice, class} {
		s.must(t, s.Create(t.Context(), o))
		t.Cleanup(func() { s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), o))) })
	}
}

// testSecondScheduler installs what the chart renders, except for the Deployment, whose program it runs itself.
func (s *suite) testSecondScheduler(t *testing.T, program string) {
	ns := s.namespace(t, "scheduler")
	deployment, config := s.installScheduler(t, ns)
	container := deployment.Spec.Template.Spec.Containers[0]
	account := deployment.Spec.Template.Spec.ServiceAccountName
	api := s.restConfig(t)
	server, err := url.Parse(api.Host)
	s.must(t, err)
	const mounted = "/run/secrets/kubernetes.io/serviceaccount/"
	scores := container.VolumeMounts[1].MountPath
	secret := s.placementSecret(t)
	running := s.startScheduler(t, program, []string{"KUBERNETES_SERVICE_HOST=" + server.Hostname(),
		"KUBERNETES_SERVICE_PORT=" + server.Port()},
		map[string][]byte{
			container.VolumeMounts[0].MountPath + "/config.yaml": []byte(config.Data["config.yaml"]),
			// This machine does not reach the controller: pods are scheduled without its scores.
			scores + "/ca.crt":    secret.Data["ca.crt"],
			scores + "/tls.crt":   secret.Data["tls.crt"],
			scores + "/tls.key":   secret.Data["tls.key"],
			mounted + "token":     []byte(s.token(t, ns, account)),
			mounted + "ca.crt":    api.CAData,
			mounted + "namespace": []byte(ns),
		}, container.Args...)
	running.ready(t)
	s.waitLease(t, client.ObjectKeyFromObject(deployment))
	s.bound(t, ns, "first", "gpu-first")
	s.bound(t, ns, "default", "default-scheduler") // of the cluster's own scheduler
	if got := running.log(); strings.Contains(got, "forbidden") {
		t.Errorf("the chart's role lacks a right: got\n%s", got)
	}
}

// installScheduler creates what the chart renders for its scheduler in the namespace, and returns what it does not
// create and the configuration.
func (s *suite) installScheduler(t *testing.T, ns string) (*appsv1.Deployment, *corev1.ConfigMap) {
	t.Helper()
	helm := exec.CommandContext(t.Context(), os.Getenv(helmProgram), "template", ns,
		"../../deployments/helm/gpu-dra-driver", "--namespace", ns, "--set", "scheduler.enabled=true", "--show-only",
		"templates/scheduler.yaml")
	text, err := helm.Output()
	s.must(t, err)
	deployment, config := &appsv1.Deployment{}, &corev1.ConfigMap{}
	var bindings []*unstructured.Unstructured
	for _, document := range strings.Split(string(text), "\n---\n") {
		object := &unstructured.Unstructured{}
		s.must(t, yaml.Unmarshal([]byte(document), object))
		switch object.GetKind() {
		case "":
			continue
		case "Deployment":
			s.must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment))
			continue
		case "ConfigMap":
			s.must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, config))
		}
		s.must(t, s.Apply(t.Context(), object))
		t.Cleanup(func() {
			s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), object)))
		})
		bindings = append(bindings, object)
	}
	for _, object := range bindings {
		s.waitBound(t, object)
	}
	if deployment.Name == "" || config.Name == "" {
		t.Fatalf("got\n%s\nwant a Deployment and a ConfigMap", text)
	}
	return deployment, config
}

// waitBound waits until the API server grants what the object binds, if it binds a role to a service account.
func (s *suite) waitBound(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	var binding rbacv1.RoleBinding // it has all fields of a ClusterRoleBinding
	if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
		return
	}
	s.must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding))
	var rules []rbacv1.PolicyRule
	if binding.RoleRef.Kind == "Role" {
		var role rbacv1.Role
		s.must(t, s.Get(t.Context(), client.ObjectKey{Namespace: binding.Namespace, Name: binding.RoleRef.Name}, &role))
		rules = role.Rules
	} else {
		var role rbacv1.ClusterRole
		s.must(t, s.Get(t.Context(), client.ObjectKey{Name: binding.RoleRef.Name}, &role))
		rules = role.Rules
	}
	for _, subject := range binding.Subjects {
		s.waitAllowed(t, "system:serviceaccount:"+subject.Namespace+":"+subject.Name, binding.Namespace, rules)
	}
}

// token returns a token like that which the kubelet mounts.
func (s *suite) token(t *testing.T, ns, account string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	s.must(t, s.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: ns}}, request))
	return request.Status.Token
}

// testKubeadmScheduler runs the scheduler with kubeadm's flags and the file for kubeadm.
func (s *suite) testKubeadmScheduler(t *testing.T, program string) {
	lease := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-scheduler"}
	if err := s.Get(t.Context(), lease, &coordinationv1.Lease{}); !apierrors.IsNotFound(err) {
		t.Skipf("the cluster's own scheduler may lead: lease %s: %v", lease, err)
	}
	t.Cleanup(func() {
		object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}}
		s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), object)))
	})
	ns := s.namespace(t, "kubeadm")
	config, err := os.ReadFile("../../deployments/scheduler/kubeadm.yaml")
	s.must(t, err)
	running := s.startScheduler(t, program, nil,
		map[string][]byte{"/etc/kubernetes/scheduler.conf": s.schedulerKubeconfig(t),
			"/etc/kubernetes/kubeadm.yaml": config},
		"--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
		"--authorization-kubeconfig=/etc/kubernetes/scheduler.conf", "--bind-address=127.0.0.1",
		"--kubeconfig=/etc/kubernetes/scheduler.conf", "--leader-elect=true", "--config=/etc/kubernetes/kubeadm.yaml")
	running.ready(t)
	s.waitLease(t, lease)
	s.bound(t, ns, "first", "gpu-first") // the cluster's own scheduler has no such profile
}

// schedulerKubeconfig is a kubeconfig for the user of the cluster's scheduler.
func (s *suite) schedulerKubeconfig(t *testing.T) []byte {
	t.Helper()
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	s.must(t, err)
	s.must(t, clientcmdapi.FlattenConfig(config))
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:kube-scheduler"
	}
	text, err := clientcmd.Write(*config)
	s.must(t, err)
	return text
}

// scheduler is a running kube-scheduler.
type scheduler struct {
	port    int
	logFile string
	process *os.Process
	ended   chan error
}

// inPlace mounts the files of a folder where the program expects them, and runs the program.
const inPlace = `mount -t tmpfs tmpfs /etc && mount -t tmpfs tmpfs /run && cp -r "$0"/. / && exec "$@"`

// startScheduler runs kube-scheduler until the end of the test. The files are at absolute paths below /etc and /run,
// and no other files are there.
func (s *suite) startScheduler(t *testing.T, program string, environment []string, files map[string][]byte,
	args ...string) *scheduler {
	t.Helper()
	dir := t.TempDir()
	for path, content := range files {
		path = filepath.Join(dir, "files", path)
		s.must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		s.must(t, os.WriteFile(path, content, 0o600))
	}
	running := &scheduler{port: freePort(t), logFile: filepath.Join(dir, "log"), ended: make(chan error, 1)}
	log, err := os.Create(running.logFile)
	s.must(t, err)
	defer log.Close()
	command := slices.Concat([]string{"-c", inPlace, filepath.Join(dir, "files"), program}, args,
		[]string{fmt.Sprintf("--secure-port=%d", running.port)}) // that of another test or cluster may be in use
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", command...)
	cmd.Env = append(environment, "PATH=/usr/bin:/bin:/usr/sbin:/sbin")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	s.must(t, cmd.Start())
	running.process = cmd.Process
	go func() { running.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if err := running.stop(); t.Failed() {
			t.Logf("kube-scheduler: %v\n%s", err, running.log())
		}
	})
	return running
}

// stop ends the scheduler, and returns why it ended. It may be repeated.
func (r *scheduler) stop() error {
	_ = r.process.Kill() // it may have ended
	err := <-r.ended
	r.ended <- err
	return err
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func (r *scheduler) log() string {
	text, _ := os.ReadFile(r.logFile)
	return string(text)
}

// ready waits until the probes succeed that the chart and kubeadm have.
func (r *scheduler) ready(t *testing.T) {
	t.Helper()
	probe := &http.Client{Timeout: hangs, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // like the kubelet: its certificate is its own
	look := func(ctx context.Context) (bool, string, error) {
		select {
		case err := <-r.ended:
			r.ended <- err
			t.Fatalf("kube-scheduler ended: %v", err)
		default:
		}
		for _, path := range []string{"livez", "readyz"} {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet,
				fmt.Sprintf("https://127.0.0.1:%d/%s", r.port, path), nil)
			if err != nil {
				return false, "", err
			}
			response, err := probe.Do(request)
			if err != nil {
				return false, "", err
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return false, path + ": " + response.Status, nil
			}
		}
		return true, "", nil
	}
	if err := kube.Until(t.Context(), soon, "the scheduler to be ready", look); err != nil {
		t.Fatal(err)
	}
}

// waitLease waits until somebody holds the lease.
func (s *suite) waitLease(t *testing.T, key client.ObjectKey) {
	t.Helper()
	held := func(ctx context.Context) (bool, string, error) {
		var lease coordinationv1.Lease
		err := s.Get(ctx, key, &lease)
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "", "no holder", err
	}
	s.must(t, kube.Until(t.Context(), soon, "a leader of "+key.String(), held))
}

// bound creates a pod with a device of placingDriver and waits until the scheduler has bound it.
func (s *suite) bound(t *testing.T, ns, name, by string) {
	t.Helper()
	s.must(t, s.Create(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "device", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: placingDriver}}}}}}))
	pod := s.pod(t, ns, name, withClaim(name), func(p *corev1.PodSpec) { p.SchedulerName = by })
	_, err := s.WaitPod(t.Context(), soon, pod, "placed by "+by,
		func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	s.must(t, err)
	var claim resourceapi.ResourceClaim
	s.must(t, s.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, &claim))
	if claim.Status.Allocation == nil {
		t.Errorf("%s is bound without its device: got status %+v", name, claim.Status)
	}
	s.must(t, kube.Until(t.Context(), soon, "the event of "+by, func(ctx context.Context) (bool, string, error) {
		var events corev1.EventList
		err := s.List(ctx, &events, client.InNamespace(ns))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == name && e.Reason == "Scheduled" && e.ReportingController == by
		}), fmt.Sprint(len(events.Items), " events"), err
	}))
}
