// SPDX-License-Identifier: Apache-2.0

// Package conformance tests what the kubelet, the scheduler and the API expect of any DRA driver. It knows no driver:
// it uses the API, the socket of the driver's kubelet plugin where that can be reached, and commands that the caller
// gives.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Level says whether a driver must pass a check.
type Level string

const (
	// Required checks test what every driver must do.
	Required Level = "required"
	// Optional checks test a feature that a driver may leave out, or what no document of Kubernetes asks for.
	Optional Level = "optional"
)

// Status is the result of a check.
type Status string

// A check that does not apply, or that lacks a flag, is skipped.
const (
	Pass Status = "pass"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Result is what a check has found.
type Result struct {
	ID     string `json:"id"`
	Level  Level  `json:"level"`
	Expect string `json:"expect"` // what is expected, a sentence
	By     string `json:"by"`     // the document that says so
	Status Status `json:"status"`
	// Detail is the reason of Fail and Skip, and what a passed check has seen.
	Detail string `json:"detail,omitempty"`
}

// Config says which driver is tested, and with what.
type Config struct {
	Driver string
	Class  string
	// Node is the node whose devices are used; empty: the first that has devices of the driver. Network-attached
	// devices are not bound to it.
	Node string
	// Spec is what claims request; empty: one device of Class.
	Spec *resourceapi.ResourceClaimSpec
	// Image and Args are those of each container, which must run until it is told to end.
	Image string
	Args  []string
	// Probe is a command in the container that prints which devices it has; empty: nothing is printed.
	Probe []string
	// Cat is a command in the container that prints the file that is appended to it.
	Cat []string
	// CDIDir is the node's directory with CDI specs as this program sees it; empty: it cannot.
	CDIDir string
	// RestartPlugin, RestartKubelet, UpgradePlugin, Sick and Well are command lines; empty: there is none.
	RestartPlugin, RestartKubelet, UpgradePlugin, Sick, Well string
	// ForgottenAfter is how long the driver may keep a claim of which the kubelet knows nothing; zero: do not test.
	ForgottenAfter time.Duration
	// Accepted and Refused are opaque parameters that the driver must accept and refuse.
	Accepted, Refused [][]byte
	// ServiceAccount is that of the plugin, as namespace:name; empty: its rights are not tested.
	ServiceAccount string
	// Claimed are the IDs of checks whose feature the driver claims to have. They fail if it does not have it.
	Claimed []string
	// Only are the IDs of the checks to run; empty: all.
	Only []string
	// Timeout ends each wait.
	Timeout time.Duration
	// Poll is the pause between two looks.
	Poll time.Duration
}

// Access is how the suite reaches the cluster and the driver.
type Access struct {
	Client kubernetes.Interface
	// Exec runs a command in the first container of a pod and returns its output.
	Exec func(ctx context.Context, namespace, pod string, command ...string) (string, error)
	// Run runs a command line on this machine.
	Run func(ctx context.Context, line string) error
	// As returns a client with the rights of a service account on a node.
	As func(serviceAccount, node string) (kubernetes.Interface, error)
	// Plugin and Health are the services on the socket of the driver's kubelet plugin; nil: it cannot be reached.
	Plugin drapb.DRAPluginClient
	Health healthpb.DRAResourceHealthClient
}

// check is one test of a driver. It returns what it has seen; a skip is an error.
type check struct {
	id     string
	level  Level
	expect string
	by     string
	run    run
}

// run does a check.
type run func(context.Context, *suite) (string, error)

// skip is the reason why a check is skipped.
type skip string

func (s skip) Error() string { return string(s) }

// absent is a skip because the driver does not have the feature, which fails if the driver claims to have it.
type absent string

func (a absent) Error() string { return string(a) }

// ErrUnknownCheck means that Config names a check that does not exist.
var ErrUnknownCheck = errors.New("unknown check")

// IDs returns the IDs of all checks, in their order.
func IDs() []string {
	var ids []string
	for _, c := range checks {
		ids = append(ids, c.id)
	}
	return ids
}

// Run runs the checks and passes each result to report when it is known. An error means that they could not be run.
func Run(ctx context.Context, config Config, access Access, report func(Result)) error {
	for _, id := range slices.Concat(config.Only, config.Claimed) {
		if !slices.Contains(IDs(), id) {
			return fmt.Errorf("%w %q: want one of %s", ErrUnknownCheck, id, strings.Join(IDs(), ", "))
		}
	}
	s := &suite{Config: config, Access: access}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end(context.WithoutCancel(ctx))
	for _, c := range checks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(config.Only) == 0 || slices.Contains(config.Only, c.id) {
			report(s.judge(ctx, c))
		}
	}
	return nil
}

// judge runs a check and removes what it has left.
func (s *suite) judge(ctx context.Context, c check) Result {
	result := Result{ID: c.id, Level: c.level, Expect: c.expect, By: c.by, Status: Pass}
	detail, err := c.run(ctx, s)
	if left := s.clean(ctx); err == nil && left != nil {
		err = left
	}
	result.Detail = detail
	var reason skip
	var lacks absent
	switch {
	case err == nil:
	case errors.As(err, &reason), errors.As(err, &lacks) && !slices.Contains(s.Claimed, c.id):
		result.Status, result.Detail = Skip, err.Error()
	default:
		result.Status, result.Detail = Fail, err.Error()
	}
	return result
}

// Failed reports whether a required check failed, or an optional one whose feature the driver claims.
func Failed(results []Result, claimed []string) bool {
	return slices.ContainsFunc(results, func(r Result) bool {
		return r.Status == Fail && (r.Level == Required || slices.Contains(claimed, r.ID))
	})
}
