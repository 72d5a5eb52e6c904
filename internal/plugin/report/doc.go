// SPDX-License-Identifier: Apache-2.0

// Package report writes the events of the plugin, the status of claims, metrics, and the answers of the probes. It
// reports what other packages have decided, and touches no GPU.
//
// Reporter (events.go) has a function for each kind of news; Events lists all kinds of events with their meaning. The
// status of claims (claimstatus.go) is written later: Prepared and Failed replace the pending update of the claim, and
// Run applies it with server-side apply. Conditions and Idle (claimhealth.go) do the same with a queue and a field
// manager of their own, so that none of the three overwrites another (TestIdle). Calls (calls.go) counts the calls of
// the kubelet in flight; updates wait for them. DaemonWatch (daemons.go) reads the state files of MPS daemons and tells
// the claims of a daemon that was restarted or whose server has failed. Metrics (metrics.go, gpustates.go) and
// Readiness (readiness.go) keep what they are told, and Serve serves /metrics, /healthz and /readyz.
//
// What must hold:
//   - Functions that report do not wait for the API server.
//   - Pods that start come first: a status waits until no call has run for statusPause, but not longer than
//     statusDelay. Why Prepare has failed is written at once, and nothing waits while the plugin stops
//     (TestStatusWaitsForCalls).
//   - Once a claim is released, nothing that waits is written about it but why Prepare has failed
//     (TestStatusOfAReleasedClaim).
//   - An update is tried again, unless the claim is gone, replaced or deallocated (isPermanent).
//   - Events with different causes are not aggregated by client-go (TestEventsTellThePresentCause).
//   - A condition keeps its transition time while its status does not change (TestTransitionTime).
//   - Of its sibling packages, it may import only dirwatch.
//
// Tests use a fake clientset or event recorder, and a directory of MPS daemons (TestDaemonRestartIsReported).
package report
