// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Readiness answers the probes of the plugin's pod.
type Readiness struct {
	mu           sync.Mutex
	waiting      error
	registration func() *registerapi.RegistrationStatus // nil: the plugin has not started to register
	beat         time.Time                              // last heartbeat of the discovery loop
	beatEvery    time.Duration
	publishing   error // why devices cannot be published
}

// NewReadiness returns the state of a plugin that is starting. /healthz fails if Beat was not called for beatEvery.
func NewReadiness(beatEvery time.Duration) *Readiness {
	return &Readiness{waiting: errors.New("starting"), beat: time.Now(), beatEvery: beatEvery}
}

// Wait sets what the plugin waits for; nil: the devices are known.
func (r *Readiness) Wait(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = reason
}

// WaitingFor returns the last argument of Wait.
func (r *Readiness) WaitingFor() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// Registration sets the source of the registration status.
func (r *Readiness) Registration(ask func() *registerapi.RegistrationStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registration = ask
}

// Publishing sets why the devices cannot be published; nil: they can, or another instance publishes them.
func (r *Readiness) Publishing(problem error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishing = problem
}

// Beat is the heartbeat of the discovery loop.
func (r *Readiness) Beat() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beat = time.Now()
}

// alive returns an error if the heartbeat has stopped.
func (r *Readiness) alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := time.Since(r.beat); since > r.beatEvery {
		return fmt.Errorf("the GPUs were last looked at %s ago", since.Round(time.Second))
	}
	return nil
}

// ready returns nil if the devices are known and the kubelet has registered the plugin. Another instance may still
// publish the devices.
func (r *Readiness) ready() error {
	if err := r.WaitingFor(); err != nil {
		return fmt.Errorf("waiting: %w", err)
	}
	r.mu.Lock()
	ask, publishing := r.registration, r.publishing
	r.mu.Unlock()
	var status *registerapi.RegistrationStatus
	if ask != nil {
		status = ask()
	}
	switch {
	case status == nil:
		return errors.New("waiting for the kubelet to register the plugin")
	case !status.PluginRegistered:
		return fmt.Errorf("the kubelet refused to register the plugin: %s", status.Error)
	}
	return publishing
}

// Serve serves /healthz, /readyz with the reason when the plugin is not ready, and /metrics. It does not listen if the
// address is empty.
func Serve(address string, r *Readiness, registry *prometheus.Registry) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", probe(r.alive))
	mux.HandleFunc("GET /readyz", probe(r.ready))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	if address == "" {
		return server, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	go func() { _ = server.Serve(listener) }() // ends when the server is closed
	return server, nil
}

func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
