// SPDX-License-Identifier: Apache-2.0

// Package feature has what the features of the controller share: what they get from it, how they write events, and how
// their webhooks decode claims.
package feature

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
)

// Feature is a feature that the program adds to the controller: one that is not among the controller's packages.
type Feature struct {
	// Cached are the objects that the feature reads from the manager's cache, and what the cache keeps of them.
	Cached map[client.Object]cache.ByObject
	// Check returns the error of a wrong flag, once flags are parsed.
	Check func() error
	// Add adds the feature to the controller.
	Add func(*Controller) error
}

// Controller is what the controller gives its features.
type Controller struct {
	// Manager runs what is added to it on the leader, unless that says otherwise.
	Manager ctrl.Manager
	// Direct has no cache. The manager's own client lists and watches every kind of object that it reads.
	Direct client.Client
	REST   *rest.Config
	View   *cluster.View
	// Waiting are the pods that wait for a node. The leader follows them once something asks for them.
	Waiting *waiting.Pods
	// Known returns an error until the view is complete.
	Known func() error
	Guard Guard
	// Short returns what a node lacks for pods with GPUs; empty: nothing, or it is not known. nil: it never is.
	Short func(node string) string
	// Serve serves a webhook. The path is the first part of its name in the configuration, which the controller changes
	// so that only API servers know it. ServeAlone has a limit of its own.
	Serve, ServeAlone func(path string, handler webhook.Handler)
	// ServeSchedulers serves schedulers on the same port, and nobody else.
	ServeSchedulers func(path string, handler http.Handler)
}

// Reads returns a client for reading objects, without a cache, in the encoding that is smaller and decoded faster.
func (c *Controller) Reads() (kubernetes.Interface, error) {
	config := rest.CopyConfig(c.REST)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

// AddDriverName adds the flag --driver-name.
func AddDriverName(f *pflag.FlagSet, name *string) {
	f.StringVar(name, "driver-name", "gpu.nvidia.com", "name of the driver, as in device classes")
}

// Guard keeps panics about single objects from ending the leader, and then the next leader. It counts them.
type Guard struct{ Panics *prometheus.CounterVec }

// NewGuard returns a guard that has counted nothing.
func NewGuard() Guard { return Guard{metrics.NewPanics()} }

// Do calls f, as guard.Do does.
func (g Guard) Do(what string, f func() error) error {
	err := guard.Do(what, f)
	if errors.Is(err, guard.ErrPanic) {
		g.Panics.WithLabelValues(what).Inc()
	}
	return err
}
