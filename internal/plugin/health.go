// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// status is what the plugin tells about itself.
type status struct {
	mu           sync.Mutex
	waiting      error
	registration func() *registerapi.RegistrationStatus // nil: not even asked for
}

func newStatus() *status {
	return &status{waiting: errors.New("starting")}
}

// wait says what the plugin waits for; nil: for nothing, its devices are known.
func (s *status) wait(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = reason
}

func (s *status) waitingFor() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// registered says who knows whether the kubelet has registered the plugin.
func (s *status) registered(ask func() *registerapi.RegistrationStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registration = ask
}

func (s *status) registrationStatus() *registerapi.RegistrationStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registration == nil {
		return nil
	}
	return s.registration()
}

// ready is nil when the devices are known and the kubelet knows the plugin. It need not be this instance that publishes.
func (s *status) ready() error {
	if err := s.waitingFor(); err != nil {
		return fmt.Errorf("waiting: %w", err)
	}
	switch r := s.registrationStatus(); {
	case r == nil:
		return errors.New("waiting for the kubelet to register the plugin")
	case !r.PluginRegistered:
		return fmt.Errorf("the kubelet refused to register the plugin: %s", r.Error)
	}
	return nil
}

// serveHTTP answers /healthz while the process lives, /readyz when the plugin is ready, with the reason when it is not, and /metrics.
func serveHTTP(address string, s *status, m *metrics) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
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
