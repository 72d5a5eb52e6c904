// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

const (
	burstNode, burstNamespace = "bursts", "bursts"
	// allBound is how long a burst may take: less than the five minutes after which the scheduler tries pods by itself.
	allBound = 4 * time.Minute
	// late is the wait of a pod that is counted.
	late = 5 * time.Second
)

// Bursts of pods fill two GPUs exactly, and all pods are bound before the scheduler tries them again by itself. The API
// server and the scheduler are those of $KUBECONFIG, of a cluster without this driver that is used for nothing else. No
// admission plugin may need service accounts, or taint a node without a kubelet. RETRY_BURSTS sets how many bursts of
// each kind. RETRY_REMEDY=0 runs without this package, and only counts the pods that wait.
func TestBurstsOnScheduler(t *testing.T) {
	bursts, _ := strconv.Atoi(os.Getenv("RETRY_BURSTS"))
	if bursts == 0 {
		t.Skip("RETRY_BURSTS is not set")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	direct, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	reads, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const replicas = 5
	for _, b := range []*burst{
		{name: "one claim", shares: 10, claims: 1},
		{name: "five claims", shares: 20, claims: 5},
		{name: "an extended resource", shares: replicas,
			use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: replicas}},
	} {
		t.Run(b.name, func(t *testing.T) {
			b.T, b.client, b.reads = t, direct, reads
			b.prepare()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			r := b.retrier(ctx)
			patience := allBound
			if os.Getenv("RETRY_REMEDY") == "0" {
				patience = late
			} else {
				go func() { _ = r.Start(ctx) }()
			}
			waited, unbound, longest := 0, 0, time.Duration(0)
			for range bursts {
				for _, wait := range b.run(ctx, patience) {
					longest = max(longest, wait)
					if wait >= late {
						waited++
					}
					if wait >= patience {
						unbound++
					}
				}
			}
			t.Logf("%d bursts: %d pods waited for %s, the longest for %s; %v retries", bursts, waited, late, longest,
				testutil.ToFloat64(r.retries))
			if patience == allBound && unbound > 0 {
				t.Errorf("%d pods were not bound in %s", unbound, patience)
			}
		})
	}
}

// burst is pods that fill both GPUs of the node with shares.
type burst struct {
	*testing.T
	client client.WithWatch
	reads  kubernetes.Interface

	name   string
	use    gpu.SharingMode
	shares int // of each GPU
	claims int // of each pod, for a share each; 0: it requests an extended resource
}

func (b *burst) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// prepare creates the classes, and a node with two GPUs and no kubelet.
func (b *burst) prepare() {
	ctx := b.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: burstNode}}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: burstNamespace}}, node}
	for _, class := range clustertest.Classes(b) {
		objects = append(objects, class)
	}
	for _, o := range objects {
		b.must(client.IgnoreAlreadyExists(b.client.Create(ctx, o)))
	}
	many := corev1.ResourceList{"cpu": resource.MustParse("1000"), "memory": resource.MustParse("1Ti"),
		"pods": resource.MustParse("1000")}
	b.must(b.client.Get(ctx, client.ObjectKey{Name: burstNode}, node))
	node.Status.Allocatable, node.Status.Capacity = many, many
	b.must(b.client.Status().Update(ctx, node))
	for _, s := range clustertest.Slices(b, clustertest.SimNode{Name: burstNode, Profile: "t4-x2", Use: b.use}) {
		b.must(b.client.Create(ctx, s))
		b.Cleanup(func() { b.must(b.client.Delete(context.WithoutCancel(ctx), s)) })
	}
}

// retrier returns a retrier with a view that follows the cluster, as the controller does.
func (b *burst) retrier(ctx context.Context) *Retrier {
	f := informers.NewSharedInformerFactory(b.reads, 0)
	v := cluster.New(clustertest.Driver)
	follow := func(i cache.SharedIndexInformer, set, drop func(any)) {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: set,
			UpdateFunc: func(_, o any) { set(o) }, DeleteFunc: drop})
		b.must(err)
	}
	follow(f.Resource().V1().ResourceSlices().Informer(), func(o any) {
		v.SetSlice(v.SlimSlice(o.(*resourceapi.ResourceSlice)))
	}, func(o any) { v.DeleteSlice(o.(metav1.Object).GetName()) })
	follow(f.Resource().V1().ResourceClaims().Informer(), func(o any) {
		v.SetClaim(cluster.SlimClaim(o.(*resourceapi.ResourceClaim)))
	}, func(o any) {
		c := o.(metav1.Object)
		v.DeleteClaim(types.NamespacedName{Namespace: c.GetNamespace(), Name: c.GetName()})
	})
	follow(f.Resource().V1().DeviceClasses().Informer(), func(o any) { v.SetClass(o.(*resourceapi.DeviceClass)) },
		func(o any) { v.DeleteClass(o.(metav1.Object).GetName()) })
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	return newRetrier(&feature.Controller{View: v, Known: func() error { return nil }, Direct: b.client,
		Guard: feature.NewGuard(), Waiting: waiting.New(b.reads)}, class)
}

// run creates the pods at once, waits until they are bound, at most for the patience, and deletes them. It returns how
// long each waited.
func (b *burst) run(ctx context.Context, patience time.Duration) (waits []time.Duration) {
	watching, stop := context.WithTimeout(ctx, patience)
	defer stop()
	bindings, err := b.client.Watch(watching, &corev1.PodList{}, client.InNamespace(burstNamespace))
	b.must(err)
	pods := 2 * b.shares / max(1, b.claims)
	started := time.Now()
	var creating errgroup.Group
	for range pods {
		creating.Go(func() error { return b.create(ctx) })
	}
	b.must(creating.Wait())
	bound := map[string]bool{}
	for len(bound) < pods {
		select {
		case <-watching.Done():
			for range pods - len(bound) {
				waits = append(waits, patience)
			}
			pods = len(bound)
		case e := <-bindings.ResultChan():
			if pod, ok := e.Object.(*corev1.Pod); ok && pod.Spec.NodeName != "" && !bound[pod.Name] {
				bound[pod.Name] = true
				waits = append(waits, time.Since(started))
			}
		}
	}
	b.remove(ctx)
	return waits
}

// create creates a pod and its claims.
func (b *burst) create(ctx context.Context) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: burstNamespace, GenerateName: "pod-"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	if b.claims == 0 {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu.shared": resource.MustParse("1")}
	}
	for i := range b.claims {
		c := clustertest.Claim(b, fmt.Sprintf(`requests: [{name: gpu, exactly: {deviceClassName: %s, capacity: {requests: {memory: %dMi, cores: %d}}}}]`,
			clustertest.Driver, 15360/b.shares, 100/b.shares))
		c.ObjectMeta = metav1.ObjectMeta{Namespace: burstNamespace, GenerateName: "claim-"}
		if err := b.client.Create(ctx, c); err != nil {
			return err
		}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint("gpu-", i),
			ResourceClaimName: &c.Name})
	}
	return b.client.Create(ctx, pod)
}

// remove deletes all pods and claims. Claims are released by hand: their pods ran nowhere.
func (b *burst) remove(ctx context.Context) {
	b.must(b.client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(burstNamespace), client.GracePeriodSeconds(0)))
	b.must(b.client.DeleteAllOf(ctx, &resourceapi.ResourceClaim{}, client.InNamespace(burstNamespace)))
	var claims resourceapi.ResourceClaimList
	b.must(b.client.List(ctx, &claims, client.InNamespace(burstNamespace)))
	for i := range claims.Items {
		b.must(client.IgnoreNotFound(b.client.Patch(ctx, &claims.Items[i], client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`)))))
	}
}
