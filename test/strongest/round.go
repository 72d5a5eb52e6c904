// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

const (
	namespace      = "gpu-dra-driver" // of the driver
	strongestClass = "strongest.gpu.nvidia.com"
	soon           = kube.Patience
	singles        = 6 // pods one after the other in a round
	replicas       = 8 // pods of each of two ReplicaSets in a round
	image          = "localhost/never-pulled:v1"
)

// gpus maps profiles whose models differ in speed to their number of GPUs.
var gpus = map[string]int{"gb200-nvl4": 4, "hgx-b200": 8, "dgx-h100": 8, "l40s-x4": 4, "dgx-a100": 8, "a30-x2": 2,
	"dgx1-v100": 8, "t4-x2": 2}

// placement is a pod with the GPU that it got and the best free one at that time.
type placement struct {
	setting   setting
	tiers     int
	how       how
	pod       string   // namespace/name
	node      string   // where it is
	got, best int64    // peak of its GPU, of the strongest one that was free
	bestOn    []string // nodes that had such
	reason    string   // of a miss
}

func (p placement) hit() bool { return p.got == p.best }

// how is the kind of object that creates the pods.
type how string

const (
	single   how = "pods"
	replica  how = "replicas"
	unspread how = "replicas without default spreading"
)

// runner places pods and checks the results.
type runner struct {
	*kube.Cluster
	config *rest.Config
	fleet  *fleet.Fleet
}

// setRanks restarts the controller with that number of ranks.
func (p *runner) setRanks(ctx context.Context, ranks int) error {
	var all appsv1.DeploymentList
	if err := p.List(ctx, &all, client.InNamespace(namespace),
		client.MatchingLabels{"app.kubernetes.io/component": "controller"}); err != nil {
		return err
	}
	if len(all.Items) != 1 {
		return fmt.Errorf("%d controllers in namespace %s, want one", len(all.Items), namespace)
	}
	controller := &all.Items[0]
	args := controller.Spec.Template.Spec.Containers[0].Args
	at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--strongest-ranks=") })
	if at < 0 {
		return fmt.Errorf("the controller has no argument --strongest-ranks: %q", args)
	}
	args[at] = fmt.Sprintf("--strongest-ranks=%d", ranks)
	if err := p.Update(ctx, controller); err != nil {
		return err
	}
	return kube.Until(ctx, soon, "the controller to restart", func(ctx context.Context) (bool, string, error) {
		err := p.Get(ctx, client.ObjectKeyFromObject(controller), controller)
		s := controller.Status
		done := s.ObservedGeneration == controller.Generation && s.UpdatedReplicas == s.Replicas &&
			s.ReadyReplicas == *controller.Spec.Replicas && s.Replicas == *controller.Spec.Replicas
		return done, fmt.Sprintf("%+v", s), err
	})
}

// round creates a random cluster, requests the strongest GPU, and removes the cluster.
func (p *runner) round(ctx context.Context, s setting, ns string, models int, random *rand.Rand) ([]placement, error) {
	nodes := randomNodes(models, random)
	var err error
	if p.fleet, err = fleet.Start(ctx, p.config, fleet.Config{Nodes: nodes}); err != nil {
		return nil, err
	}
	if err := p.makeNamespace(ctx, ns, nil); err != nil {
		return nil, err
	}
	o, err := p.occupy(ctx, ns, nodes, random)
	if err != nil {
		return nil, err
	}
	var all []placement
	for n := range singles {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("single-%d", n)},
			Spec: podSpec("strongest", s.scheduler)}
		if err := p.Create(ctx, pod); err != nil {
			return nil, err
		}
		placed, err := p.placed(ctx, o, single, ns, pod.Name, 1)
		if err != nil {
			return nil, err
		}
		all = append(all, placed...)
	}
	for _, how := range []how{replica, unspread} {
		placed, err := p.replicas(ctx, o, how, ns, s.scheduler)
		if err != nil {
			return nil, err
		}
		all = append(all, placed...)
	}
	for i := range all {
		all[i].setting, all[i].tiers = s, o.tiers()
	}
	fmt.Printf("%s: %s: %d nodes, %d models, %d of %d placements on the strongest GPU that was free\n", s.name, ns,
		len(nodes), o.tiers(), hits(all), len(all))
	return all, p.end(ctx)
}

// makeNamespace creates a namespace with a claim template for the strongest GPU.
func (p *runner) makeNamespace(ctx context.Context, name string, labels map[string]string) error {
	return p.make(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
		template(name, "strongest", strongestClass, 1))
}

// replicas creates a ReplicaSet and returns its placements.
func (p *runner) replicas(ctx context.Context, o *oracle, how how, ns, scheduler string) ([]placement, error) {
	if how == unspread {
		ns += "-unspread"
		if err := p.makeNamespace(ctx, ns, map[string]string{"gpu.nvidia.com/default-spreading": "off"}); err != nil {
			return nil, err
		}
	}
	labels := map[string]string{"app": "worker"}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "worker"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: podSpec("strongest", scheduler)}}}
	if err := p.Create(ctx, set); err != nil {
		return nil, err
	}
	return p.placed(ctx, o, how, ns, "worker-", replicas)
}

func hits(all []placement) (n int) {
	for _, p := range all {
		if p.hit() {
			n++
		}
	}
	return n
}

// end removes the cluster of a round.
func (p *runner) end(ctx context.Context) error {
	var all corev1.NamespaceList
	if err := p.List(ctx, &all); err != nil {
		return err
	}
	var names []string
	for _, ns := range all.Items {
		if strings.HasPrefix(ns.Name, "round-") {
			names = append(names, ns.Name)
		}
	}
	if len(names) > 0 {
		for _, name := range names {
			if err := p.DeleteAllOf(ctx, &appsv1.ReplicaSet{}, client.InNamespace(name)); err != nil {
				return err
			}
		}
		if err := p.Empty(ctx, soon, names...); err != nil {
			return err
		}
		if err := p.DeleteNamespaces(ctx, names...); err != nil {
			return err
		}
	}
	if p.fleet == nil {
		return nil
	}
	err := p.fleet.Stop(ctx)
	p.fleet = nil
	return err
}

// randomNodes returns 3 to 40 nodes with that number of models and room for all pods of a round.
func randomNodes(count int, random *rand.Rand) []fleet.Node {
	models := slices.Sorted(maps.Keys(gpus))
	random.Shuffle(len(models), func(i, j int) { models[i], models[j] = models[j], models[i] })
	models = models[:count]
	least, room := max(len(models), 3+random.IntN(38)), 0
	var nodes []fleet.Node
	for n := 0; n < least || room < singles+2*replicas; n++ {
		profile := models[random.IntN(len(models))]
		if n < len(models) {
			profile = models[n]
		}
		room += gpus[profile]
		nodes = append(nodes, fleet.Node{Name: fmt.Sprintf("fleet-%02d", n), Profile: profile,
			CPU: resource.MustParse("32"), Memory: resource.MustParse("128Gi")})
	}
	return nodes
}

// occupy creates a pod on every node that takes some of its GPUs and up to nine tenths of its processors.
func (p *runner) occupy(ctx context.Context, ns string, nodes []fleet.Node, random *rand.Rand) (*oracle, error) {
	var published resourceapi.ResourceSliceList
	if err := p.List(ctx, &published); err != nil {
		return nil, err
	}
	o := newOracle(published.Items)
	count := map[string]int{}
	for at := range o.free {
		count[at.node]++
	}
	var objects []client.Object
	spare := len(o.free) - singles - 2*replicas
	pods := 0
	for _, n := range nodes {
		take := min(random.IntN(count[n.Name]+1), max(0, spare))
		cpu := fmt.Sprintf("%dm", 100+random.IntN(28000))
		spec := podSpec("", "default-scheduler")
		if take > 0 {
			name := fmt.Sprintf("take-%d", take)
			objects = append(objects, template(ns, name, driver, int64(take)))
			spec = podSpec(name, "default-scheduler")
		}
		spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Name}
		spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "on-" + n.Name},
			Spec: spec})
		spare -= take
		pods++
	}
	if err := p.make(ctx, objects...); err != nil {
		return nil, err
	}
	if err := p.running(ctx, ns, "on-", pods); err != nil {
		return nil, err
	}
	var claims resourceapi.ResourceClaimList
	if err := p.List(ctx, &claims, client.InNamespace(ns)); err != nil {
		return nil, err
	}
	for i := range claims.Items {
		o.take(&claims.Items[i])
	}
	return o, nil
}

// make creates objects that do not exist yet.
func (p *runner) make(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		if err := p.Create(ctx, o); client.IgnoreAlreadyExists(err) != nil {
			return err
		}
	}
	return nil
}

// running waits until that number of pods with the name prefix is Running.
func (p *runner) running(ctx context.Context, ns, prefix string, want int) error {
	return kube.Until(ctx, soon, fmt.Sprintf("%d pods %s… to run", want, prefix), func(ctx context.Context) (bool,
		string, error) {
		pods, err := p.Pods(ctx, ns)
		running := 0
		for _, pod := range pods {
			if strings.HasPrefix(pod.Name, prefix) && pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == want, fmt.Sprint(running, " do"), err
	})
}

// placed waits for the pods and compares, in the scheduler's order, what each got with what was free.
func (p *runner) placed(ctx context.Context, o *oracle, how how, ns, prefix string, want int) ([]placement, error) {
	if err := p.running(ctx, ns, prefix, want); err != nil {
		return nil, err
	}
	var claims resourceapi.ResourceClaimList
	if err := p.List(ctx, &claims, client.InNamespace(ns)); err != nil {
		return nil, err
	}
	var all []placement
	for _, claim := range inOrder(claims.Items) {
		if len(claim.OwnerReferences) == 0 || !strings.HasPrefix(claim.OwnerReferences[0].Name, prefix) {
			continue
		}
		found := placement{how: how, pod: ns + "/" + claim.OwnerReferences[0].Name}
		found.best, found.bestOn = o.strongest()
		for _, at := range o.take(&claim) {
			found.node, found.got = at.node, o.peak[at]
		}
		if found.node == "" {
			return nil, fmt.Errorf("pod %s runs, and its claim has nothing", found.pod)
		}
		all = append(all, found)
	}
	if len(all) != want {
		return nil, fmt.Errorf("%d claims of pods %s…, want %d", len(all), prefix, want)
	}
	return all, nil
}

// template returns a claim template for count devices of a class.
func template(ns, name, class string, count int64) *resourceapi.ResourceClaimTemplate {
	t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	t.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}}
	return t
}

// podSpec returns a pod with a claim of the template; empty: without a claim.
func podSpec(template, scheduler string) corev1.PodSpec {
	spec := corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "main", Image: image,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(
			"100m")}}}}}
	if template != "" {
		spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return spec
}
