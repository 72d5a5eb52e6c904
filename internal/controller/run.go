// SPDX-License-Identifier: Apache-2.0

// Package controller is the cluster-wide part of the driver. It validates claims at admission, ranks GPUs and exports
// metrics. Pods that run do not depend on it. While no replica answers, claims with a configuration are not admitted,
// nor are any claims of namespaces with a GPUQuota.
//
// Each feature has a package. This one runs them, with the certificate and the lease that they share.
package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	webhookserver "sigs.k8s.io/controller-runtime/pkg/webhook"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/bill"
	"github.com/gpudra/gpu-dra-driver/internal/controller/caller"
	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
	"github.com/gpudra/gpu-dra-driver/internal/controller/eviction"
	"github.com/gpudra/gpu-dra-driver/internal/controller/explain"
	"github.com/gpudra/gpu-dra-driver/internal/controller/extender"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/idle"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/controller/network"
	"github.com/gpudra/gpu-dra-driver/internal/controller/ondemand"
	"github.com/gpudra/gpu-dra-driver/internal/controller/preempt"
	"github.com/gpudra/gpu-dra-driver/internal/controller/quota"
	"github.com/gpudra/gpu-dra-driver/internal/controller/retry"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
)

// Options are the flags of the controller.
type Options struct {
	DriverName     string
	StrongestClass string // the class whose requests are ranked
	StrongestRanks int    // 2 to 8

	Namespace string // of the controller itself
	Name      string // of the release: of webhooks, service, secret and lease

	// WaitingAfter is how long a claim waits until an event says why. 0: no such events.
	WaitingAfter time.Duration
	// EvictExtended evicts pods with extended resources from devices with a NoExecute taint.
	EvictExtended bool
	// Placement is the policy by which nodes are scored for a scheduler: one of extender.Policies. Empty: none.
	Placement string
	// RetryClass is the class by whose updates the controller makes the scheduler try waiting pods again. Empty: never.
	RetryClass string
	// PartitionRequests is the ConfigMap in Namespace in which the controller names nodes whose partitions pods wait
	// for. Empty: none.
	PartitionRequests string
	// Preempt evicts pods of lower priority for pods that wait for devices.
	Preempt bool
	// PreemptSchedulers are the schedulers for whose pods that is.
	PreemptSchedulers []string
	// IdleWarning is how long before its eviction a pod is warned that does not use its GPUs. 0: none is evicted.
	IdleWarning time.Duration
	// Bill is the ConfigMap in Namespace in which the leader stores how long who had which GPUs. Empty: it does not
	// count.
	Bill string
	// Quota holds claims to the GPUQuotas of their namespaces.
	Quota bool
	// RemoteAccount is the user name of the plugin on nodes that use GPUs over the network. Empty: there are none.
	RemoteAccount string
	// Features are those that the program adds.
	Features []feature.Feature

	WebhookPort int
	// WebhookAddresses are those from which API servers call. Empty: any.
	WebhookAddresses []net.IPNet
	// WebhookAuthorities is a file with the authorities of API servers' client certificates. Empty: they need none.
	WebhookAuthorities string
	HealthAddress      string
	MetricsAddress     string
	// ProfilesPort is where Go's profiles are served, on 127.0.0.1. 0: nowhere.
	ProfilesPort int

	// CertificateDir contains tls.crt and tls.key, which another program renews. Empty: the controller issues its own
	// certificate.
	CertificateDir      string
	CertificateLifetime time.Duration

	REST *rest.Config
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, o Options) error {
	v, guard := cluster.New(o.DriverName), feature.NewGuard()
	certs, scores := o.certificates(), o.placementCertificates()
	gate, err := o.gate(scores)
	if err != nil {
		return err
	}
	expander := strongest.Expander{View: v, Class: o.StrongestClass, Ranks: o.StrongestRanks}
	claims := explain.NewClaims(expander, guard)
	direct, err := o.client()
	if err != nil {
		return fmt.Errorf("make the client: %w", err)
	}
	mgr, err := o.newManager(v, served(certs, scores), gate, claims, direct)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	known, err := follow(ctx, mgr.GetCache(), v, gate.Webhooks, guard)
	if err != nil {
		return err
	}
	if err := errors.Join(ctrlmetrics.Registry.Register(guard.Panics), ctrlmetrics.Registry.Register(gate.Metrics()),
		ctrlmetrics.Registry.Register(metrics.Collector{View: v,
			Active: isReportingLeader(mgr.Elected(), known)})); err != nil {
		return fmt.Errorf("register the cluster's metrics: %w", err)
	}
	server, limits := mgr.GetWebhookServer(), newLimiter()
	c := &feature.Controller{Manager: mgr, Direct: direct, REST: o.REST, View: v, Known: known, Guard: guard,
		Serve: func(path string, handler webhook.Handler) { // a panic is an answer: webhooks recover from it
			server.Register(path, gate.Inside(limits.handler(&webhook.Webhook{Handler: handler})))
		},
		ServeAlone: func(path string, handler webhook.Handler) { // a burst of pods does not wait for claims
			server.Register(path, gate.Inside(newLimiter().handler(&webhook.Webhook{Handler: handler})))
		},
		ServeSchedulers: func(path string, handler http.Handler) {
			server.Register(path, gate.Schedulers(newLimiter().handler(handler)))
		}}
	reads, err := c.Reads()
	if err != nil {
		return err
	}
	c.Waiting = waiting.New(reads)
	if err := o.addFeatures(ctx, c, expander, claims); err != nil {
		return err
	}
	server.WebhookMux().Handle("/", gate.Enter(server.WebhookMux())) // there is none before the first webhook
	if o.CertificateDir == "" {
		certs.Client = direct
		err = errors.Join(mgr.Add(certs), mgr.AddReadyzCheck("certificate", certs.Ready))
		if o.Placement != "" {
			scores.Client = direct
			err = errors.Join(err, mgr.Add(scores))
		}
	}
	gate.Webhooks.Client = direct
	err = errors.Join(err,
		mgr.Add(gate.Webhooks),
		mgr.AddReadyzCheck("callers", gate.Webhooks.Ready),
		mgr.AddHealthzCheck("ping", func(*http.Request) error { return nil }),
		mgr.AddReadyzCheck("webhooks", server.StartedChecker()),
		mgr.AddReadyzCheck("view", func(*http.Request) error { return known() }),
	)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// addFeatures adds all features to the controller.
func (o Options) addFeatures(ctx context.Context, c *feature.Controller, expander strongest.Expander,
	claims *explain.Claims) error {
	admission.Add(c, expander)
	expander.Add(c)
	err := explain.Add(c, claims, o.WaitingAfter)
	if o.Placement != "" {
		err = errors.Join(err, extender.Add(ctx, c, o.Placement))
	}
	if o.Bill != "" {
		err = errors.Join(err, bill.Add(c, types.NamespacedName{Namespace: o.Namespace, Name: o.Bill}))
	}
	if o.EvictExtended {
		err = errors.Join(err, eviction.Add(ctx, c))
	}
	if o.RetryClass != "" {
		err = errors.Join(err, retry.Add(c, o.RetryClass))
	}
	if o.PartitionRequests != "" {
		err = errors.Join(err, ondemand.Add(c, types.NamespacedName{Namespace: o.Namespace, Name: o.PartitionRequests}))
	}
	if o.Preempt {
		err = errors.Join(err, preempt.Add(c, o.PreemptSchedulers))
	}
	if o.IdleWarning > 0 {
		err = errors.Join(err, idle.Add(c, o.IdleWarning))
	}
	if o.Quota {
		err = errors.Join(err, quota.Add(c))
	}
	if o.RemoteAccount != "" {
		err = errors.Join(err, network.Add(ctx, c, network.Options{Namespace: o.Namespace, Account: o.RemoteAccount}))
	}
	for _, f := range o.Features {
		err = errors.Join(err, f.Add(c))
	}
	return err
}

// certificates returns the manager of the certificate that the controller issues.
func (o Options) certificates() *certificate.Manager {
	return &certificate.Manager{
		Secret:        types.NamespacedName{Namespace: o.Namespace, Name: o.Name + "-certificate"},
		ServiceName:   fmt.Sprintf("%s.%s.svc", o.Name, o.Namespace),
		Configuration: o.Name,
		Lifetime:      o.CertificateLifetime,
		Period:        5 * time.Second,
		Settle:        30 * time.Second,
	}
}

// placementLifetime is how long a scheduler trusts the extender. It reads the CA when it starts, and not again.
const placementLifetime = 10 * 365 * 24 * time.Hour

// placementCertificates returns the manager of the certificate for schedulers.
func (o Options) placementCertificates() *certificate.Manager {
	m := o.certificates()
	m.Secret.Name, m.ServiceName = o.Name+"-placement", "placement."+m.ServiceName
	m.Lifetime, m.SecretOnly = placementLifetime, true
	return m
}

// certificateOf finds the certificate for a client.
type certificateOf func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// served chooses the certificate by the name that the client asks for.
func served(webhooks, placement *certificate.Manager) certificateOf {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == placement.ServiceName {
			return placement.GetCertificate(hello)
		}
		return webhooks.GetCertificate(hello)
	}
}

// pathPeriod is how long the paths of the webhooks keep their secret. API servers before 1.36 never free what they keep
// for a path that they have called: https://github.com/kubernetes/kubernetes/pull/136355.
const pathPeriod, pathPeriodBefore136 = 30 * time.Second, time.Hour

// gate returns what lets only API servers and schedulers in.
func (o Options) gate(scores *certificate.Manager) (*caller.Gate, error) {
	server, err := discovery.NewDiscoveryClientForConfig(o.REST)
	if err != nil {
		return nil, err
	}
	info, err := server.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("read the version of the API server: %w", err)
	}
	of, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	period := pathPeriod
	if of.LessThan(version.MustParseGeneric("1.36.0")) {
		period = pathPeriodBefore136
	}
	trusted := scores.Trusted
	if o.CertificateDir != "" {
		trusted = func() []byte { // nobody is trusted without the file
			text, _ := os.ReadFile(filepath.Join(o.CertificateDir, "ca.crt"))
			return text
		}
	}
	g := caller.NewGate(caller.NewWebhooks(o.Name, period), trusted)
	g.Addresses = o.WebhookAddresses
	if o.WebhookAuthorities != "" {
		if g.Authorities, err = cert.NewPool(o.WebhookAuthorities); err != nil {
			return nil, fmt.Errorf("--webhook-client-ca %s: %w", o.WebhookAuthorities, err)
		}
	}
	return g, nil
}

// client returns a client without a cache.
func (o Options) client() (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), cluster.AddGPUQuotas(scheme)); err != nil {
		return nil, err
	}
	return client.New(o.REST, client.Options{Scheme: scheme})
}

func (o Options) newManager(v *cluster.View, certs certificateOf, gate *caller.Gate, claims *explain.Claims,
	direct client.Client) (ctrl.Manager, error) {
	lock, err := o.lock(direct)
	if err != nil {
		return nil, fmt.Errorf("make the leader's lock: %w", err)
	}
	server := &caller.Server{Gate: gate, DefaultServer: &webhookserver.DefaultServer{Options: webhookserver.Options{
		Port: o.WebhookPort, CertDir: o.CertificateDir}}}
	if o.CertificateDir == "" {
		server.GetCertificate = certs
	}
	return ctrl.NewManager(o.REST, ctrl.Options{
		Scheme:                              direct.Scheme(),
		Cache:                               o.cached(v, claims),
		WebhookServer:                       server,
		HealthProbeBindAddress:              o.HealthAddress,
		Metrics:                             metricsserver.Options{BindAddress: o.MetricsAddress},
		PprofBindAddress:                    o.profiles(),
		LeaderElection:                      true,
		LeaderElectionID:                    o.Name, // in metrics
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
	})
}

// profiles is where the manager serves Go's profiles. They show memory: only who may forward ports gets them.
func (o Options) profiles() string {
	if o.ProfilesPort == 0 {
		return ""
	}
	return fmt.Sprintf("127.0.0.1:%d", o.ProfilesPort)
}

// cached keeps little of each object in the cache: a cluster has thousands of GPUs.
func (o Options) cached(v *cluster.View, claims *explain.Claims) cache.Options {
	slim := func(obj any) (any, error) {
		switch o := obj.(type) {
		case *resourceapi.ResourceSlice:
			return v.SlimSlice(o), nil
		case *resourceapi.ResourceClaim:
			claims.See(o) // the slim claim lacks selectors and annotations
			return cluster.SlimClaim(o), nil
		}
		return obj, nil
	}
	named := fields.OneTermEqualSelector("metadata.name", o.Name)
	objects := map[client.Object]cache.ByObject{
		&resourceapi.ResourceSlice{}: {Transform: slim,
			Field: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v.Driver())},
		&resourceapi.ResourceClaim{}:                            {Transform: slim},
		&admissionregistration.ValidatingWebhookConfiguration{}: {Field: named},
		&admissionregistration.MutatingWebhookConfiguration{}:   {Field: named},
	}
	for _, f := range o.Features {
		maps.Copy(objects, f.Cached)
	}
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: objects}
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

// follow keeps the view up to date, and what is known of the webhooks' paths. known returns an error until both are
// complete.
func follow(ctx context.Context, c cache.Cache, v *cluster.View, w *caller.Webhooks, guard feature.Guard) (
	known func() error, err error) {
	var synced []toolscache.InformerSynced
	for _, of := range []struct {
		object client.Object
		events toolscache.ResourceEventHandler
	}{
		{&resourceapi.DeviceClass{}, feature.EventHandler(guard, v.SetClass, func(c *resourceapi.DeviceClass) {
			v.DeleteClass(c.Name)
		})},
		{&resourceapi.ResourceSlice{}, feature.EventHandler(guard, v.SetSlice, func(s *resourceapi.ResourceSlice) {
			v.DeleteSlice(s.Name)
		})},
		{&resourceapi.ResourceClaim{}, feature.EventHandler(guard, v.SetClaim, func(c *resourceapi.ResourceClaim) {
			v.DeleteClaim(types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
		})},
		{&resourceapi.DeviceTaintRule{}, feature.EventHandler(guard, v.SetTaintRule,
			func(r *resourceapi.DeviceTaintRule) { v.DeleteTaintRule(r.Name) })},
		{&admissionregistration.ValidatingWebhookConfiguration{}, feature.EventHandler(guard,
			func(o *admissionregistration.ValidatingWebhookConfiguration) { w.See(certificate.Validating(o)) },
			func(o *admissionregistration.ValidatingWebhookConfiguration) { w.Forget(certificate.Validating(o)) })},
		{&admissionregistration.MutatingWebhookConfiguration{}, feature.EventHandler(guard,
			func(o *admissionregistration.MutatingWebhookConfiguration) { w.See(certificate.Mutating(o)) },
			func(o *admissionregistration.MutatingWebhookConfiguration) { w.Forget(certificate.Mutating(o)) })},
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
				return errors.New("slices, claims, classes and webhooks are still being read")
			}
		}
		return nil
	}, nil
}
