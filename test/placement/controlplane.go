// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// token authenticates every program of the control plane. The API server listens only on this machine.
const token = "placement"

// startTimeout limits the wait for a program of the control plane.
const startTimeout = 2 * time.Minute

// controlPlane is etcd and an API server, as plain processes, without a controller manager: claims are deallocated by
// this program, and nodes need no leases. Its data is in memory.
type controlPlane struct {
	programs string // the folder of etcd, kube-apiserver and kube-scheduler
	dir      string // for data and logs
	port     int
	etcd     *process
	server   *process
}

// process is a program that this one started.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // after that
	log  string
}

// startProcess starts a program whose output goes to a file of that name.
func startProcess(dir, name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if name != controllerName { // less work for Go's memory, which is measured of the controller
		p.cmd.Env = append(os.Environ(), "GOGC=400")
	}
	// It must not outlive this program. A session of its own keeps Ctrl-C away, and gives it a fair part of the
	// processor.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop ends the program. A nil process is no error.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// await returns when the URL answers with 200.
func (p *process) await(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(request)
		if err == nil {
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %w; its log is %s", p.name, p.err, p.log)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log is %s", p.name, errors.Join(context.Cause(ctx), last),
				p.log)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// newControlPlane prepares a control plane with empty data in the folder.
func newControlPlane(programs, dir string) (*controlPlane, error) {
	c := &controlPlane{programs: programs, dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return c, errors.Join(
		os.WriteFile(c.path("service-account.key"), text, 0o600),
		os.WriteFile(c.path("tokens.csv"), []byte(token+",placement,placement,system:masters\n"), 0o600),
	)
}

func (c *controlPlane) path(name string) string { return filepath.Join(c.dir, name) }

// start starts etcd and the API server on the data in the folder.
func (c *controlPlane) start(ctx context.Context) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	c.port = ports[0]
	etcd, peer := local("http", ports[1]), local("http", ports[2])
	c.etcd, err = startProcess(c.dir, "etcd", filepath.Join(c.programs, "etcd"), "--name=etcd",
		"--data-dir="+c.path("etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=etcd="+peer,
		"--unsafe-no-fsync", "--log-level=warn", "--quota-backend-bytes=8589934592")
	if err != nil {
		return err
	}
	if err := c.etcd.await(ctx, http.DefaultClient, etcd+"/health"); err != nil {
		return err
	}
	c.server, err = startProcess(c.dir, "kube-apiserver", filepath.Join(c.programs, "kube-apiserver"),
		"--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(c.port), "--cert-dir="+c.path("certificates"),
		"--service-account-key-file="+c.path("service-account.key"),
		"--service-account-signing-key-file="+c.path("service-account.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
		"--token-auth-file="+c.path("tokens.csv"), "--authorization-mode=AlwaysAllow",
		"--endpoint-reconciler-type=none",
		// Without a controller manager, new nodes would keep the taint not-ready, and there are no service accounts.
		"--disable-admission-plugins=TaintNodesByCondition,ServiceAccount")
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.rest())
	if err != nil {
		return err
	}
	return c.server.await(ctx, client, c.rest().Host+"/readyz")
}

// stop ends both programs. The data remains.
func (c *controlPlane) stop() {
	c.server.stop()
	c.etcd.stop()
	c.server, c.etcd = nil, nil
}

// save copies the data to the folder. The control plane must not run.
func (c *controlPlane) save(to string) error { return os.CopyFS(to, os.DirFS(c.path("etcd"))) }

// restore replaces the data by a copy of the folder. The control plane must not run.
func (c *controlPlane) restore(from string) error {
	if err := os.RemoveAll(c.path("etcd")); err != nil {
		return err
	}
	return os.CopyFS(c.path("etcd"), os.DirFS(from))
}

// rest returns the configuration of a client without a limit of requests.
func (c *controlPlane) rest() *rest.Config {
	return &rest.Config{Host: local("https", c.port), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, DisableCompression: true}
}

// kubeconfig writes a kubeconfig for the other programs and returns its path.
func (c *controlPlane) kubeconfig() (string, error) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, c.rest().Host, token)
	return c.path("kubeconfig"), os.WriteFile(c.path("kubeconfig"), []byte(text), 0o600)
}

// local returns a URL on this machine.
func local(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

// freePorts returns ports that nobody listens on now.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // after all of them, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
