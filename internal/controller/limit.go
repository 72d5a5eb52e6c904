// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
)

const (
	// maxBody is the size of the largest request: an API server accepts objects of 3 MiB, and sends two for an update.
	maxBody = 7 << 20
	// A request is small up to so many bytes and tokens.
	smallBody, smallTokens = 64 << 10, 2000
	// maxTokens is how many tokens a request may have. The objects that they become need up to 600 bytes each.
	maxTokens = 100_000
	// So many requests are served at the same time. Others wait until the API server gives up.
	smallRequests, largeRequests = 64, 2
	// bodyTimeout is how long a large request may take to arrive.
	bodyTimeout = 5 * time.Second
	// unsaidTimeout is how long somebody waits for an answer who does not say so, and maxTimeout the most that the
	// configuration of a webhook may say: both as in Kubernetes.
	unsaidTimeout, maxTimeout = 10 * time.Second, 30 * time.Second
)

// limiter bounds the time of each request to a webhook, and the memory that all of them need together. Users decide how
// large and how many their objects are, and mutating webhooks see them before the API server has validated them. Few
// large requests are served at once; small ones do not wait for them.
type limiter struct{ small, large chan struct{} }

func newLimiter() *limiter {
	return &limiter{make(chan struct{}, smallRequests), make(chan struct{}, largeRequests)}
}

// handler limits requests to another one.
func (l *limiter) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		large := r.ContentLength < 0 || r.ContentLength > smallBody
		if large {
			if !enter(r, l.large) {
				return // the API server has given up
			}
			defer leave(l.large)
			// Somebody else may send slowly. It is no error if the connection cannot do this.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tokens := tokensIn(body)
		if tokens > maxTokens {
			http.Error(w, "the object has too many fields", http.StatusRequestEntityTooLarge)
			return
		}
		if !large {
			lane := l.small
			if tokens > smallTokens {
				lane = l.large
			}
			if !enter(r, lane) {
				return
			}
			defer leave(lane)
		}
		ctx, cancel := context.WithTimeout(r.Context(), answerTime(r))
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// answerTime returns how long the answer to the request may take: as long as the API server waits, which it says in the
// parameter timeout, less what the answer may need on its way.
func answerTime(r *http.Request) time.Duration {
	waits, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || waits <= 0 || waits > maxTimeout {
		waits = unsaidTimeout
	}
	return waits - max(waits/10, 200*time.Millisecond)
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
