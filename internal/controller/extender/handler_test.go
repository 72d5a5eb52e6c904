// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// call sends a request as the scheduler does, and returns the status and the answer.
func (w *world) call(method, body string) (status int, answer string) {
	r := httptest.NewRequestWithContext(w.t.Context(), method, Path, strings.NewReader(body))
	recorder := httptest.NewRecorder()
	w.ServeHTTP(recorder, r)
	return recorder.Code, recorder.Body.String()
}

// request is the body of a scheduler's request.
func (w *world) request(pod *corev1.Pod, nodes ...string) string {
	w.t.Helper()
	nodes = append([]string{}, nodes...)
	text, err := json.Marshal(extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes})
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

func TestHandler(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	pod := w.pod("whole", 1, oneGPU)
	w.setCPU("b", 96)
	for _, tc := range []struct {
		name, method, body string
		status             int
		want               string
	}{
		{"a scheduler's request", http.MethodPost, w.request(pod, "b", "a", "no such node"), http.StatusOK,
			`[{"Host":"b","Score":97},{"Host":"a","Score":100},{"Host":"no such node","Score":0}]`},
		{"no nodes", http.MethodPost, w.request(pod), http.StatusOK, "[]"},
		{"another method", http.MethodGet, "", http.StatusMethodNotAllowed, "want POST"},
		{"no JSON", http.MethodPost, "x", http.StatusBadRequest, "decode the request: invalid character"},
		{"whole nodes", http.MethodPost, `{"Pod":{},"Nodes":{"items":[]}}`, http.StatusBadRequest,
			"nodeCacheCapable: true"},
		{"no pod", http.MethodPost, `{"NodeNames":["a"]}`, http.StatusBadRequest, "no Pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if status, answer := w.call(tc.method, tc.body); status != tc.status || !strings.Contains(answer, tc.want) {
				t.Errorf("got %d %s, want %d %s", status, answer, tc.status, tc.want)
			}
		})
	}
	w.known = func() error { return errors.New("slices are still being read") }
	if status, answer := w.call(http.MethodPost, w.request(pod, "a")); status != http.StatusServiceUnavailable {
		t.Errorf("while slices are read: got %d %s, want 503", status, answer)
	}
	for result, want := range map[string]float64{resultScored: 2, resultInvalid: 4, resultNotReady: 1} {
		if got := testutil.ToFloat64(w.metrics.requests.WithLabelValues(result)); got != want {
			t.Errorf("requests %s: got %v, want %v", result, got, want)
		}
	}
}

// Pods and nodes are read once a scheduler asks, and not before.
func TestNothingIsReadUntilASchedulerAsks(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	began, complete := 0, false
	w.begin = func() func() bool {
		began++
		return func() bool { return complete }
	}
	body := w.request(newPod("p", 1), "a")
	for i, want := range []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusOK} {
		complete = i == 2
		if status, answer := w.call(http.MethodPost, body); status != want || began != 1 {
			t.Errorf("request %d: got %d %s and %d starts, want %d and one", i, status, answer, began, want)
		}
	}
}

// Only the best node gets the top, and a node with an earlier alternative gets more than all with a
// later one, whatever their scores are.
func TestScale(t *testing.T) {
	for _, tc := range []struct {
		name string
		all  []scored
		want string
	}{
		{"no node", nil, ""},
		{"nothing fits", []scored{{}, {}}, "0 0"},
		{"one fits", []scored{{}, {fits: true, score: -3}}, "0 100"},
		{"equal ones", []scored{{fits: true, score: 1}, {fits: true, score: 1}}, "100 99"},
		{"hardly worse than the best", []scored{{fits: true, score: 1}, {fits: true, score: 1 - 1e-12}, {fits: true}},
			"100 99 1"},
		{"alternatives", []scored{{fits: true, rank: 1, score: 9}, {fits: true, rank: 1, score: 8},
			{fits: true, score: -9}, {fits: true, score: -10}}, "49 1 100 51"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			best := -1
			for i, s := range tc.all {
				if s.fits && (best < 0 || s.better(tc.all[best])) {
					best = i
				}
			}
			scale(tc.all, best)
			var got []string
			for _, s := range tc.all {
				got = append(got, fmt.Sprint(s.points))
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
