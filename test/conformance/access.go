// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// requestTimeout ends a request that the API server does not answer.
const requestTimeout = 30 * time.Second

// Connect returns the access to a cluster by a kubeconfig; empty: the default of kubectl. The socket is that of the
// driver's plugin, or a pattern for it; empty: it cannot be reached. Nothing is dialled yet.
func Connect(kubeconfig, socket string) (Access, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return Access{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // the API server's fairness limits requests
	limited := rest.CopyConfig(config)
	limited.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(limited)
	if err != nil {
		return Access{}, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	access := Access{Client: client, Run: runLine,
		Exec: func(ctx context.Context, namespace, pod string, command ...string) (string, error) {
			return execIn(ctx, config, client, namespace, pod, command)
		},
		As: func(serviceAccount, node string) (kubernetes.Interface, error) {
			return as(config, serviceAccount, node)
		},
	}
	if socket == "" {
		return access, nil
	}
	connection, err := dial(socket)
	if err != nil {
		return Access{}, err
	}
	access.Plugin = drapb.NewDRAPluginClient(connection)
	access.Health = healthClient{connection}
	return access, nil
}

// dial connects to the socket, or to the newest one that matches the pattern.
func dial(pattern string) (*grpc.ClientConn, error) {
	if _, err := filepath.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("socket %q: %w", pattern, err)
	}
	return grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			path, err := newest(pattern)
			if err != nil {
				return nil, err
			}
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", path)
		}))
}

// newest returns the newest file that matches the pattern.
func newest(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	var best string
	var bestInfo os.FileInfo
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && (best == "" || info.ModTime().After(bestInfo.ModTime())) {
			best, bestInfo = path, info
		}
	}
	if best == "" {
		return "", fmt.Errorf("no socket matches %s", pattern)
	}
	return best, nil
}

// healthClient speaks the newest version of the health service that the plugin has.
type healthClient struct{ connection *grpc.ClientConn }

func (h healthClient) NodeWatchResources(ctx context.Context, in *healthv1.NodeWatchResourcesRequest,
	options ...grpc.CallOption) (grpc.ServerStreamingClient[healthv1.NodeWatchResourcesResponse], error) {
	probe, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := healthv1.NewDRAResourceHealthClient(h.connection).NodeWatchResources(probe, in, options...)
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) == codes.Unimplemented {
		old := healthv1alpha1.NewDRAResourceHealthClient(h.connection)
		return healthv1.V1Alpha1ClientWrapper{Client: old}.NodeWatchResources(ctx, in, options...)
	}
	return healthv1.NewDRAResourceHealthClient(h.connection).NodeWatchResources(ctx, in, options...)
}

// runLine runs a command line with the shell.
func runLine(ctx context.Context, line string) error {
	output, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, bytes.TrimSpace(output))
	}
	return nil
}

func execIn(ctx context.Context, config *rest.Config, client kubernetes.Interface, namespace, pod string,
	command []string) (string, error) {
	request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "main", Command: command, Stdout: true, Stderr: true},
			scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("run %q in %s: %w", command, pod, err)
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return "", fmt.Errorf("run %q in %s: %w: %s%s", command, pod, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// errServiceAccount means that a service account is not like namespace:name.
var errServiceAccount = errors.New("want namespace:name")

// as returns a client that acts as a service account whose token is bound to a node.
func as(config *rest.Config, serviceAccount, node string) (kubernetes.Interface, error) {
	namespace, name, ok := strings.Cut(serviceAccount, ":")
	if !ok || namespace == "" || name == "" {
		return nil, fmt.Errorf("service account %q: %w", serviceAccount, errServiceAccount)
	}
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + serviceAccount,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
	return kubernetes.NewForConfig(config)
}
