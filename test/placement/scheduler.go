// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// defaultScheduler is the name of the scheduler of pods that name none.
const defaultScheduler = "default-scheduler"

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

// scheduler is a kube-scheduler.
type scheduler struct {
	*process
	port int
}

// startScheduler starts a kube-scheduler for pods that name it, and returns when it knows the cluster.
func (c *controlPlane) startScheduler(ctx context.Context, name, extenders string) (*scheduler, error) {
	kubeconfig, err := c.kubeconfig()
	if err != nil {
		return nil, err
	}
	file := c.path(name + ".yaml")
	if err := os.WriteFile(file, []byte(schedulerConfig(name, kubeconfig, extenders)), 0o600); err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	s := &scheduler{port: ports[0]}
	s.process, err = startProcess(c.dir, name, filepath.Join(c.programs, "kube-scheduler"), "--config="+file,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(s.port), "--cert-dir="+c.path(name+"-certificates"),
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it makes its certificate itself
	if err := s.await(ctx, client, local("https", s.port)+"/readyz"); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}
