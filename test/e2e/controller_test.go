//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const controllerNamespace = "gpu-dra-driver"

var controllerLabels = client.MatchingLabels{"app.kubernetes.io/component": "controller"}

// strongestClass is the device class whose requests the controller ranks.
func strongestClass() string { return "strongest." + *driver }

const gpuConfig = `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", `

func (s *suite) testAdmission(t *testing.T) {
	const (
		share = `"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "10Gi"}}}`
		fails = `device.attributes["gpu.nvidia.com"].modelName == "x"`
	)
	ns := s.namespace(t, "admission")
	request := func(more func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
		r := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: *driver}}
		if more != nil {
			more(r.Exactly)
		}
		return r
	}
	capacity := func(name, amount string) func(*resourceapi.ExactDeviceRequest) {
		return func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				resourceapi.QualifiedName(name): resource.MustParse(amount),
			}}
		}
	}
	selects := func(expression string) func(*resourceapi.ExactDeviceRequest) {
		return func(r *resourceapi.ExactDeviceRequest) {
			r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		}
	}
	for _, tc := range []struct {
		name    string
		request resourceapi.DeviceRequest
		config  string   // of the driver
		refused []string // in the error; none: it is accepted
		warned  string   // in a warning
	}{
		{"right", request(nil), gpuConfig + `"sharing": {"strategy": "TimeSlicing"}}`, nil, ""},
		{"two mistakes", request(nil), gpuConfig + `"sharign": {}, "environment": {"NVIDIA_VISIBLE_DEVICES": "all"}}`,
			[]string{"2 problems", "devices.config[0].opaque.parameters.sharign: Forbidden: unknown field",
				"devices.config[0].opaque.parameters.environment[NVIDIA_VISIBLE_DEVICES]"}, ""},
		{"limits of MPS for a share", request(func(r *resourceapi.ExactDeviceRequest) {
			capacity("memory", "5Gi")(r)
			selects("device.attributes['gpu.nvidia.com'].sharing == 'fractional'")(r)
		}), gpuConfig + share, nil, "sharing.mpsConfig: the memory limit of a share is what its request asks for"},
		{"limits of MPS where some GPUs are given whole", request(capacity("memory", "5Gi")), gpuConfig + share, nil,
			"the memory limit of a share is what its request asks for"},
		{"a capacity with a domain", request(capacity("gpu.nvidia.com/memory", "5Gi")), "",
			[]string{"check." + *driver, "exactly.capacity.requests[gpu.nvidia.com/memory]", "write memory"}, ""},
		{"more than there is", request(capacity("memory", "1Ti")), "", nil,
			"has so much; the most is 81559Mi (NVIDIA H100 80GB HBM3)"},
		{"replicas where no matching GPU has any", request(func(r *resourceapi.ExactDeviceRequest) {
			capacity("shares", "1")(r)
			selects("device.attributes['gpu.nvidia.com'].sharing == 'fractional'")(r)
		}), "", nil, "GPUs have it where the node configuration has sharing: {replicated: N}"},
		{"a selector that fails", request(selects(fails)), "", nil, "no device has the attribute modelName"},
		{"the strongest GPU in a list", resourceapi.DeviceRequest{Name: "gpu",
			FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "a", DeviceClassName: strongestClass()}}}, "", nil,
			"any whole GPU in a list"},
		{"another driver's", resourceapi.DeviceRequest{Name: "nic",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nic.example.com"}}, "", nil, ""},
	} {
		spec := resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{tc.request}},
		}
		if tc.config != "" {
			spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{opaque(*driver, tc.config)}
		}
		for kind, object := range map[string]client.Object{
			"claim": &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-", Namespace: ns},
				Spec: spec},
			"template": &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-",
				Namespace: ns}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}},
		} {
			t.Run(tc.name+", "+kind, func(t *testing.T) {
				if tc.request.Exactly != nil && tc.request.Exactly.Capacity != nil {
					s.needs(t, "DRAConsumableCapacity")
				}
				warnings := s.Warnings()
				s.tryCreate(t, object, tc.refused != nil, tc.refused...)
				if got := strings.Join(warnings(), "\n"); !strings.Contains(got, tc.warned) ||
					(got == "") != (tc.warned == "") && tc.refused == nil {
					t.Errorf("got warnings %q, want %q", got, tc.warned)
				}
			})
		}
	}
	t.Run("a ranked claim is applied again", func(t *testing.T) { s.applyAgain(t, ns) })
	t.Run("kube-system is never asked about", func(t *testing.T) {
		bad := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-", Namespace: "kube-system"},
			Spec: claimSpec(opaque(*driver, gpuConfig+`"sharign": {}}`))}
		s.tryCreate(t, bad, false)
	})
	t.Run("an older version of the API", func(t *testing.T) {
		s.serves(t, resourcev1beta1.SchemeGroupVersion)
		old := &resourcev1beta1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-", Namespace: ns}}
		old.Spec.Devices.Requests = []resourcev1beta1.DeviceRequest{{Name: "gpu", DeviceClassName: *driver}}
		old.Spec.Devices.Config = []resourcev1beta1.DeviceClaimConfiguration{{}}
		old.Spec.Devices.Config[0].Opaque = &resourcev1beta1.OpaqueDeviceConfiguration{Driver: *driver}
		old.Spec.Devices.Config[0].Opaque.Parameters.Raw = []byte(gpuConfig + `"sharign": {}}`)
		s.tryCreate(t, old, true, "spec.devices.config[0].opaque.parameters.sharign")
	})
	t.Run("a class", func(t *testing.T) {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: opaque(*driver, gpuConfig+
			`"sharign": {}}`).DeviceConfiguration}}
		s.tryCreate(t, class, true, "spec.config[0].opaque.parameters.sharign")
		class.Spec.Config[0].Opaque.Driver = "gpu.example.com"
		s.tryCreate(t, class, false)
	})
}

// applyAgain sends a claim for the strongest GPU again as it was typed, with an update and with server-side apply.
func (s *suite) applyAgain(t *testing.T, ns string) {
	typed := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: "again", Namespace: ns},
		Spec:       resourceapi.ResourceClaimSpec{Devices: strongestClaim()}}
	//nolint:staticcheck // the newer API has no types for claims of this version of the client
	s.must(t, s.Patch(t.Context(), typed.DeepCopy(), client.Apply, client.FieldOwner("e2e")))
	s.allRanked(t, ns, 1, "again")
	var before resourceapi.ResourceClaim
	s.must(t, s.Get(t.Context(), client.ObjectKeyFromObject(typed), &before))
	after := func() *resourceapi.ResourceClaim {
		var claim resourceapi.ResourceClaim
		s.must(t, s.Get(t.Context(), client.ObjectKeyFromObject(typed), &claim))
		return &claim
	}
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		//nolint:staticcheck // the same
		s.must(t, s.Patch(t.Context(), typed.DeepCopy(), client.Apply, client.FieldOwner("e2e"),
			&client.PatchOptions{DryRun: dryRun}))
		if got := after(); got.ResourceVersion != before.ResourceVersion {
			t.Errorf("applied again: got %+v, want it unchanged: %+v", got, before)
		}
	}
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		sent := before.DeepCopy()
		sent.Spec = typed.Spec
		s.must(t, s.Update(t.Context(), sent, &client.UpdateOptions{DryRun: dryRun}))
		// The API server notes who has sent an update, so the version of the object changes once.
		if got := after(); !reflect.DeepEqual(got.Spec, before.Spec) {
			t.Errorf("updated: got %+v, want its spec unchanged: %+v", got, before)
		}
	}
	changed := after()
	changed.Spec.Devices = strongestClaim(func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 })
	warnings := s.Warnings()
	err := s.Update(t.Context(), changed)
	if got := strings.Join(warnings(), "\n"); !apierrors.IsInvalid(err) ||
		!strings.Contains(got, "other values of spec.devices.requests[0].exactly.count") {
		t.Errorf("another count: got %v and warnings %q, want a refusal, and the field", err, got)
	}
	s.must(t, s.Delete(t.Context(), after()))
}

// strongestClaim requests the strongest GPU.
func strongestClaim(more ...func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceClaim {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: strongestClass()}
	for _, change := range more {
		change(r)
	}
	return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: r}}}
}

func (s *suite) testStrongest(t *testing.T) {
	s.needs(t, "Kubernetes 1.35") // whose scheduler scores alternatives
	ns := s.namespace(t, "strongest")
	best := s.wholeGPUs(t, s.node(t, "dgx-h100"))[0]
	model := func(name string) func(*resourceapi.ExactDeviceRequest) {
		return func(r *resourceapi.ExactDeviceRequest) {
			r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
				"device.attributes[%q].architecture == %q", *driver, name)}}}
		}
	}
	nvlink := resourceapi.FullyQualifiedName(*driver + "/nvlinkDomain")
	for _, tc := range []struct {
		name  string
		claim resourceapi.DeviceClaim
		want  string // the product
		count int
	}{
		{"one", strongestClaim(), stringAttribute(best, "productName"), 1},
		{"two that are joined", func() resourceapi.DeviceClaim {
			c := strongestClaim(func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 })
			c.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{"gpu"}, MatchAttribute: &nvlink}}
			return c
		}(), stringAttribute(best, "productName"), 2},
		{"of an architecture", strongestClaim(model("Ada Lovelace")), "NVIDIA L40S", 1},
		{"with time slices", func() resourceapi.DeviceClaim {
			c := strongestClaim()
			c.Config = []resourceapi.DeviceClaimConfiguration{opaque(*driver, gpuConfig+
				`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`)}
			c.Config[0].Requests = []string{"gpu"}
			return c
		}(), stringAttribute(best, "productName"), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := strings.ReplaceAll(tc.name, " ", "-")
			pod := s.pod(t, ns, name, withTemplate(s.claimTemplate(t, ns, name, tc.claim)), func(p *corev1.PodSpec) {
				p.Containers[0].Resources.Claims[0].Request = "gpu" // the name that the user knows
			})
			running := s.running(t, pod)
			s.waitLog(t, pod, s.expectedLog(t, running, tc.want, tc.count))
			if len(tc.claim.Config) > 0 {
				if got := s.hardware(t, running.Spec.NodeName, s.allocated(t, running).Name); !strings.Contains(got,
					"interval=Long") {
					t.Errorf("got %q, want the time slice of the configuration, which names the request", got)
				}
			}
		})
	}
	t.Run("the strongest free one", func(t *testing.T) {
		// All but one of the strongest GPUs are allocated, so the second of two pods gets another model.
		free := len(s.wholeGPUs(t, s.node(t, "dgx-h100"))) - s.allocatedOn(t, s.node(t, "dgx-h100"))
		one := s.claimTemplate(t, ns, "last", strongestClaim())
		holder := s.pod(t, ns, "holder", onNode(s.node(t, "dgx-h100")), withTemplate(s.claimTemplate(t, ns, "rest",
			resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{gpus("gpus", int64(free-1))}})))
		s.running(t, holder)
		var products []string
		for n := range 2 {
			pod := s.pod(t, ns, fmt.Sprintf("last-%d", n), withTemplate(one))
			products = append(products, stringAttribute(s.allocated(t, s.running(t, pod)), "productName"))
		}
		if products[0] != stringAttribute(best, "productName") || products[1] != "NVIDIA H100 PCIe" {
			t.Errorf("got %q, want the last of the strongest, then the strongest of the others", products)
		}
	})
}

// testDefaultSpreading creates replicas in a namespace whose pods the scheduler does not spread by default.
func (s *suite) testDefaultSpreading(t *testing.T) {
	s.needs(t, "Kubernetes 1.36") // MutatingAdmissionPolicy
	ns := s.labelled(t, "spreading", map[string]string{"gpu.nvidia.com/default-spreading": "off"})
	best := stringAttribute(s.wholeGPUs(t, s.node(t, "dgx-h100"))[0], "productName")
	template := s.claimTemplate(t, ns, "strongest", strongestClaim())
	labels := map[string]string{"app": "worker"}
	worker := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: s.image,
		Args: []string{"show", "--stay"}}}}
	withTemplate(template)(&worker)
	const replicas = 4
	s.must(t, s.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "worker", Namespace: ns},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: worker}}}))
	var pods []corev1.Pod
	s.must(t, kube.Until(t.Context(), soon, "replicas to run", func(ctx context.Context) (bool, string, error) {
		var err error
		pods, err = s.Pods(ctx, ns)
		running := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == replicas, fmt.Sprint(running, " do"), err
	}))
	for _, p := range pods {
		if got := stringAttribute(s.allocated(t, &p), "productName"); got != best {
			t.Errorf("%s on %s: got %s, want the strongest, %s", p.Name, p.Spec.NodeName, got, best)
		}
	}
	neutral := []corev1.TopologySpreadConstraint{{MaxSkew: 1000, TopologyKey: corev1.LabelHostname,
		WhenUnsatisfiable: corev1.DoNotSchedule}}
	own := []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone,
		WhenUnsatisfiable: corev1.ScheduleAnyway}}
	for _, row := range []struct {
		name    string
		options []podOption
		want    []corev1.TopologySpreadConstraint
	}{
		{"claim", []podOption{withTemplate(template)}, neutral},
		{"no-claim", nil, nil},
		{"own-constraint", []podOption{withTemplate(template),
			func(p *corev1.PodSpec) { p.TopologySpreadConstraints = own }}, own},
	} {
		var pod corev1.Pod
		s.must(t, s.Get(t.Context(), s.pod(t, ns, row.name, row.options...), &pod))
		if got := pod.Spec.TopologySpreadConstraints; !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: got %+v, want %+v", row.name, got, row.want)
		}
	}
}

// allocatedOn returns how many devices of the node are allocated.
func (s *suite) allocatedOn(t *testing.T, node string) (devices int) {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	s.must(t, s.List(t.Context(), &claims))
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == *driver && r.Pool == node {
				devices++
			}
		}
	}
	return devices
}

// expectedLog returns the output of a container with the GPUs of the pod's claim, which are of that model.
func (s *suite) expectedLog(t *testing.T, pod *corev1.Pod, product string, count int) string {
	t.Helper()
	claim := s.claimOf(t, pod)
	results := claim.Status.Allocation.Devices.Results
	if len(results) != count {
		t.Fatalf("got %d devices, want %d", len(results), count)
	}
	var gpus, nodes []string
	published := s.inPool(t, results[0].Pool)
	devices := map[int64]resourceapi.Device{}
	var indices []int64
	for _, r := range results {
		i := slices.IndexFunc(published, func(d resourceapi.Device) bool { return d.Name == r.Device })
		d := published[i]
		if got := stringAttribute(d, "productName"); got != product {
			t.Errorf("got %s, want %s", got, product)
		}
		devices[intAttribute(d, "index")] = d
		indices = append(indices, intAttribute(d, "index"))
	}
	slices.Sort(indices)
	for i, index := range indices {
		d := devices[index]
		gpus = append(gpus, fmt.Sprintf("GPU %d: %s (UUID: %s)\n", i, stringAttribute(d, "productName"),
			stringAttribute(d, "uuid")))
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia%d: allowed\n", intAttribute(d, "minor")))
	}
	return strings.Join(gpus, "") + strings.Join(nodes, "")
}

// testControllerFaults creates claims continuously while the controller fails in several ways.
func (s *suite) testControllerFaults(t *testing.T) {
	ns := s.namespace(t, "faults")
	configured := func(name string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
			Spec: resourceapi.ResourceClaimSpec{Devices: func() resourceapi.DeviceClaim {
				c := strongestClaim()
				c.Config = []resourceapi.DeviceClaimConfiguration{opaque(*driver, gpuConfig+
					`"sharing": {"strategy": "TimeSlicing"}}`)}
				return c
			}()}}
	}
	t.Run("500 claims at once", func(t *testing.T) {
		const many = 500
		// A controller knows the GPUs a moment after they are published.
		s.must(t, kube.Until(t.Context(), soon, "a ranked claim", func(ctx context.Context) (bool, string, error) {
			probe := configured("probe")
			err := s.Create(ctx, probe, client.DryRunAll)
			return err == nil && probe.Spec.Devices.Requests[0].Exactly == nil, "it is not", err
		}))
		before, err := s.FailedOpen(t.Context(), strongestClass())
		s.must(t, err)
		warnings := s.Warnings()
		work, ctx := errgroup.WithContext(t.Context())
		work.SetLimit(25)
		for n := range many {
			work.Go(func() error { return s.createInTime(ctx, configured(fmt.Sprintf("many-%03d", n))) })
		}
		s.must(t, work.Wait())
		// On a slow machine, the API server waits in vain for the ranks of some, or the controller gives up before.
		after, err := s.FailedOpen(t.Context(), strongestClass())
		s.must(t, err)
		late := after - before + strings.Count(strings.Join(warnings(), "\n"), "took too long to rank it")
		t.Logf("%d claims were not ranked in time", late)
		s.allRanked(t, ns, many-late)
		s.must(t, s.DeleteAllOf(t.Context(), &resourceapi.ResourceClaim{}, client.InNamespace(ns)))
	})
	// load creates claims, one after the other, until stop, which waits until the last ten were answered. It returns
	// the errors of those for which no webhook answered.
	load := func(name string) (stop func() (made int, unanswered []error)) {
		var made, answered atomic.Int64 // answered are those since the last error
		var unanswered []error
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := s.Create(ctx, configured(fmt.Sprintf("%s-%d", name, n))); err == nil {
					made.Add(1)
					answered.Add(1)
				} else if ctx.Err() == nil {
					answered.Store(0)
					unanswered = append(unanswered, err)
				}
			}
		})
		return func() (int, []error) {
			s.must(t, kube.Until(t.Context(), soon, "ten claims to be made", func(context.Context) (bool, string,
				error) {
				return answered.Load() >= 10, fmt.Sprint(answered.Load()), nil
			}))
			cancel()
			done.Wait()
			return int(made.Load()), unanswered
		}
	}
	t.Run("its certificate is corrupted, then removed", func(t *testing.T) {
		stop := load("certificate")
		for _, spoil := range []func(*corev1.Secret) error{
			func(secret *corev1.Secret) error {
				secret.Data["tls.crt"] = []byte("no certificate")
				return s.Update(t.Context(), secret)
			},
			func(secret *corev1.Secret) error { return s.Delete(t.Context(), secret) },
		} {
			before := s.certificate(t)
			s.must(t, spoil(before.DeepCopy()))
			s.must(t, kube.Until(t.Context(), soon, "the certificate to be put back", func(ctx context.Context) (bool,
				string, error) {
				var now corev1.Secret
				err := s.Get(ctx, client.ObjectKeyFromObject(before), &now)
				return string(now.Data["tls.crt"]) == string(before.Data["tls.crt"]), fmt.Sprint(len(now.Data)),
					client.IgnoreNotFound(err)
			}))
		}
		made, unanswered := stop()
		if len(unanswered) > 0 {
			t.Errorf("%d claims were made, and nobody answered for %v; want all answered", made, unanswered)
		}
	})
	t.Run("its replicas are replaced, as by an upgrade", func(t *testing.T) {
		before := s.controllers(t)
		stop := load("replaced")
		var all appsv1.DeploymentList
		s.must(t, s.List(t.Context(), &all, client.InNamespace(controllerNamespace), controllerLabels))
		s.must(t, s.Patch(t.Context(), &all.Items[0], client.RawPatch(types.MergePatchType,
			[]byte(`{"spec": {"template": {"metadata": {"annotations": {"e2e.example.com/replaced": "yes"}}}}}`))))
		s.must(t, kube.Until(t.Context(), soon, "other replicas", func(context.Context) (bool, string, error) {
			now := s.controllers(t)
			old := slices.ContainsFunc(now, func(p corev1.Pod) bool {
				return slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID })
			})
			return !old && len(now) == 2, fmt.Sprintf("%d replicas, old ones among them: %t", len(now), old), nil
		}))
		s.waitControllers(t, 2)
		made, unanswered := stop()
		if len(unanswered) > 0 {
			t.Errorf("%d claims were made, and nobody answered for %v; want all answered", made, unanswered)
		}
	})
	t.Run("one replica after the other is killed", func(t *testing.T) {
		stop := load("killed")
		for _, pod := range s.controllers(t) {
			s.must(t, s.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
			s.waitControllers(t, 2)
		}
		made, unanswered := stop()
		// A claim with a configuration requires the webhook. The API server soon uses the other replica.
		for _, err := range unanswered {
			if !strings.Contains(err.Error(), "failed calling webhook") {
				t.Errorf("got %v, want nothing but calls that reached nobody", err)
			}
		}
		t.Logf("%d claims were made, %d have to be tried again", made, len(unanswered))
	})
	t.Run("clients of an older API", func(t *testing.T) {
		s.serves(t, resourcev1beta1.SchemeGroupVersion)
		s.must(t, s.Create(t.Context(), configured("edited")))
		var old resourcev1beta1.ResourceClaim
		s.must(t, s.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "edited"}, &old))
		old.Labels = map[string]string{"edited": "yes"}
		s.must(t, s.Update(t.Context(), &old))
		var now resourceapi.ResourceClaim
		s.must(t, s.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "edited"}, &now))
		if len(now.Spec.Devices.Requests[0].FirstAvailable) != 8 || now.Labels["edited"] != "yes" {
			t.Errorf("got %+v, want the list unharmed and the label", now.Spec.Devices.Requests)
		}
	})
	var unranked resourceapi.ResourceClaim
	t.Run("it is down", func(t *testing.T) {
		s.scaleController(t, 0)
		defer func() {
			s.scaleController(t, 2)
		}()
		plain := s.pod(t, ns, "plain", withTemplate(s.template(t, ns, "plain")))
		strongest := s.pod(t, ns, "strongest", withTemplate(s.claimTemplate(t, ns, "any", strongestClaim())))
		s.running(t, plain)
		claim := s.claimOf(t, s.running(t, strongest))
		unranked = claim
		if claim.Spec.Devices.Requests[0].Exactly == nil {
			t.Errorf("got %+v, want it as it was typed: nobody was there to rank", claim.Spec.Devices.Requests)
		}
		err := s.Create(t.Context(), configured("refused"))
		if err == nil || !strings.Contains(err.Error(), "validate."+*driver) {
			t.Errorf("got %v, want a claim with a configuration refused, with the name of the webhook", err)
		}
		s.must(t, s.Delete(t.Context(), &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
			Name: "plain"}}))
		s.deletePod(t, plain)
	})
	s.must(t, s.Create(t.Context(), configured("again")))
	s.allRanked(t, ns, 1, "again")
	s.waitEvent(t, client.ObjectKeyFromObject(&unranked), "NotRanked", "it gets any whole GPU")
}

// serves skips the test if the API server does not serve that version of claims.
func (s *suite) serves(t *testing.T, version schema.GroupVersion) {
	t.Helper()
	if _, err := s.RESTMapper().RESTMapping(schema.GroupKind{Group: version.Group, Kind: "ResourceClaim"},
		version.Version); err != nil {
		t.Skipf("%v; make test-e2e starts a cluster that has it", err)
	}
}

// allRanked checks that at least want claims have ranked lists; with names, of those claims.
func (s *suite) allRanked(t *testing.T, ns string, want int, names ...string) {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	s.must(t, s.List(t.Context(), &claims, client.InNamespace(ns)))
	ranked := 0
	for _, c := range claims.Items {
		if len(names) > 0 && !slices.Contains(names, c.Name) {
			continue
		}
		if len(c.Spec.Devices.Requests[0].FirstAvailable) == 8 {
			ranked++
		}
	}
	if ranked < want {
		t.Errorf("%d of %d claims are ordered lists, want at least %d", ranked, len(claims.Items), want)
	}
}

func (s *suite) certificate(t *testing.T) *corev1.Secret {
	t.Helper()
	var secrets corev1.SecretList
	s.must(t, s.List(t.Context(), &secrets, client.InNamespace(controllerNamespace)))
	i := slices.IndexFunc(secrets.Items, func(secret corev1.Secret) bool {
		return strings.HasSuffix(secret.Name,
			"-controller-certificate")
	})
	if i < 0 {
		t.Fatal("the controller has no certificate")
	}
	return &secrets.Items[i]
}

func (s *suite) controllers(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := s.Pods(t.Context(), controllerNamespace, controllerLabels)
	s.must(t, err)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// waitControllers waits until that number of replicas is ready and no other exists.
func (s *suite) waitControllers(t *testing.T, want int) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("%d controllers", want), func(ctx context.Context) (bool,
		string, error) {
		pods, err := s.Pods(ctx, controllerNamespace, controllerLabels)
		ready := 0
		for i := range pods {
			if pods[i].DeletionTimestamp == nil && kube.Ready(&pods[i]) {
				ready++
			}
		}
		return ready == want && len(pods) == want, fmt.Sprintf("%d pods, %d ready", len(pods), ready), err
	}))
}

func (s *suite) scaleController(t *testing.T, replicas int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var all appsv1.DeploymentList
	s.must(t, s.List(ctx, &all, client.InNamespace(controllerNamespace), controllerLabels))
	for i := range all.Items {
		before := all.Items[i].DeepCopy()
		all.Items[i].Spec.Replicas = ptr.To(int32(replicas))
		s.must(t, s.Patch(ctx, &all.Items[i], client.MergeFrom(before)))
	}
	s.waitControllers(t, replicas)
	if replicas == 0 {
		return
	}
	// The API server updates endpoints with a delay.
	s.must(t, kube.Until(ctx, soon, "webhooks to answer", func(ctx context.Context) (bool, string, error) {
		probe := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Namespace: "default"},
			Spec: claimSpec(opaque(*driver, gpuConfig+`"environment": {}}`))}
		err := s.Create(ctx, probe, client.DryRunAll)
		if err != nil && !apierrors.IsInternalError(err) && !errors.Is(err, context.DeadlineExceeded) {
			return false, "", err
		}
		return err == nil, fmt.Sprint(err), nil
	}))
}
