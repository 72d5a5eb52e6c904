// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/keymutex"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	// libraries is where a container has the client's libraries.
	libraries = "/usr/local/gpu-remote/lib"
	// HookProgram is the name of the program that runs CDI hooks, in the image and in ClientDir.
	HookProgram = "cdi-hooks"
	// signPeriod is the time between two looks for a signed certificate.
	signPeriod = 200 * time.Millisecond
	// claimsAtOnce is how many claims may be prepared at once without waiting for each other, by and large.
	claimsAtOnce = 1024
	sweepPeriod  = 10 * time.Minute // between two sweeps
)

// Config says what the plugin works with.
type Config struct {
	Driver      string // of remote devices
	NodeName    string
	PluginDir   string // for the socket and the records
	RegistryDir string // where the kubelet looks for plugins
	CDIDir      string
	// ClientDir is a directory of the host, the same path here. It has the client's libraries in lib, and the program
	// that runs CDI hooks.
	ClientDir string
	// Engine is the name of the engine whose client the containers get.
	Engine string
	Client kubernetes.Interface
}

// Plugin prepares claims for remote devices.
type Plugin struct {
	Config
	engine   remote.Engine
	address  string // of the relay
	sessions *sessions
	specs    *cdi.Specs
	working  keymutex.KeyMutex // by claim: a call prepares or releases it
	requests sync.Map          // by claim: a request that waits for the controller
	fatal    context.CancelCauseFunc
}

// Run relays the connections to l, and serves the kubelet, until ctx ends.
func Run(ctx context.Context, c Config, l net.Listener) error {
	p, err := newPlugin(c, l.Addr().String())
	if err != nil {
		return err
	}
	ctx, p.fatal = context.WithCancelCause(ctx)
	defer p.fatal(nil)
	helper, err := kubeletplugin.Start(ctx, p, kubeletplugin.DriverName(c.Driver), kubeletplugin.NodeName(c.NodeName),
		kubeletplugin.KubeClient(c.Client), kubeletplugin.PluginDataDirectoryPath(c.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(c.RegistryDir), kubeletplugin.CDIDirectory(c.CDIDir),
		kubeletplugin.HealthService(false),
		kubeletplugin.Serialize(false)) // a claim that waits for its certificate delays no other
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	defer helper.Stop()
	forgotten := map[types.UID]bool{}
	go wait.UntilWithContext(ctx, func(ctx context.Context) { forgotten = p.sweep(ctx, forgotten) }, sweepPeriod)
	(&relay{engine: p.engine, sessions: p.sessions}).serve(ctx, l)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	helper.Stop()
	return p.leave()
}

// sweep releases claims that are gone from the API, or not allocated, in two sweeps: the kubelet has forgotten them.
// Once is not enough, as a pod that was deleted by force may still be stopping. It returns what is gone.
func (p *Plugin) sweep(ctx context.Context, before map[types.UID]bool) map[types.UID]bool {
	now := map[types.UID]bool{}
	for _, s := range p.sessions.all() {
		found, err := p.Client.ResourceV1().ResourceClaims(s.Of.Namespace).Get(ctx, s.Of.Name, metav1.GetOptions{})
		gone := apierrors.IsNotFound(err) || err == nil && (found.UID != s.Claim || found.Status.Allocation == nil)
		if now[s.Claim] = gone && s.Of.Name != ""; now[s.Claim] && before[s.Claim] {
			err := p.unprepare(s.Claim)
			klog.FromContext(ctx).Info("Claim released that the API does not have", "claim", s.Of, "err", err)
		}
	}
	return now
}

// leave removes the files of the plugin if no claim is prepared. A new pod installs them again.
func (p *Plugin) leave() error {
	if len(p.sessions.all()) > 0 {
		return nil
	}
	return errors.Join(os.RemoveAll(p.ClientDir), os.RemoveAll(p.PluginDir))
}

func newPlugin(c Config, address string) (*Plugin, error) {
	engine, err := remote.EngineOf(c.Engine)
	if err != nil {
		return nil, err
	}
	all, err := openSessions(filepath.Join(c.PluginDir, "sessions"))
	if err != nil {
		return nil, err
	}
	specs, err := cdi.NewSpecs(c.Driver, c.CDIDir)
	if err != nil {
		return nil, err
	}
	return &Plugin{Config: c, engine: engine, address: address, sessions: all, specs: specs,
		working: keymutex.NewHashed(claimsAtOnce)}, nil
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		device, err := p.prepare(ctx, claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: []kubeletplugin.Device{device}}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Claim not prepared", "claim", klog.KObj(claim))
			results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
		}
	}
	return results, nil
}

// prepare makes the session of a claim, or finds it, and writes its CDI spec.
func (p *Plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (kubeletplugin.Device, error) {
	p.working.LockKey(string(claim.UID))
	defer func() { _ = p.working.UnlockKey(string(claim.UID)) }()
	result, err := p.resultOf(claim)
	if err != nil {
		return kubeletplugin.Device{}, err
	}
	wanted, err := remote.SessionOf(claim, p.Driver, result.Device)
	if err != nil {
		return kubeletplugin.Device{}, err
	}
	if wanted.Engine != p.Engine {
		return kubeletplugin.Device{}, fmt.Errorf("device %s is served by engine %s; this node has the client of %s",
			result.Device, wanted.Engine, p.Engine)
	}
	s, ok := p.sessions.get(claim.UID)
	if !ok || s.Session != wanted || s.Device != result.Device {
		if s, err = p.newSession(ctx, claim, result.Device, wanted); err != nil {
			return kubeletplugin.Device{}, err
		}
	}
	name := string(claim.UID)
	err = p.specs.WriteClaim(claim.UID, gpu.Access{}, []cdi.Device{{Name: name, Access: p.access(s)}})
	return kubeletplugin.Device{Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
		ShareID: result.ShareID, CDIDeviceIDs: []string{p.specs.ClaimDevice(name)}}, err
}

// resultOf returns the only remote device of the claim.
func (p *Plugin) resultOf(claim *resourceapi.ResourceClaim) (resourceapi.DeviceRequestAllocationResult, error) {
	found := remote.Results(claim, p.Driver)
	if len(found) != 1 {
		return resourceapi.DeviceRequestAllocationResult{}, fmt.Errorf("the claim has %d remote GPUs: a claim can "+
			"have 1, because a client has one address and one token", len(found))
	}
	return found[0], nil
}

// newSession makes a token, gets a certificate with its key, and records them.
func (p *Plugin) newSession(ctx context.Context, claim *resourceapi.ResourceClaim, device string,
	of remote.Session) (session, error) {
	if err := p.sessions.remove(claim.UID); err != nil { // one with another server
		return session{}, err
	}
	certificate, key, err := p.certificate(ctx, claim.UID)
	if err != nil {
		return session{}, fmt.Errorf("certificate of the session: %w", err)
	}
	switch server, err := remote.ServerOf(certificate); {
	case err != nil:
		return session{}, err
	case server != of.Server: // the claim has been allocated another one since
		return session{}, fmt.Errorf("the certificate is for server %s, the claim has %s", server, of.Server)
	}
	s := session{Claim: claim.UID, Of: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
		Device: device, Session: of, Token: newToken(), Certificate: string(certificate), Key: string(key)}
	return s, p.sessions.put(s)
}

// request is a request for a certificate that the controller has not answered yet.
type request struct {
	name string
	key  []byte // PEM
}

// certificate waits until the controller has signed a request for the claim, and returns the certificate and its key.
// If ctx ends before, the kubelet's next call goes on with the same request.
func (p *Plugin) certificate(ctx context.Context, claim types.UID) (certificate, key []byte, err error) {
	api := p.Client.CertificatesV1().CertificateSigningRequests()
	var csr *certificates.CertificateSigningRequest
	kept, waits := p.requests.Load(claim)
	r, _ := kept.(request)
	if waits {
		csr, err = api.Get(ctx, r.name, metav1.GetOptions{})
	}
	if !waits || apierrors.IsNotFound(err) { // Kubernetes deletes old requests
		csr, r.key, err = p.request(ctx, claim)
	}
	for err == nil && len(csr.Status.Certificate) == 0 {
		for _, c := range csr.Status.Conditions {
			if c.Status == corev1.ConditionTrue && c.Type != certificates.CertificateApproved {
				p.requests.Delete(claim)
				return nil, nil, fmt.Errorf("%s: %s", c.Type, c.Message)
			}
		}
		p.requests.Store(claim, request{csr.Name, r.key})
		select {
		case <-time.After(signPeriod):
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the controller has not signed request %s: %w", csr.Name, ctx.Err())
		}
		csr, err = api.Get(ctx, csr.Name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, nil, err
	}
	p.requests.Delete(claim)
	return csr.Status.Certificate, r.key, nil
}

// request creates a request for the claim, with a new key.
func (p *Plugin) request(ctx context.Context, claim types.UID) (*certificates.CertificateSigningRequest, []byte,
	error) {
	text, key, err := remote.NewRequest(claim)
	if err != nil {
		return nil, nil, err
	}
	local, _ := remote.Local(p.Driver)
	csr, err := p.Client.CertificatesV1().CertificateSigningRequests().Create(ctx,
		&certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "gpu-remote-"},
			Spec: certificates.CertificateSigningRequestSpec{Request: text, SignerName: remote.Signer(local),
				Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}},
		}, metav1.CreateOptions{})
	return csr, key, err
}

// access is what a container gets.
func (p *Plugin) access(s session) gpu.Access {
	return gpu.Access{
		// void: NVIDIA's container runtime, if installed, adds no GPUs of this node.
		Env: append(p.engine.Env(p.address, s.Token), "NVIDIA_VISIBLE_DEVICES=void"),
		Mounts: []gpu.Mount{{HostPath: filepath.Join(p.ClientDir, "lib"), ContainerPath: libraries,
			Options: gpu.ReadOnly}},
		Hooks: []gpu.Hook{{Name: "createContainer", Path: filepath.Join(p.ClientDir, HookProgram),
			Args: []string{HookProgram, "update-ldcache", "--folder", libraries}}},
	}
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *Plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	errs := map[types.UID]error{}
	for _, claim := range claims {
		errs[claim.UID] = p.unprepare(claim.UID)
	}
	return errs, nil
}

func (p *Plugin) unprepare(claim types.UID) error {
	p.working.LockKey(string(claim))
	defer func() { _ = p.working.UnlockKey(string(claim)) }()
	p.requests.Delete(claim)
	if err := p.specs.RemoveClaim(claim); err != nil {
		return err
	}
	return p.sessions.remove(claim) // last: the record
}

// HandleError implements kubeletplugin.DRAPlugin.
func (p *Plugin) HandleError(_ context.Context, err error, message string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(fmt.Errorf("%s: %w", message, err))
	}
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (*Plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
