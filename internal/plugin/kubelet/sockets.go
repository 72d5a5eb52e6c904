// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// unregisterDelay is how long the kubelet may take to notice that a registration socket is gone. Its plugin manager
	// checks once a second.
	unregisterDelay = 1500 * time.Millisecond
	// drainTimeout is the timeout of calls in flight. The pod has 30 s to terminate, of which the rest takes up to 5.
	drainTimeout = 23 * time.Second
)

// Sockets says where the plugin and the kubelet find each other, and as what the plugin registers.
type Sockets struct {
	DriverName  string
	NodeName    string
	PodUID      types.UID // set: several instances may run side by side, each under the UID of its pod
	PluginDir   string    // for sockets and state; must exist
	RegistryDir string    // where the kubelet looks for plugins
	CDIDir      string    // where kubeletplugin puts the specs of device metadata
	Client      kubernetes.Interface
}

// Connection is the plugin's registration with the kubelet, and its sockets.
type Connection struct {
	*kubeletplugin.Helper
	sockets Sockets
	calls   *report.Calls
}

// Serve registers the plugin and answers the kubelet until Stop. From then on the kubelet calls only this instance.
func Serve(ctx context.Context, s Sockets, server *Server) (*Connection, error) {
	if err := s.unique(); err != nil {
		return nil, fmt.Errorf("serve the kubelet: %w", err)
	}
	// The helper cancels calls when its context ends, so its context never ends: Stop is called after the drain.
	options := s.options(server)
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), server, options...)
	if err != nil {
		return nil, fmt.Errorf("serve the kubelet: %w", err)
	}
	return &Connection{Helper: helper, sockets: s, calls: &server.Reporter.Calls}, nil
}

func (s Sockets) options(server *Server) []kubeletplugin.Option {
	metadata := &metadataWriter{driver: s.DriverName, files: server.Metadata}
	operations := server.Metadata
	operations.WriteFile, operations.MkdirAll = metadata.write, metadata.mkdirAll
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(s.DriverName),
		kubeletplugin.NodeName(s.NodeName),
		kubeletplugin.KubeClient(s.Client),
		kubeletplugin.PluginDataDirectoryPath(s.PluginDir),
		kubeletplugin.PluginSocket(s.socketName()),
		kubeletplugin.RegistrarDirectoryPath(s.RegistryDir),
		kubeletplugin.CDIDirectory(s.CDIDir),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{
			metadatav1beta1.SchemeGroupVersion, metadatav1alpha1.SchemeGroupVersion}),
		kubeletplugin.MetadataFileOps(operations),
		kubeletplugin.Serialize(false), // the records have locks, one per GPU
		kubeletplugin.GRPCInterceptor(server.count),
		kubeletplugin.GRPCInterceptor(prepareEach),
		kubeletplugin.GRPCInterceptor(metadata.require),
		kubeletplugin.GRPCInterceptor(server.noticeRegistration),
	}
	if s.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(s.PodUID))
	}
	return options
}

// maxSocketPath is the maximum length of a socket's path (unix(7): sun_path has 108 bytes with the final zero).
const maxSocketPath = 107

// socketName returns the name of this instance's DRA socket. It contains the pod's UID, or a digest of it if the path
// would be too long.
func (s Sockets) socketName() string {
	if s.PodUID == "" {
		return "dra.sock"
	}
	name := "dra-" + string(s.PodUID) + ".sock"
	if len(filepath.Join(s.PluginDir, name)) > maxSocketPath {
		digest := sha256.Sum256([]byte(s.PodUID))
		name = "dra-" + hex.EncodeToString(digest[:6]) + ".sock"
	}
	return name
}

// count counts the calls of the kubelet.
func (s *Server) count(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
	error) {
	defer s.Reporter.Calls.Begin()()
	return handle(ctx, request)
}

// Drain waits for all calls in flight, then unregisters from the kubelet. The order matters: without the registration
// socket the kubelet closes its connection, with every call on it. New calls already go to the instance that registered
// last.
func (c *Connection) Drain(ctx context.Context) {
	deadline := time.Now().Add(drainTimeout)
	c.calls.Wait(deadline)
	if c.sockets.PodUID != "" {
		name := kubeletplugin.RollingUpdateRegistrarSocketFile(c.sockets.RegistryDir, c.sockets.DriverName,
			c.sockets.PodUID)
		if err := os.Remove(filepath.Join(c.sockets.RegistryDir, name)); err == nil {
			time.Sleep(unregisterDelay)
		}
		c.calls.Wait(deadline)
	}
	if n := c.calls.InFlight(); n > 0 {
		klog.FromContext(ctx).Info("Calls cut off at the end", "calls", n)
	}
}

// RemoveDeadSockets removes the sockets of instances that were killed: the kubelet would try to connect to them
// forever.
func (s Sockets) RemoveDeadSockets(ctx context.Context) {
	registrations, _ := filepath.Glob(filepath.Join(s.RegistryDir, s.DriverName+"-*reg.sock"))
	for _, socket := range append(registrations, s.services()...) {
		if dead(socket) {
			klog.FromContext(ctx).Info("Removing a socket that nobody serves", "socket", socket, "result",
				os.Remove(socket))
		}
	}
}

// dead reports whether nobody serves the socket: a process that was killed leaves its file.
func dead(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// unique returns an error if another driver is registered under the name of this one. That has no UID in its socket.
func (s Sockets) unique() error {
	socket := filepath.Join(s.RegistryDir, s.DriverName+"-reg.sock")
	there, _ := filepath.Glob(socket)
	if s.PodUID == "" || len(there) == 0 || dead(socket) { // without a UID, this instance is about to serve it
		return nil
	}
	return fmt.Errorf("another driver of this node is registered as %s (%s answers): two drivers cannot have the "+
		"same GPUs; with NVIDIA's chart, set resources.gpus.enabled=false, or keep it from this node", s.DriverName,
		socket)
}

// services returns the DRA sockets of all instances.
func (s Sockets) services() []string {
	found, _ := filepath.Glob(filepath.Join(s.PluginDir, "dra*.sock"))
	return found
}

// Alone reports whether no other instance serves the kubelet.
func (s Sockets) Alone() bool {
	return !slices.ContainsFunc(s.services(), func(socket string) bool {
		return filepath.Base(socket) != s.socketName() && !dead(socket)
	})
}

// noticeRegistration calls Registered after the kubelet has registered the plugin.
func (s *Server) noticeRegistration(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	if status, ok := request.(*registerapi.RegistrationStatus); ok && status.PluginRegistered {
		s.Node.Registered()
	}
	return answer, err
}

// prepareEach splits a call to prepare several claims into one call per claim, in parallel. kubeletplugin would fetch
// the claims one after the other, and fail all of them when one cannot be fetched.
func prepareEach(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	prepare, ok := request.(*drapb.NodePrepareResourcesRequest)
	if !ok || len(prepare.Claims) < 2 {
		return handle(ctx, request)
	}
	answers := make([]*drapb.NodePrepareResourceResponse, len(prepare.Claims))
	var all sync.WaitGroup
	for i, claim := range prepare.Claims {
		all.Go(func() {
			answer, err := handle(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
			if err != nil {
				answers[i] = &drapb.NodePrepareResourceResponse{Error: err.Error()}
				return
			}
			answers[i] = answer.(*drapb.NodePrepareResourcesResponse).Claims[claim.Uid]
		})
	}
	all.Wait()
	merged := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for i, claim := range prepare.Claims {
		merged.Claims[claim.Uid] = answers[i]
	}
	return merged, nil
}

// Release unprepares a claim as the kubelet would: by a call on this plugin's socket.
func (s Sockets) Release(ctx context.Context, claim sharing.Claim) error {
	socket := filepath.Join(s.PluginDir, s.socketName())
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := drapb.NewDRAPluginClient(conn).NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}})
	if err == nil && answer.Claims[string(claim.UID)].GetError() != "" {
		err = errors.New(answer.Claims[string(claim.UID)].GetError())
	}
	if err != nil {
		return fmt.Errorf("release claim %s: %w", claim.UID, err)
	}
	return nil
}
