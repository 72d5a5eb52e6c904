// SPDX-License-Identifier: Apache-2.0

// Package controller is the cluster-wide part of the driver. It validates claims at admission, ranks GPUs and exports
// metrics. Pods do not depend on it: without it, claims work as written.
package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	webhookserver "sigs.k8s.io/controller-runtime/pkg/webhook"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
	"github.com/gpudra/gpu-dra-driver/internal/controller/convert"
	"github.com/gpudra/gpu-dra-driver/internal/controller/eviction"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
)

// Config is the configuration of the controller.
type Config struct {
	DriverName     string
	StrongestClass string // the class whose requests are ranked
	StrongestRanks int    // 2 to 8

	Namespace string // of the controller itself
	Name      string // of the release: of webhooks, service, secret and lease

	// ConvertFamilies are the older systems whose pods are converted; none: pods are not followed.
	ConvertFamilies []string
	ConvertModels   []convert.Model // besides those that are published
	// ConvertMemoryUnit is the size of one aliyun.com/gpu-mem in bytes.
	ConvertMemoryUnit int64
	// ConvertNames are the names that administrators of older systems gave to resources, and what they are here.
	ConvertNames map[string]string
	// WaitingAfter is how long a claim waits until an event says why. 0: no such events.
	WaitingAfter time.Duration
	// EvictExtended evicts pods with extended resources from devices with a NoExecute taint.
	EvictExtended bool

	WebhookPort    int
	HealthAddress  string
	MetricsAddress string

	// CertificateDir contains tls.crt and tls.key, which another program renews. Empty: the controller issues its own
	// certificate.
	CertificateDir      string
	CertificateLifetime time.Duration

	REST *rest.Config
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, c Config) error {
	v := cluster.New(c.DriverName)
	certs := &certificate.Manager{
		Secret:        types.NamespacedName{Namespace: c.Namespace, Name: c.Name + "-certificate"},
		ServiceName:   fmt.Sprintf("%s.%s.svc", c.Name, c.Namespace),
		Configuration: c.Name,
		Lifetime:      c.CertificateLifetime,
		Period:        5 * time.Second,
		Settle:        30 * time.Second,
	}
	expander := strongest.Expander{View: v, Class: c.StrongestClass, Ranks: c.StrongestRanks}
	safe := &guarded{metrics.NewPanics()}
	claims := &claimReporter{expander: expander, unranked: metrics.NewUnrankedClaims(), period: 10 * time.Second,
		seen: map[types.UID]seenClaim{}, safe: safe}
	mgr, err := newManager(c, v, certs, claims)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	known, err := follow(ctx, mgr.GetCache(), v, safe)
	if err != nil {
		return err
	}
	if err := errors.Join(ctrlmetrics.Registry.Register(safe.panics), ctrlmetrics.Registry.Register(metrics.Collector{
		View: v, Active: isReportingLeader(mgr.Elected(), known)})); err != nil {
		return fmt.Errorf("register the cluster's metrics: %w", err)
	}
	server, limits := mgr.GetWebhookServer(), newLimiter()
	serve := func(path string, handler webhook.Handler) { // a panic is an answer: webhooks recover from it
		server.Register(path, limits.handler(&webhook.Webhook{Handler: handler}))
	}
	serve(validatePath, validator{admission.Checker{View: v}, expander})
	serve(strongestPath, ranker{expander})
	serve(optionalPath, lister{})
	if len(c.ConvertFamilies) > 0 {
		pods, err := addConversion(mgr, c, v, safe)
		if err != nil {
			return fmt.Errorf("convert pods: %w", err)
		}
		serve(convertPath, pods)
	}
	err = errors.Join(
		addCertificateManager(mgr, c, certs),
		addLeaseOwner(mgr, c),
		addClaimReporter(mgr, c, claims, known),
		addWaitingReporter(mgr, c, v, known, safe),
		addEviction(ctx, mgr, c),
		mgr.AddHealthzCheck("ping", func(*http.Request) error { return nil }),
		mgr.AddReadyzCheck("webhooks", server.StartedChecker()),
		mgr.AddReadyzCheck("view", func(*http.Request) error { return known() }),
	)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(c Config, v *cluster.View, certs *certificate.Manager, claims *claimReporter) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	webhooks := webhookserver.Options{Port: c.WebhookPort, CertDir: c.CertificateDir}
	if c.CertificateDir == "" {
		webhooks.TLSOpts = []func(*tls.Config){func(t *tls.Config) { t.GetCertificate = certs.GetCertificate }}
	}
	return ctrl.NewManager(c.REST, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions(v, claims),
		WebhookServer:                 webhookserver.NewServer(webhooks),
		HealthProbeBindAddress:        c.HealthAddress,
		Metrics:                       metricsserver.Options{BindAddress: c.MetricsAddress},
		LeaderElection:                true,
		LeaderElectionID:              c.Name,
		LeaderElectionNamespace:       c.Namespace,
		LeaderElectionReleaseOnCancel: true,
	})
}

// addCertificateManager runs the certificate manager, unless another program provides the certificate.
func addCertificateManager(mgr ctrl.Manager, c Config, certs *certificate.Manager) (err error) {
	if c.CertificateDir != "" {
		return nil
	}
	// The manager's own client would list and watch all secrets.
	if certs.Client, err = client.New(c.REST, client.Options{Scheme: mgr.GetScheme()}); err != nil {
		return err
	}
	return errors.Join(mgr.Add(certs), mgr.AddReadyzCheck("certificate", certs.Ready))
}

// addClaimReporter reports about claims on the leader.
func addClaimReporter(mgr ctrl.Manager, c Config, u *claimReporter, known func() error) (err error) {
	if u.client, err = client.New(c.REST, client.Options{Scheme: mgr.GetScheme()}); err != nil {
		return err
	}
	u.known = known
	return errors.Join(ctrlmetrics.Registry.Register(u.unranked), mgr.Add(u))
}

// addWaitingReporter reports about claims that wait, on the leader.
func addWaitingReporter(mgr ctrl.Manager, c Config, v *cluster.View, known func() error, safe *guarded) (err error) {
	if c.WaitingAfter == 0 {
		return nil
	}
	u := newWaitingReporter(v, known, c.WaitingAfter)
	u.safe = safe
	if u.client, err = client.New(c.REST, client.Options{Scheme: mgr.GetScheme()}); err != nil {
		return err
	}
	config := rest.CopyConfig(c.REST)
	config.ContentType = runtime.ContentTypeProtobuf // smaller, and decoded faster
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if u.reads, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	return mgr.Add(u)
}

// The rate limit of evictions, in requests per second: the default one of the controller manager, which evicts the
// other pods. An eviction is up to four requests.
const (
	evictionQPS   = 20
	evictionBurst = 30
)

// addEviction evicts pods with extended resources, on the leader.
func addEviction(ctx context.Context, mgr ctrl.Manager, c Config) error {
	if !c.EvictExtended {
		return nil
	}
	limited := rest.CopyConfig(c.REST)
	limited.QPS, limited.Burst = evictionQPS, evictionBurst
	direct, err := client.New(limited, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return err
	}
	reads, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return err
	}
	rules := eviction.NewRules(reads)
	e := &eviction.Evictor{Driver: c.DriverName, Cached: mgr.GetClient(), Direct: direct, Rules: rules.All,
		Told: func(ctx context.Context, pod *corev1.Pod, text string) error {
			_, err := createEvent(ctx, direct, Events.Evicted, podReference(pod), "evicted-"+string(pod.UID), text)
			return err
		},
		Evicted: metrics.NewEvictedPods()}
	return errors.Join(eviction.Index(ctx, mgr.GetFieldIndexer()), ctrlmetrics.Registry.Register(e.Evicted),
		mgr.Add(rules), e.Watch(mgr, rules.Changed()))
}

// isReportingLeader returns a function that reports whether this replica exports the cluster's metrics. Only the leader
// does: otherwise sums would count every GPU once per replica. It starts when the view is complete, so that no GPU
// seems to be missing.
func isReportingLeader(elected <-chan struct{}, known func() error) func() bool {
	return func() bool {
		select {
		case <-elected:
			return known() == nil
		default:
			return false
		}
	}
}

// cacheOptions keeps little of each object in the cache: a cluster has thousands of GPUs.
func cacheOptions(v *cluster.View, claims *claimReporter) cache.Options {
	slim := func(obj any) (any, error) {
		switch o := obj.(type) {
		case *resourceapi.ResourceSlice:
			return v.SlimSlice(o), nil
		case *resourceapi.ResourceClaim:
			// The slim claim lacks selectors and annotations.
			_ = claims.safe.do("see claim", func() error { claims.see(o); return nil })
			return cluster.SlimClaim(o), nil
		case *corev1.Pod:
			return slimConverted(o), nil
		}
		return obj, nil
	}
	converted := labels.NewSelector()
	if r, err := labels.NewRequirement(convert.FamilyLabel, selection.Exists, nil); err == nil {
		converted = converted.Add(*r)
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&resourceapi.ResourceSlice{}: {Transform: slim,
				Field: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v.Driver())},
			&resourceapi.ResourceClaim{}: {Transform: slim},
			// Only followed if pods are converted.
			&corev1.Pod{}:                        {Transform: slim, Label: converted},
			&resourceapi.ResourceClaimTemplate{}: {Label: converted},
		},
	}
}

// guarded keeps panics about single objects from ending the leader, and then the next leader. It counts them.
type guarded struct{ panics *prometheus.CounterVec }

// do calls f, as guard.Do does.
func (g *guarded) do(what string, f func() error) error {
	err := guard.Do(what, f)
	if errors.Is(err, guard.ErrPanic) {
		g.panics.WithLabelValues(what).Inc()
	}
	return err
}

// follow keeps the view up to date. known returns an error until the view is complete.
func follow(ctx context.Context, c cache.Cache, v *cluster.View, safe *guarded) (known func() error, err error) {
	var synced []toolscache.InformerSynced
	for _, of := range []struct {
		object client.Object
		events toolscache.ResourceEventHandler
	}{
		{&resourceapi.DeviceClass{}, handler(safe, v.SetClass, func(c metav1.Object) { v.DeleteClass(c.GetName()) })},
		{&resourceapi.ResourceSlice{}, handler(safe, v.SetSlice, func(s metav1.Object) { v.DeleteSlice(s.GetName()) })},
		{&resourceapi.ResourceClaim{}, handler(safe, v.SetClaim, func(c metav1.Object) {
			v.DeleteClaim(types.NamespacedName{Namespace: c.GetNamespace(), Name: c.GetName()})
		})},
		{&resourceapi.DeviceTaintRule{}, handler(safe, v.SetTaintRule, func(r metav1.Object) {
			v.DeleteTaintRule(r.GetName())
		})},
	} {
		informer, err := c.GetInformer(ctx, of.object, cache.BlockUntilSynced(false))
		if _, isRule := of.object.(*resourceapi.DeviceTaintRule); isRule && meta.IsNoMatchError(err) {
			log.FromContext(ctx).Info("The API server has no DeviceTaintRules in " +
				resourceapi.SchemeGroupVersion.String() + ". If it gets them, restart the controller")
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("follow %T: %w", of.object, err)
		}
		events, err := informer.AddEventHandler(of.events)
		if err != nil {
			return nil, fmt.Errorf("follow %T: %w", of.object, err)
		}
		synced = append(synced, events.HasSynced)
	}
	return func() error {
		for _, done := range synced {
			if !done() {
				return errors.New("slices, claims and classes are still being read")
			}
		}
		return nil
	}, nil
}

// handler passes the events of an informer to two functions.
func handler[T metav1.Object](safe *guarded, set func(T), drop func(metav1.Object)) toolscache.ResourceEventHandler {
	update := func(obj any) {
		if o, ok := obj.(T); ok {
			_ = safe.do("follow objects", func() error { set(o); return nil }) // it is logged
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    update,
		UpdateFunc: func(_, obj any) { update(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				_ = safe.do("follow objects", func() error { drop(o); return nil })
			}
		},
	}
}
