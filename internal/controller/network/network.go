// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

const (
	// period is the time between two rounds when nothing changes, and settle how long changes are collected.
	period, settle = 10 * time.Second, 100 * time.Millisecond
	// patience is how long a server may be silent until its device is lost.
	patience = 30 * time.Second
	// resync is how often the informers call again. Rounds need no such calls.
	resync = 0
)

// Options say who is who.
type Options struct {
	// Namespace is that of the server pods.
	Namespace string
	// Account is the user name of the plugin's service account on nodes of clients.
	Account string
}

// Controller runs on the leader.
type Controller struct {
	Options
	driver  string // of local devices
	view    *cluster.View
	known   func() error // an error until the claims are known
	guard   feature.Guard
	client  kubernetes.Interface
	direct  client.Client // writes events
	gpus    *prometheus.GaugeVec
	publish func(context.Context, *resourceapi.DeviceClass, []resourceapi.Device) error
	caller  *caller
	now     func() time.Time

	pods     func() []*corev1.Pod // with the label, in no order
	requests func() []*certificatesv1.CertificateSigningRequest
	// changed lets a round start, and signed the next look at requests.
	changed, signed chan struct{}

	// Only rounds use these.
	servers map[string]*server   // by name of the device
	offers  map[types.UID]offer  // by server pod
	told    map[types.UID]string // what claims have in their status
	called  time.Time            // when all servers were called, or the devices restored
	// measured are the published devices by the labels of their metric.
	measured map[[3]string]float64

	mu       sync.Mutex
	claims   map[types.UID]*resourceapi.ResourceClaim // with remote devices
	sessions map[types.UID]session                    // that servers have admitted
}

// session is where a claim is admitted.
type session struct {
	server types.UID // the pod's
	issuer remote.Authority
}

// Add adds the feature. All replicas follow the remote devices, for quotas.
func Add(ctx context.Context, f *feature.Controller, o Options) error {
	api, err := f.Reads()
	if err != nil {
		return err
	}
	driver := f.View.Driver()
	p := &publisher{client: api, driver: remote.Driver(driver)}
	c := &Controller{Options: o, driver: driver, view: f.View, known: f.Known, guard: f.Guard, client: api,
		direct: f.Direct, gpus: metrics.NewRemoteGPUs(), publish: p.publish, caller: &caller{address: address},
		now: time.Now}
	p.tell = c.tell
	c.reset()
	f.View.Remote = cluster.New(remote.Driver(driver))
	slices := informers.NewSharedInformerFactoryWithOptions(api, resync, informers.WithTweakListOptions(
		selecting(resourceapi.ResourceSliceSelectorDriver, remote.Driver(driver))))
	read, err := slices.Resource().V1().ResourceSlices().Informer().AddEventHandler(feature.EventHandler(f.Guard,
		f.View.Remote.SetSlice, func(s *resourceapi.ResourceSlice) { f.View.Remote.DeleteSlice(s.Name) }))
	if err != nil {
		return err
	}
	claims, err := f.Manager.GetCache().GetInformer(ctx, &resourceapi.ResourceClaim{})
	if err != nil {
		return err
	}
	followed, err := claims.AddEventHandler(feature.EventHandler(f.Guard, c.setClaim, c.dropClaim))
	if err != nil {
		return err
	}
	c.known = func() error {
		if !followed.HasSynced() {
			return errors.New("claims are still being read")
		}
		return f.Known()
	}
	slices.Start(ctx.Done()) // on all replicas, before they serve webhooks
	return errors.Join(ctrlmetrics.Registry.Register(c.gpus), f.Manager.Add(manager.RunnableFunc(c.Start)),
		f.Manager.AddReadyzCheck("remote", func(*http.Request) error {
			if !read.HasSynced() {
				return errors.New("slices of GPUs over the network are still being read")
			}
			return nil
		}))
}

// selecting selects the objects with this value of a field.
func selecting(field, value string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector(field, value).String() }
}

// reset begins with nothing.
func (c *Controller) reset() {
	c.servers, c.offers, c.told = map[string]*server{}, map[types.UID]offer{}, map[types.UID]string{}
	c.claims, c.sessions = map[types.UID]*resourceapi.ResourceClaim{}, map[types.UID]session{}
	c.changed, c.signed = make(chan struct{}, 1), make(chan struct{}, 1)
}

// Start makes rounds and signs certificates until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	pods := informers.NewSharedInformerFactoryWithOptions(c.client, resync, informers.WithNamespace(c.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = remote.ServerLabel }))
	requests := informers.NewSharedInformerFactoryWithOptions(c.client, resync,
		informers.WithTweakListOptions(selecting("spec.signerName", remote.Signer(c.driver))))
	podLister := pods.Core().V1().Pods()
	requestLister := requests.Certificates().V1().CertificateSigningRequests()
	c.pods = func() []*corev1.Pod {
		all, _ := podLister.Lister().List(labels.Everything()) // from the cache: no error is possible
		return all
	}
	c.requests = func() []*certificatesv1.CertificateSigningRequest {
		all, _ := requestLister.Lister().List(labels.Everything())
		return all
	}
	_, err := podLister.Informer().AddEventHandler(triggers(c.changed))
	_, err2 := requestLister.Informer().AddEventHandler(triggers(c.signed))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for _, f := range []informers.SharedInformerFactory{pods, requests} {
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
	}
	for err := c.restore(ctx); err != nil && ctx.Err() == nil; err = c.restore(ctx) {
		log.FromContext(ctx).Error(err, "Remote GPUs are not looked after, will be tried again")
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	var both sync.WaitGroup
	both.Go(func() { c.loop(ctx, c.changed, "publish remote GPUs", c.round) })
	both.Go(func() { c.loop(ctx, c.signed, "sign session certificates", c.sign) })
	both.Wait()
	return nil
}

// loop calls what after each change, and every period.
func (c *Controller) loop(ctx context.Context, changed <-chan struct{}, what string, do func(context.Context) error) {
	for ctx.Err() == nil {
		if c.known() == nil {
			if err := c.guard.Do(what, func() error { return do(ctx) }); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "Will be tried again: "+what)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(period):
		}
		time.Sleep(settle)
	}
}

// trigger lets the loop of the channel go on.
func trigger(loop chan<- struct{}) {
	select {
	case loop <- struct{}{}:
	default: // it will anyway
	}
}

// triggers lets the loop go on at each event.
func triggers(loop chan<- struct{}) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { trigger(loop) },
		UpdateFunc: func(_, _ any) { trigger(loop) }, DeleteFunc: func(any) { trigger(loop) }}
}

// setClaim follows a claim, which may be slim. It must not change any more.
func (c *Controller) setClaim(claim *resourceapi.ResourceClaim) {
	if len(c.results(claim)) == 0 {
		c.dropClaim(claim)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[claim.UID] = claim
	trigger(c.changed)
}

func (c *Controller) dropClaim(claim *resourceapi.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claims[claim.UID] != nil {
		delete(c.claims, claim.UID)
		trigger(c.changed)
	}
}

// results are the remote devices of the claim, also those with admin access.
func (c *Controller) results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	return remote.Results(claim, remote.Driver(c.driver))
}

// tell writes an event. Its name depends on the object and the text, so that no leader repeats it.
func (c *Controller) tell(ctx context.Context, kind event.Kind, about *corev1.ObjectReference, text string) error {
	_, err := feature.CreateEvent(ctx, c.direct, kind, about, fmt.Sprintf("%s-%s-%.4x", strings.ToLower(kind.Reason),
		about.UID, sha256.Sum256([]byte(text))), text)
	return err
}
