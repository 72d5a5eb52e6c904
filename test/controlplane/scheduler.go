// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// DefaultScheduler is the name of the scheduler of pods that name none.
const DefaultScheduler = "default-scheduler"

// schedulerConfig returns the configuration of a scheduler: the defaults, but for the limit of requests to the API
// server, which is 50 a second by default: about 16 pods with claims. extenders is a list in YAML, or empty.
func schedulerConfig(name, kubeconfig, extenders string) string {
	text := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q, qps: 5000, burst: 5000}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: %s}]
`, kubeconfig, name)
	if extenders != "" {
		text += "extenders: " + extenders + "\n"
	}
	return text
}

// Scheduler is a kube-scheduler.
type Scheduler struct {
	*Process
	URL string // of its metrics and profiles
}

// StartScheduler starts a kube-scheduler for pods that name it, and returns when it knows the cluster.
func (c *Plane) StartScheduler(ctx context.Context, name, extenders string) (*Scheduler, error) {
	kubeconfig, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	file := c.Path(name + ".yaml")
	if err := os.WriteFile(file, []byte(schedulerConfig(name, kubeconfig, extenders)), 0o600); err != nil {
		return nil, err
	}
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{URL: Local("https", ports[0])}
	s.Process, err = c.Start(name, c.Env, filepath.Join(c.programs, "kube-scheduler"), "--config="+file,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(ports[0]), "--cert-dir="+c.Path(name+"-certificates"),
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it makes its certificate itself
	if err := s.Await(ctx, client, s.URL+"/readyz"); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// StartManager starts a kube-controller-manager with these controllers. Its limit of requests to the API server, which
// is 20 a second by default, is that of the schedulers.
func (c *Plane) StartManager(controllers string) (*Process, error) {
	kubeconfig, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	return c.Start("kube-controller-manager", c.Env, filepath.Join(c.programs, "kube-controller-manager"),
		"--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0", "--controllers="+controllers,
		"--kube-api-qps=5000", "--kube-api-burst=5000")
}
