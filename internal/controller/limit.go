// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/controller/caller"
)

const (
	// maxBody is the size of the largest request: an API server accepts objects of 3 MiB, and sends two for an update.
	maxBody = 7 << 20
	// A request is small up to so many bytes and tokens.
	smallBody, smallTokens = 64 << 10, 2000
	// maxTokens is how many tokens a request may have. The objects that they become need up to 600 bytes each.
	maxTokens = 100_000
	// So many requests are served at the same time, and so many small ones of one namespace: its users decide how long
	// their selectors take. Others wait until the API server gives up.
	smallRequests, largeRequests, ofANamespace = 64, 2, 16
	// arriving is how many small requests are read at the same time. How many wait for a place bounds the API server,
	// which serves some hundred requests at once.
	arriving = 256
	// bodyTimeout is how long a request may take to arrive.
	bodyTimeout = 5 * time.Second
)

// limiter bounds the time of each request to a webhook, and the memory that all of them need together. Users decide how
// large and how many their objects are, and mutating webhooks see them before the API server has validated them. Few
// large requests are served at once; small ones do not wait for them.
type limiter struct {
	small, large, arriving chan struct{}

	mu         sync.Mutex
	namespaces map[string]chan struct{} // an entry without places taken may be dropped
}

func newLimiter() *limiter {
	return &limiter{small: make(chan struct{}, smallRequests), large: make(chan struct{}, largeRequests),
		arriving: make(chan struct{}, arriving), namespaces: map[string]chan struct{}{}}
}

// handler limits requests to another one.
func (l *limiter) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Before the body is read, net/http does not notice that the API server has given up.
		ctx, cancel := context.WithTimeout(r.Context(), caller.AnswerTime(r))
		defer cancel()
		r = r.WithContext(ctx)
		large := r.ContentLength < 0 || r.ContentLength > smallBody
		first := l.arriving
		if large {
			first = l.large
		}
		if !enter(r, first) {
			http.Error(w, "too many requests at once: try again", http.StatusTooManyRequests)
			return
		}
		body, err := read(w, r)
		if large {
			defer leave(first)
		} else {
			leave(first)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tokens := tokensIn(body)
		if tokens > maxTokens {
			http.Error(w, "the object has too many fields", http.StatusRequestEntityTooLarge)
			return
		}
		var further []chan struct{}
		switch {
		case large:
		case tokens > smallTokens:
			further = []chan struct{}{l.large}
		default:
			further = []chan struct{}{l.namespace(body), l.small}
		}
		for _, lane := range further {
			if !enter(r, lane) {
				return
			}
			defer leave(lane)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// read reads the body. Somebody may send it slowly, or not at all.
func read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// It is no error if the connection cannot do this.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil { // otherwise the request ends at the deadline
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	return body, err
}

// namespace returns the places of the namespace of the object.
func (l *limiter) namespace(body []byte) chan struct{} {
	var review struct {
		Request struct {
			Namespace string `json:"namespace"`
		} `json:"request"`
	}
	_ = json.Unmarshal(body, &review) // what cannot be decoded is refused by whoever answers
	l.mu.Lock()
	defer l.mu.Unlock()
	lane, ok := l.namespaces[review.Request.Namespace]
	if !ok {
		if len(l.namespaces) >= arriving {
			maps.DeleteFunc(l.namespaces, func(_ string, lane chan struct{}) bool { return len(lane) == 0 })
		}
		lane = make(chan struct{}, ofANamespace)
		l.namespaces[review.Request.Namespace] = lane
	}
	return lane
}

// enter waits for a place. It returns false if the request ends before.
func enter(r *http.Request, lane chan struct{}) bool {
	select {
	case lane <- struct{}{}:
		return true
	case <-r.Context().Done():
		return false
	}
}

func leave(lane chan struct{}) { <-lane }

// tokensIn returns a bound for the number of objects, members and elements in JSON. What strings contain counts too.
func tokensIn(text []byte) int {
	n := 0
	for _, token := range []string{",", "{", "["} {
		n += bytes.Count(text, []byte(token))
	}
	return n
}
