// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Two large requests are served at once, further ones wait, and small ones do not wait for them.
func TestLimiter(t *testing.T) {
	const large, small, empty = "/large", "/small", "/empty"
	body := map[string]string{large: strings.Repeat(",", smallTokens+1), small: "{}"}
	entered, leave := make(chan string, 100), make(chan struct{})
	var inside, most atomic.Int64
	handler := newLimiter().handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); err != nil || string(got) != body[r.URL.Path] {
			t.Errorf("%s: got %d bytes, %v, want the request", r.URL.Path, len(got), err)
		}
		if r.URL.Path == large {
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
		}
		entered <- r.URL.Path
		if r.URL.Path == large {
			<-leave
		}
	}))
	served := make(chan int, 100)
	send := func(ctx context.Context, path string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body[path])))
		served <- w.Code
	}
	for range 2 {
		go send(t.Context(), large)
		<-entered
	}
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	send(given, large) // it waits, and the API server gives up
	<-served
	for range 4 {
		go send(t.Context(), large)
	}
	for _, path := range []string{small, empty} {
		send(t.Context(), path)
		if got := <-served; got != http.StatusOK {
			t.Errorf("%s: got %d while large requests are served, want %d", path, got, http.StatusOK)
		}
	}
	close(leave)
	for range 6 {
		<-served
	}
	if most.Load() != 2 {
		t.Errorf("got %d large requests at once, want 2", most.Load())
	}
}

// What needs too much memory when it is decoded is not decoded.
func TestLimiterRefuses(t *testing.T) {
	handler := newLimiter().handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("it is decoded")
	}))
	for _, tc := range []struct {
		name, body string
		want       int
	}{
		{"many objects", `{"spec":{"devices":{"requests":[{"firstAvailable":[` + strings.Repeat("{},", maxTokens) + `{}]}]}}}`,
			http.StatusRequestEntityTooLarge},
		{"many bytes", strings.Repeat("x", maxBody+1), http.StatusBadRequest},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tc.body)))
		if w.Code != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, w.Code, tc.want)
		}
	}
}

// The API server says in the request how long it waits. The answer comes before that.
func TestLimiterTime(t *testing.T) {
	for _, tc := range []struct {
		query string
		want  time.Duration
	}{
		{"?timeout=1s", 800 * time.Millisecond},
		{"?timeout=5s", 4500 * time.Millisecond},
		{"?timeout=30s", 27 * time.Second},
		{"", 9 * time.Second},
		{"?timeout=soon", 9 * time.Second},
		{"?timeout=-1s", 9 * time.Second},
		{"?timeout=1h", 9 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			handler := newLimiter().handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				if got := time.Since(start); got != tc.want {
					t.Errorf("%q: got %s, want %s", tc.query, got, tc.want)
				}
			}))
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost,
				"/"+tc.query, strings.NewReader("{}")))
		})
	}
}

// Requests that are sent slowly, or not at all, hold their places for bodyTimeout. As many as may arrive are read at
// the same time; others wait without being read.
func TestSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		handler := l.handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it is served") }))
		var reads atomic.Int64
		var all sync.WaitGroup
		for range 2 * arriving {
			all.Go(func() {
				c := &slow{ResponseRecorder: httptest.NewRecorder(), until: make(chan time.Time, 2)}
				body := func([]byte) (int, error) {
					reads.Add(1)
					time.Sleep(time.Until(<-c.until))
					return 0, os.ErrDeadlineExceeded
				}
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", readerFunc(body))
				r.ContentLength = smallBody
				handler.ServeHTTP(c, r)
				if c.Code != http.StatusBadRequest {
					t.Errorf("got %d, want %d", c.Code, http.StatusBadRequest)
				}
			})
		}
		synctest.Wait()
		if got := reads.Load(); got != arriving {
			t.Errorf("got %d requests that are read, want %d", got, arriving)
		}
		begin := time.Now()
		all.Wait()
		if took := time.Since(begin); took != 2*bodyTimeout {
			t.Errorf("got %s, want %s", took, 2*bodyTimeout)
		}
	})
}

// slow is a connection with a deadline for reading.
type slow struct {
	*httptest.ResponseRecorder
	until chan time.Time
}

func (s *slow) SetReadDeadline(t time.Time) error { s.until <- t; return nil }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A namespace whose claims take long does not keep those of others waiting.
func TestPlacesOfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leave := make(chan struct{})
		var served, waiting atomic.Int64
		handler := newLimiter().handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if served.Add(1); strings.HasPrefix(r.URL.Path, "/slow") {
				<-leave
			}
		}))
		send := func(path, namespace string) {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, path,
				strings.NewReader(`{"request":{"namespace":"`+namespace+`"}}`)))
		}
		for range 2 * arriving {
			waiting.Add(1)
			go func() { send("/slow", "busy"); waiting.Add(-1) }()
		}
		synctest.Wait()
		if got := served.Load(); got != ofANamespace {
			t.Errorf("got %d requests of one namespace at once, want %d", got, ofANamespace)
		}
		send("/", "other") // returns
		close(leave)
		synctest.Wait()
		if served.Load() != 2*arriving+1 || waiting.Load() != 0 {
			t.Errorf("got %d served and %d waiting, want all served", served.Load(), waiting.Load())
		}
	})
}
