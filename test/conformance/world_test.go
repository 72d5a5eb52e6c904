// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
)

const (
	driverName = "driver.example.com"
	nodeName   = "node-1"
	deviceCap  = 4
)

// world is a cluster without programs: the API is a fake, and the world does what scheduler, controllers and kubelet
// do, in the calls of the API. The driver is in faults and plugin.
type world struct {
	client *fake.Clientset
	plugin *plugin
	cdi    string
	faults faults

	refused chan struct{} // closed when refusesInUpgrade has been seen

	mu     sync.Mutex
	pods   map[string]*corev1.Pod
	probes int
}

// faults are what the driver and its plugin do wrong. The zero value does all right.
type faults struct {
	prepareTwice       bool // Prepare of a prepared claim fails
	prepareTwiceOther  bool // … or has another answer
	prepareAgain       bool // Prepare after Unprepare fails
	wrongDevice        bool // Prepare answers with another device
	dropsShareID       bool
	answersOnce        bool // only the first claim of a call has an answer
	ignoresUID         bool
	unprepareUnknown   bool // Unprepare of an unprepared claim fails
	unprepareNeedsAPI  bool // Unprepare reads the claim
	exclusiveCalls     bool // a call fails while another runs
	duplicateCDI       bool
	cdiName            string // instead of a qualified name
	noCDIFile          bool
	keepsCDIFile       bool
	trustsRecord       bool // Prepare of a prepared claim does not look at the CDI file
	leaks              bool // a device that was prepared can only be prepared again when it was unprepared
	refusesAll         bool // Prepare fails
	refusesSecondPod   bool // Prepare for another pod fails
	neverUnprepares    bool // Unprepare fails
	sharesEverything   bool // every container sees the same
	forgetsOnRestart   bool // the plugin's restart loses the prepared claims, and Unprepare of them fails
	refusesInUpgrade   bool // Prepare fails while the plugin is replaced
	findsDevices       bool // the plugin's restart publishes one more device
	losesDevices       bool // the plugin's restart publishes nothing
	rewritesSlices     bool // the plugin's restart writes slices
	restartsContainers bool // a restart restarts containers
	acceptsAll         bool // the parameters are not looked at
	showsParameters    bool // containers see the effect of parameters
	dropsAlternatives  bool // parameters for a request are not for its alternatives
	crashesOnRefusal   bool
	noStatus           bool
	wrongStatus        bool
	noMetadata         bool
	wrongMetadata      bool
	adminTakes         bool // the end of a claim with admin access takes the device from its user
	ignoresTaint       bool // the pod of a tainted device stays
	sickTaintsAll      bool
	sickForgotten      bool // after a restart the sick device is healthy
	neverWell          bool
	anyNode            bool // the plugin may write slices of any node
	noExtended         bool // pods with extended resources fail
	noHealth           bool
	emptyHealth        bool
	healthOfOthers     bool
}

// plugin is the kubelet plugin of the driver.
type plugin struct {
	drapb.UnimplementedDRAPluginServer
	healthpb.UnimplementedDRAResourceHealthServer
	w *world

	mu       sync.Mutex
	calls    int
	prepared map[string][]string // claim UID → devices
	ever     map[string]bool
	crashed  bool
	number   int
}

// newWorld starts a world with a driver that has n devices.
func newWorld(t *testing.T, n int, f faults) (*world, Config, Access) {
	t.Helper()
	w := &world{client: fake.NewSimpleClientset(), cdi: t.TempDir(), faults: f, pods: map[string]*corev1.Pod{},
		refused: make(chan struct{})}
	w.plugin = &plugin{w: w, prepared: map[string][]string{}, ever: map[string]bool{}}
	w.react()
	must(t, w.client.Tracker().Add(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == '" + driverName + "'"}}}}}))
	must(t, w.client.Tracker().Add(slice("slice-1", n)))
	socket := filepath.Join(t.TempDir(), "dra.sock")
	w.serve(t, socket)
	connection, err := dial(filepath.Join(filepath.Dir(socket), "dra*.sock"))
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	access := Access{Client: w.client, Exec: w.exec, Run: w.run,
		As: func(string, string) (kubernetes.Interface, error) {
			client := fake.NewSimpleClientset()
			client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object,
				error) {
				s := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
				if *s.Spec.NodeName != nodeName && !f.anyNode {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{}, s.Name, errors.New("not its node"))
				}
				return true, s, nil
			})
			return client, nil
		},
		Plugin: drapb.NewDRAPluginClient(connection), Health: healthClient{connection}}
	config := Config{Driver: driverName, Class: driverName, Image: "image", Probe: []string{"probe"},
		Cat: []string{"cat"}, CDIDir: w.cdi, RestartPlugin: "restart plugin", RestartKubelet: "restart kubelet",
		UpgradePlugin: "upgrade plugin", Sick: "sick", Well: "well", ForgottenAfter: 50 * time.Millisecond,
		Accepted: [][]byte{[]byte(`{"good":true}`)}, Refused: [][]byte{[]byte(`{"bad":true}`)},
		ServiceAccount: "a:b", Timeout: 50 * time.Millisecond, Poll: time.Millisecond}
	return w, config, access
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func slice(name string, n int) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1",
		OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: nodeName}}},
		Spec: resourceapi.ResourceSliceSpec{Driver: driverName, NodeName: ptr.To(nodeName),
			Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1}}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("dev-%d", i)})
	}
	return s
}

func (w *world) serve(t *testing.T, socket string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	drapb.RegisterDRAPluginServer(server, w.plugin)
	if !w.faults.noHealth {
		healthpb.RegisterDRAResourceHealthServer(server, w.plugin)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// react lets the world follow what is created and deleted.
func (w *world) react() {
	w.client.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		object := a.(clienttesting.CreateAction).GetObject()
		switch o := object.(type) {
		case *resourceapi.ResourceClaim:
			o.UID = uuid.NewUUID()
		case *corev1.Pod:
			o = o.DeepCopy()
			o.UID = uuid.NewUUID()
			w.start(o)
			err := w.client.Tracker().Add(o)
			return true, o, err
		case *resourceapi.DeviceTaintRule:
			defer w.taint()
		}
		return false, nil, nil
	})
	w.client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return w.stop(a.(clienttesting.DeleteAction).GetName()) != nil, nil, nil // it stays
	})
}

func (w *world) claims() resourceClaims { return resourceClaims{w} }

type resourceClaims struct{ w *world }

func (c resourceClaims) list() []*resourceapi.ResourceClaim {
	gvr := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	list, err := c.w.client.Tracker().List(gvr, resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"), "")
	if err != nil {
		panic(err)
	}
	var all []*resourceapi.ResourceClaim
	for _, claim := range list.(*resourceapi.ResourceClaimList).Items {
		all = append(all, claim.DeepCopy())
	}
	return all
}

func (c resourceClaims) get(name string) *resourceapi.ResourceClaim {
	for _, claim := range c.list() {
		if claim.Name == name {
			return claim
		}
	}
	return nil
}

func (c resourceClaims) update(claim *resourceapi.ResourceClaim) {
	gvr := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	if err := c.w.client.Tracker().Update(gvr, claim, claim.Namespace); err != nil {
		panic(err)
	}
}

// start does what scheduler and kubelet do with a new pod.
func (w *world) start(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[pod.Name] = pod
	pod.Status.Phase = corev1.PodPending
	if len(pod.Spec.Containers[0].Resources.Limits) > 0 {
		if !w.faults.noExtended {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{}
		}
		return
	}
	for _, uses := range pod.Spec.ResourceClaims {
		claim := w.claims().get(*uses.ResourceClaimName)
		shared := claim.Status.Allocation != nil
		if !shared && !w.allocate(claim) {
			return
		}
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID})
		w.claims().update(claim)
		if err := w.prepare(claim, shared); err != nil {
			w.event(pod, err)
			return
		}
		if !w.faults.noStatus {
			device := claim.Status.Allocation.Devices.Results[0]
			if w.faults.wrongStatus {
				device.Device = "other"
			}
			claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: driverName, Pool: device.Pool,
				Device: device.Device}}
			w.claims().update(claim)
		}
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
}

func (w *world) prepare(claim *resourceapi.ResourceClaim, shared bool) error {
	if w.faults.refusesInUpgrade {
		close(w.refused)
		return errors.New("no plugin")
	}
	if shared && w.faults.refusesSecondPod {
		return errors.New("in use")
	}
	answer, err := w.plugin.NodePrepareResources(context.Background(), &drapb.NodePrepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}})
	if err != nil {
		return err
	}
	if text := answer.Claims[string(claim.UID)].GetError(); text != "" {
		return errors.New(text)
	}
	return nil
}

func (w *world) event(pod *corev1.Pod, err error) {
	_ = w.client.Tracker().Add(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: string(uuid.NewUUID()),
		Namespace: pod.Namespace}, Type: corev1.EventTypeWarning, Reason: "FailedPrepareDynamicResources",
		InvolvedObject: corev1.ObjectReference{UID: pod.UID}, Message: err.Error()})
}

// allocate gives the claim the first free device.
func (w *world) allocate(claim *resourceapi.ResourceClaim) bool {
	used := map[string]bool{}
	for _, other := range w.claims().list() {
		if other.Status.Allocation != nil {
			used[other.Status.Allocation.Devices.Results[0].Device] = true
		}
	}
	first := claim.Spec.Devices.Requests[0]
	result := resourceapi.DeviceRequestAllocationResult{Request: first.Name, Driver: driverName, Pool: nodeName}
	if first.Exactly != nil && ptr.Deref(first.Exactly.AdminAccess, false) {
		result.AdminAccess, used = ptr.To(true), nil
	}
	if len(first.FirstAvailable) > 0 {
		result.Request += "/" + first.FirstAvailable[0].Name
	}
	if w.faults.dropsShareID {
		result.ShareID = ptr.To(uuid.NewUUID())
	}
	for _, device := range w.slice().Spec.Devices {
		if !used[device.Name] && !tainted(device) {
			result.Device = device.Name
			claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{result}}}
			w.claims().update(claim)
			return true
		}
	}
	return false
}

// stop does what the kubelet does with a deleted pod.
func (w *world) stop(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.pods[name]
	if pod == nil {
		return nil
	}
	for _, uses := range pod.Spec.ResourceClaims {
		claim := w.claims().get(*uses.ResourceClaimName)
		if claim == nil || claim.Status.Allocation == nil {
			continue
		}
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor,
			func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
		if len(claim.Status.ReservedFor) == 0 {
			answer, err := w.plugin.NodeUnprepareResources(context.Background(), &drapb.NodeUnprepareResourcesRequest{
				Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}})
			if err != nil || answer.Claims[string(claim.UID)].GetError() != "" {
				return errors.New("it stays")
			}
			if ptr.Deref(claim.Status.Allocation.Devices.Results[0].AdminAccess, false) && w.faults.adminTakes {
				w.faults.sharesEverything = true // the other pod sees another thing
			}
			claim.Status.Allocation = nil
		}
		w.claims().update(claim)
	}
	delete(w.pods, name)
	return nil
}

// exec is a command in a container.
func (w *world) exec(_ context.Context, _, name string, command ...string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.pods[name]
	claim := w.claims().get(*pod.Spec.ResourceClaims[0].ResourceClaimName)
	device := claim.Status.Allocation.Devices.Results[0].Device
	switch {
	case command[0] == "probe" && w.faults.sharesEverything:
		return "all", nil
	case command[0] == "probe":
		applies := func(c resourceapi.DeviceClaimConfiguration) bool {
			return strings.Contains(string(c.Opaque.Parameters.Raw), "good") && w.faults.showsParameters &&
				(claim.Spec.Devices.Requests[0].Exactly != nil || !w.faults.dropsAlternatives)
		}
		w.probes++ // the kubelet writes variables in any order
		lines := []string{"device=" + device, "claim=" + string(claim.UID), fmt.Sprint("parameters=",
			slices.ContainsFunc(claim.Spec.Devices.Config, applies))}
		return strings.Join(slices.Concat(lines[w.probes%3:], lines[:w.probes%3]), "\x00"), nil
	case w.faults.noMetadata:
		return "", errors.New("no such file")
	case w.faults.wrongMetadata:
		device = "other"
	}
	const dir = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/"
	if !strings.HasPrefix(command[1], dir+claim.Name+"/device/") {
		return "", errors.New("no such file")
	}
	return fmt.Sprintf(`{"requests":[{"devices":[{"driver":%q,"pool":%q,"name":%q}]}]}`, driverName, nodeName, device), nil
}

func (w *world) slice() *resourceapi.ResourceSlice {
	s, err := w.client.Tracker().Get(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), "", "slice-1")
	if err != nil {
		panic(err)
	}
	return s.(*resourceapi.ResourceSlice).DeepCopy()
}

// publish changes the slice.
func (w *world) publish(change func(*resourceapi.ResourceSlice)) {
	s := w.slice()
	change(s)
	gvr := resourceapi.SchemeGroupVersion.WithResource("resourceslices")
	if err := w.client.Tracker().Update(gvr, s, ""); err != nil {
		panic(err)
	}
}

// run is a command line.
func (w *world) run(_ context.Context, line string) error {
	sick := []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	switch line {
	case "sick":
		w.publish(func(s *resourceapi.ResourceSlice) {
			for i := range s.Spec.Devices {
				if i == 0 || w.faults.sickTaintsAll {
					s.Spec.Devices[i].Taints = sick
				}
			}
		})
		return nil
	case "well":
		w.publish(func(s *resourceapi.ResourceSlice) {
			for i := range s.Spec.Devices {
				if !w.faults.neverWell {
					s.Spec.Devices[i].Taints = nil
				}
			}
		})
		return nil
	}
	if line == "upgrade plugin" && w.faults.refusesInUpgrade {
		<-w.refused
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.faults.restartsContainers {
		for _, pod := range w.pods {
			pod.Status.ContainerStatuses[0].RestartCount++
			gvr := corev1.SchemeGroupVersion.WithResource("pods")
			if err := w.client.Tracker().Update(gvr, pod, pod.Namespace); err != nil {
				return err
			}
		}
	}
	if line == "restart kubelet" {
		return nil
	}
	w.publish(func(s *resourceapi.ResourceSlice) {
		switch {
		case w.faults.losesDevices:
			s.Spec.Devices = nil
		case w.faults.findsDevices:
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: "new"})
		case w.faults.rewritesSlices:
			s.ResourceVersion += "1"
		case w.faults.sickForgotten:
			s.Spec.Devices[0].Taints = nil
		}
	})
	if w.faults.forgetsOnRestart {
		w.plugin.mu.Lock()
		defer w.plugin.mu.Unlock()
		clear(w.plugin.prepared)
	}
	return nil
}

// taint evicts the pods of tainted devices.
func (w *world) taint() {
	if w.faults.ignoresTaint {
		return
	}
	for name, pod := range w.pods {
		_ = w.stop(name)
		_ = w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, name)
	}
}

// NodePrepareResources implements the kubelet's API.
func (p *plugin) NodePrepareResources(_ context.Context, in *drapb.NodePrepareResourcesRequest) (
	*drapb.NodePrepareResourcesResponse, error) {
	defer p.enter()()
	answer := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, claim := range in.Claims {
		if p.w.faults.answersOnce && len(answer.Claims) > 0 {
			break
		}
		devices, err := p.prepare(claim)
		one := &drapb.NodePrepareResourceResponse{Devices: devices}
		if err != nil {
			one.Error = err.Error()
		}
		answer.Claims[claim.Uid] = one
	}
	return answer, nil
}

// enter counts the calls that run.
func (p *plugin) enter() func() {
	p.mu.Lock()
	p.calls++
	p.mu.Unlock()
	if p.w.faults.exclusiveCalls {
		time.Sleep(10 * time.Millisecond) // others come meanwhile
	}
	p.mu.Lock()
	return func() { p.calls--; p.mu.Unlock() }
}

func (p *plugin) prepare(in *drapb.Claim) ([]*drapb.Device, error) {
	f := p.w.faults
	if f.refusesAll || p.crashed || f.exclusiveCalls && p.calls > 1 {
		return nil, errors.New("not now")
	}
	claim := p.w.claims().get(in.Name)
	if claim == nil || string(claim.UID) != in.Uid && !f.ignoresUID {
		return nil, errors.New("no such claim")
	}
	result := claim.Status.Allocation.Devices.Results[0]
	for _, config := range claim.Spec.Devices.Config {
		applies := slices.Contains(config.Requests, result.Request) ||
			slices.Contains(config.Requests, "device") && !f.dropsAlternatives
		if strings.Contains(string(config.Opaque.Parameters.Raw), "bad") && applies && !f.acceptsAll {
			p.crashed = f.crashesOnRefusal
			return nil, errors.New("bad parameters")
		}
		if f.refusesAll {
			return nil, errors.New("refused")
		}
	}
	_, prepared := p.prepared[in.Uid]
	switch {
	case prepared && f.prepareTwice:
		return nil, errors.New("already prepared")
	case !prepared && p.ever[in.Uid] && f.prepareAgain:
		return nil, errors.New("gone")
	}
	for uid, devices := range p.prepared {
		if f.leaks && uid != in.Uid && slices.Contains(devices, result.Device) {
			return nil, errors.New("in use by " + uid)
		}
	}
	p.prepared[in.Uid], p.ever[in.Uid] = []string{result.Device}, true
	device := &drapb.Device{RequestNames: []string{strings.Split(result.Request, "/")[0]}, PoolName: result.Pool,
		DeviceName: result.Device, CdiDeviceIds: []string{"example.com/device=" + in.Uid}}
	if !f.dropsShareID {
		device.ShareId = (*string)(result.ShareID)
	}
	if f.wrongDevice {
		device.DeviceName = "other"
	}
	if f.prepareTwiceOther {
		p.number++
		device.CdiDeviceIds[0] += fmt.Sprint(p.number)
	}
	if f.duplicateCDI {
		device.CdiDeviceIds = append(device.CdiDeviceIds, device.CdiDeviceIds[0])
	}
	if f.cdiName != "" {
		device.CdiDeviceIds = []string{f.cdiName}
	}
	if f.noCDIFile || prepared && f.trustsRecord {
		return []*drapb.Device{device}, nil
	}
	return []*drapb.Device{device}, os.WriteFile(p.file(in.Uid),
		fmt.Appendf(nil, `{"kind":"example.com/device","devices":[{"name":%q}]}`, in.Uid), 0o600)
}

func (p *plugin) file(uid string) string { return filepath.Join(p.w.cdi, uid+".json") }

// NodeUnprepareResources implements the kubelet's API.
func (p *plugin) NodeUnprepareResources(_ context.Context, in *drapb.NodeUnprepareResourcesRequest) (
	*drapb.NodeUnprepareResourcesResponse, error) {
	defer p.enter()()
	answer := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	f := p.w.faults
	for _, claim := range in.Claims {
		one := &drapb.NodeUnprepareResourceResponse{}
		_, prepared := p.prepared[claim.Uid]
		switch {
		case f.neverUnprepares && prepared, !prepared && (f.unprepareUnknown || f.forgetsOnRestart):
			one.Error = "not now"
		case f.unprepareNeedsAPI && p.w.claims().get(claim.Name) == nil:
			one.Error = "no such claim"
		default:
			delete(p.prepared, claim.Uid)
			if !f.keepsCDIFile {
				_ = os.Remove(p.file(claim.Uid))
			}
		}
		answer.Claims[claim.Uid] = one
	}
	return answer, nil
}

// NodeWatchResources implements the kubelet's API.
func (p *plugin) NodeWatchResources(_ *healthpb.NodeWatchResourcesRequest,
	stream grpc.ServerStreamingServer[healthpb.NodeWatchResourcesResponse]) error {
	d := &healthpb.DeviceHealth{Device: &healthpb.DeviceIdentifier{PoolName: nodeName, DeviceName: "dev-0"},
		Health: healthpb.HealthStatus_HEALTHY, LastUpdatedTime: 1}
	if p.w.faults.healthOfOthers {
		d.Device.DeviceName = "other"
	}
	message := &healthpb.NodeWatchResourcesResponse{Devices: []*healthpb.DeviceHealth{d}}
	if p.w.faults.emptyHealth {
		message.Devices = nil
	}
	if err := stream.Send(message); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// setSelector replaces the selector of the class, unless it is empty.
func (w *world) setSelector(t *testing.T, expression string) {
	t.Helper()
	if expression == "" {
		return
	}
	gvr := resourceapi.SchemeGroupVersion.WithResource("deviceclasses")
	object, err := w.client.Tracker().Get(gvr, "", driverName)
	must(t, err)
	class := object.(*resourceapi.DeviceClass).DeepCopy()
	class.Spec.Selectors[0].CEL.Expression = expression
	must(t, w.client.Tracker().Update(gvr, class, ""))
}
