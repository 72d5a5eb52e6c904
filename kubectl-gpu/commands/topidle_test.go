// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// idleFor adds the condition of the driver to the first device of the claim.
func idleFor(c *resourceapi.ResourceClaim, status metav1.ConditionStatus, since time.Duration) {
	r := c.Status.Allocation.Devices.Results[0]
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: r.Driver, Pool: r.Pool, Device: r.Device,
		Conditions: []metav1.Condition{{Type: "Idle", Status: status, Reason: "NotUsed",
			LastTransitionTime: metav1.NewTime(time.Now().Add(-since))}}}}
}

// idleCluster returns the server of newCluster with two idle claims, and two that are not known to be.
func idleCluster(t *testing.T) *apiServer {
	t.Helper()
	s := newCluster(t)
	s.Claims[2].Namespace = "web"
	for i, c := range s.Claims {
		idleFor(c, []metav1.ConditionStatus{"True", "Unknown", "True", "False"}[i], time.Duration(40+i)*time.Minute)
	}
	return s
}

func TestTopIdle(t *testing.T) {
	const header = "NAMESPACE CLAIM PODS NODE GPU HELD FOR IDLE FOR\n"
	for _, row := range []struct {
		name, args string
		change     func(*apiServer)
		want, err  string
	}{
		{"all namespaces, longest first", "-A", nil, header + "web whole pod-whole b gpu-1b-00-0 120m 42m\n" +
			"ml train pod-train a gpu-3b-00-0 120m 40m", ""},
		{"the namespace of the context", "--no-headers", nil, "ml train pod-train a gpu-3b-00-0 120m 40m", ""},
		{"nothing is idle", "-n web", func(s *apiServer) { s.Claims[2].Status.Devices = nil },
			"No claim of the namespace web holds a GPU that it does not use.", ""},
		{"no right to read slices", "-A", func(s *apiServer) { s.forbidden = []string{slicesPath} }, "",
			`the missing right is the verb "list" on resourceslices.resource.k8s.io`},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := idleCluster(t)
			if row.change != nil {
				row.change(s)
			}
			out, errOut, err := s.run(t, append([]string{"top", "--idle"}, strings.Fields(row.args)...)...)
			if got := strings.TrimSuffix(squeezed(out)+errOut, "\n"); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
		})
	}
}

// ls and describe show idle claims. One in use has no problem.
func TestIdleHolders(t *testing.T) {
	s := idleCluster(t)
	for _, row := range []struct{ args, want string }{
		{"ls a/gpu-3b-00-0", "ml/serve (6Gi), ml/train (5Gi, 30%) idle for 40m"},
		{"describe b/gpu-1b-00-0", " pod-whole 120m idle for 42m"},
		{"describe b/gpu-43-00-0", " pod-small 120m <none>"},
		{"top --idle -A -o json", `"idleSince": "`},
	} {
		out, _, err := s.run(t, strings.Fields(row.args)...)
		if got := squeezed(out); err != nil || !strings.Contains(got, row.want) {
			t.Errorf("%s: got %v and\n%s\nwant in it %q", row.args, err, got, row.want)
		}
	}
}
