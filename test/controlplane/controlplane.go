// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs the control plane of a cluster without nodes: etcd, an API server, schedulers and
// controllers as plain processes of this machine.
package controlplane

import (
	"cmp"
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

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// token authenticates every program of the control plane. The API server listens only on this machine.
const token = "controlplane"

// StartTimeout limits the wait for a program of the control plane.
const StartTimeout = 2 * time.Minute

// Plane is etcd and an API server. Nodes need no leases, and every request is allowed.
type Plane struct {
	// Env is added to the environment of the programs of Kubernetes that are started later.
	Env []string
	// Server is the API server, and nil unless it runs.
	Server *Process

	programs string // the folder of the programs of Kubernetes
	dir      string // for data and logs
	port     int
	etcd     *Process
}

// Process is a program that a Plane has started.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	Log  string        // its path
}

// Start starts a program, args[0], whose output goes to a file of that name in the plane's folder.
func (c *Plane) Start(name string, env []string, args ...string) (*Process, error) {
	p := &Process{name: name, Log: c.Path(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	// It must not outlive this program. A session of its own keeps Ctrl-C away, and gives it a fair part of the
	// processor.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState tells how it ended
		close(p.done)
	}()
	return p, nil
}

// Stop ends the program. A nil Process is no error.
func (p *Process) Stop() {
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

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns nil while the program runs, and then an error with the last line of its log.
func (p *Process) Ended() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	text, _ := os.ReadFile(p.Log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%s has ended (%s): %s", p.name, p.cmd.ProcessState, lines[len(lines)-1])
}

// Await returns when the URL answers with 200.
func (p *Process) Await(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
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
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log is %s", p.name, errors.Join(context.Cause(ctx), last),
				p.Log)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// New prepares a control plane with empty data in the folder dir. Programs is the folder of etcd, kube-apiserver,
// kube-scheduler and kube-controller-manager.
func New(programs, dir string) (*Plane, error) {
	c := &Plane{programs: programs, dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return c, errors.Join(
		os.WriteFile(c.Path("service-account.key"), text, 0o600),
		os.WriteFile(c.Path("tokens.csv"), []byte(token+",admin,admin,system:masters\n"), 0o600),
	)
}

// Path returns the path of a file in the plane's folder.
func (c *Plane) Path(name string) string { return filepath.Join(c.dir, name) }

// Open starts etcd and the API server on the data in the folder.
func (c *Plane) Open(ctx context.Context) error {
	ports, err := FreePorts(3)
	if err != nil {
		return err
	}
	c.port = ports[0]
	etcd, peer := Local("http", ports[1]), Local("http", ports[2])
	c.etcd, err = c.Start("etcd", c.Env, filepath.Join(c.programs, "etcd"), "--name=etcd",
		"--data-dir="+c.Path("etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=etcd="+peer,
		"--unsafe-no-fsync", "--log-level=warn", "--quota-backend-bytes=8589934592")
	if err != nil {
		return err
	}
	if err := c.etcd.Await(ctx, http.DefaultClient, etcd+"/health"); err != nil {
		return err
	}
	c.Server, err = c.Start("kube-apiserver", c.Env, filepath.Join(c.programs, "kube-apiserver"),
		"--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(c.port), "--cert-dir="+c.Path("certificates"),
		"--service-account-key-file="+c.Path("service-account.key"),
		"--service-account-signing-key-file="+c.Path("service-account.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
		"--token-auth-file="+c.Path("tokens.csv"), "--authorization-mode=AlwaysAllow",
		"--endpoint-reconciler-type=none",
		// Without a controller manager, new nodes would keep the taint not-ready, and there are no service accounts.
		"--disable-admission-plugins=TaintNodesByCondition,ServiceAccount")
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.REST())
	if err != nil {
		return err
	}
	return c.Server.Await(ctx, client, c.REST().Host+"/readyz")
}

// Close ends both programs. The data remains.
func (c *Plane) Close() {
	c.Server.Stop()
	c.etcd.Stop()
	c.Server, c.etcd = nil, nil
}

// Save copies the data to the folder. The control plane must not run.
func (c *Plane) Save(to string) error { return os.CopyFS(to, os.DirFS(c.Path("etcd"))) }

// Restore replaces the data by a copy of the folder. The control plane must not run.
func (c *Plane) Restore(from string) error {
	if err := os.RemoveAll(c.Path("etcd")); err != nil {
		return err
	}
	return os.CopyFS(c.Path("etcd"), os.DirFS(from))
}

// REST returns the configuration of a client that speaks protobuf, without a limit of requests.
func (c *Plane) REST() *rest.Config {
	return &rest.Config{Host: Local("https", c.port), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, DisableCompression: true,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}}
}

// Kubeconfig writes a kubeconfig for the other programs and returns its path.
func (c *Plane) Kubeconfig() (string, error) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, c.REST().Host, token)
	return c.Path("kubeconfig"), os.WriteFile(c.Path("kubeconfig"), []byte(text), 0o600)
}

// Local returns a URL on this machine.
func Local(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

// FreePorts returns ports that nobody listens on now.
func FreePorts(n int) (ports []int, err error) {
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

// PeakMemory returns the most memory that the process has had, in bytes.
func (p *Process) PeakMemory() (int64, error) { return p.memory("VmHWM:") }

// Memory returns the memory that the process has, in bytes.
func (p *Process) Memory() (int64, error) { return p.memory("VmRSS:") }

func (p *Process) memory(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, cmp.Or(p.Ended(), err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name); found {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", p.cmd.Process.Pid, name)
}
