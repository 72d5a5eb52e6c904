// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// Controller is the driver's controller.
type Controller struct {
	*Process
	Webhooks string // URL of the webhooks; they have the API server's certificate
	// CertFile and KeyFile are what a scheduler shows that asks for scores.
	CertFile, KeyFile string
	Metrics           string // URL of the metrics
}

// StartController starts the driver's controller, which the file program is, and returns when it is ready.
func (c *Plane) StartController(ctx context.Context, program string, flags ...string) (*Controller, error) {
	kubeconfig, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	// The API server's certificate, which is of this machine, will do for both.
	dir := c.Path("controller-certificate")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for to, from := range map[string]string{"tls.crt": "apiserver.crt", "tls.key": "apiserver.key",
		"ca.crt": "apiserver.crt"} {
		text, err := os.ReadFile(filepath.Join(c.Path("certificates"), from))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o600); err != nil {
			return nil, err
		}
	}
	ports, err := FreePorts(3)
	if err != nil {
		return nil, err
	}
	health := fmt.Sprintf("127.0.0.1:%d", ports[1])
	args := []string{program, "--kubeconfig=" + kubeconfig, "--name=controller", "--namespace=default",
		"--certificate-dir=" + dir, "--webhook-port=" + strconv.Itoa(ports[0]), "--health-address=" + health,
		fmt.Sprintf("--metrics-address=127.0.0.1:%d", ports[2])}
	p, err := c.Start("dra-controller", nil, append(args, flags...)...)
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, http.DefaultClient, "http://"+health+"/readyz"); err != nil {
		p.Stop()
		return nil, err
	}
	return &Controller{Process: p, Webhooks: Local("https", ports[0]), Metrics: Local("http", ports[2]) + "/metrics",
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}, nil
}
