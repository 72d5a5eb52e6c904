// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// readyCondition is the condition of a device in status.devices of its claim.
const readyCondition = "Ready"

// Event is one that the plugin writes.
type Event struct {
	Reason  string
	Type    string // corev1.EventTypeWarning or EventTypeNormal
	About   string // the kind of object
	Meaning string // for docs/reference.md
}

// Events are all that there are.
var Events = struct {
	PrepareFailed, ShareNotEnforced, TimeSlicingIgnored, MPSDaemonRestarted, PartitionLost                                      Event
	GPULost, FieldsDropped, NodeConfigRefused, NodeConfigWarning, ModeChangePending, ModeChanged, MIGBlocked, RuntimeWithoutCDI Event
}{
	PrepareFailed: Event{"PrepareFailed", corev1.EventTypeWarning, "ResourceClaim",
		"the claim cannot be prepared on its node; the text says why, and the kubelet tries again"},
	ShareNotEnforced: Event{"ShareNotEnforced", corev1.EventTypeNormal, "ResourceClaim",
		"the claim has a share of a GPU and asks for TimeSlicing: the share is counted, and nothing keeps its containers within it"},
	TimeSlicingIgnored: Event{"TimeSlicingIgnored", corev1.EventTypeNormal, "ResourceClaim",
		"the claim has a partition and asks for TimeSlicing, which changes nothing: a partition has no time slices to set"},
	PartitionLost: Event{"PartitionLost", corev1.EventTypeWarning, "ResourceClaim",
		"somebody has removed or replaced the partition under the claim; the device is tainted until the claim is released, and its pods have to be deleted to get another one"},
	MPSDaemonRestarted: Event{"MPSDaemonRestarted", corev1.EventTypeWarning, "ResourceClaim",
		"the MPS daemon through which the claim's containers use a GPU ended and was started again; their programs have to start again, too"},
	GPULost: Event{"GPULost", corev1.EventTypeWarning, "Node",
		"a GPU does not answer any more; it is tainted until it does"},
	FieldsDropped: Event{"FieldsDropped", corev1.EventTypeWarning, "Node",
		"the API server lacks a feature gate and left out some of what describes the GPUs; the text names the gate"},
	NodeConfigRefused: Event{"NodeConfigRefused", corev1.EventTypeWarning, "Node",
		"the node configuration has mistakes; the text names each with its line, and says what is in force instead"},
	NodeConfigWarning: Event{"NodeConfigWarning", corev1.EventTypeWarning, "Node",
		"the node configuration is in force, except for parts that have no effect; the text names each with its line"},
	ModeChangePending: Event{"ModeChangePending", corev1.EventTypeNormal, "Node",
		"the node configuration lets a GPU be used in another way as soon as the claims that hold it have ended; the text names them, and both modes"},
	RuntimeWithoutCDI: Event{"RuntimeWithoutCDI", corev1.EventTypeWarning, "Node",
		"the container runtime of the node may not give containers their GPUs, as far as its version tells: CDI is not known to it or not on, or it looks for specs elsewhere; the text says what to do"},
	MIGBlocked: Event{"MIGBlocked", corev1.EventTypeWarning, "Node",
		"the MIG mode of a GPU cannot be changed, because somebody uses it or because it cannot be from here; the text says who or why, and what would need the change is tainted meanwhile"},
	ModeChanged: Event{"ModeChanged", corev1.EventTypeNormal, "Node",
		"a GPU may be used in another way from now on; the text names both modes"},
}

// reporter tells users what became of their claims: in status.devices, and in events. It never keeps the kubelet waiting.
type reporter struct {
	driver   string
	node     string
	client   kubernetes.Interface
	recorder events.EventRecorder

	queue workqueue.TypedRateLimitingInterface[types.UID]
	mu    sync.Mutex
	next  map[types.UID]*resourceapply.ResourceClaimApplyConfiguration // what a claim's status should say
}

func newReporter(ctx context.Context, c Config) *reporter {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.Client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "No events will be written")
	}
	r := &reporter{
		driver:   c.DriverName,
		node:     c.NodeName,
		client:   c.Client,
		recorder: broadcaster.NewRecorder(scheme.Scheme, c.DriverName),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, time.Minute)),
		next: map[types.UID]*resourceapply.ResourceClaimApplyConfiguration{},
	}
	context.AfterFunc(ctx, r.queue.ShutDown)
	return r
}

// run writes what is in the queue until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for {
		uid, ended := r.queue.Get()
		if ended {
			return
		}
		r.write(ctx, uid)
		r.queue.Done(uid)
	}
}

// write makes one attempt. The claim may be gone by now, which is fine.
func (r *reporter) write(ctx context.Context, uid types.UID) {
	r.mu.Lock()
	want := r.next[uid]
	r.mu.Unlock()
	if want == nil {
		return
	}
	_, err := r.client.ResourceV1().ResourceClaims(*want.Namespace).ApplyStatus(ctx, want, metav1.ApplyOptions{FieldManager: r.driver, Force: true})
	if err != nil && ctx.Err() == nil && !final(err) {
		klog.FromContext(ctx).V(2).Info("Status of claim not written, will be tried again", "claim", klog.KRef(*want.Namespace, *want.Name), "err", err)
		r.queue.AddRateLimited(uid)
		return
	}
	r.queue.Forget(uid)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next[uid] == want {
		delete(r.next, uid)
	}
}

// final says whether trying again cannot help: the claim is gone, or another one, or has lost its devices.
func final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

// maxNote is the longest text of an event that the API server takes, in bytes (events.k8s.io/v1).
const maxNote = 1024

// note cuts a text that is too long for an event.
func note(text string) string {
	if len(text) <= maxNote {
		return text
	}
	return strings.ToValidUTF8(text[:maxNote-len("…")], "") + "…"
}

// deviceData is what status.devices says of a device beside its condition.
type deviceData struct {
	UUID        gpu.UUID `json:"uuid,omitempty"`
	ProductName string   `json:"productName,omitempty"`
	Profile     string   `json:"profile,omitempty"` // of a partition
	CDIDevices  []string `json:"cdiDevices,omitempty"`
	// Limits are the variables that keep containers within their share; none: nothing does.
	Limits []string `json:"limits,omitempty"`
	// Settings of the GPU that were changed for the claim.
	Settings string `json:"settings,omitempty"`
}

// prepared reports the devices of a claim as ready, and as an event what its owner might not expect.
func (r *reporter) prepared(claim *resourceapi.ResourceClaim, rec checkpoint.Record, inv inventory.Inventory) {
	var devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration
	for i, g := range rec.Grants {
		device, _ := inv.Find(g.Device)
		data := deviceData{UUID: device.UUID, ProductName: device.Product.Name, CDIDevices: g.CDI}
		a := rec.Plan.Assignments[i]
		data.Limits = a.Limits()
		if p := a.Partition; p != nil {
			data.UUID, data.Profile = p.UUID, p.Profile
		} else if a.ChangesHardware() {
			data.Settings = a.Settings.String()
		}
		raw, err := json.Marshal(data)
		if err != nil {
			continue // strings always marshal
		}
		devices = append(devices, r.status(g.Pool, g.Device, g.ShareID, metav1.ConditionTrue, "Prepared", "").
			WithData(runtime.RawExtension{Raw: raw}))
		if a.Unenforced {
			r.claim(Events.ShareNotEnforced, rec.Claim, "Prepare",
				"request %s: the share of %s is counted and not enforced, because the claim asks for TimeSlicing", a.Request, a.Device)
		}
		if a.Unsliced {
			r.claim(Events.TimeSlicingIgnored, rec.Claim, "Prepare",
				"request %s: %s is a partition and has no time slices to set: TimeSlicing changes nothing", a.Request, a.Device)
		}
	}
	r.enqueue(claim, devices)
}

// failed reports why the devices of a claim are not ready, and as an event what its owner can act on.
func (r *reporter) failed(claim *resourceapi.ResourceClaim, cause error) {
	r.claim(Events.PrepareFailed, sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}, "Prepare",
		"%s", note("node "+r.node+": "+cause.Error()))
	if claim.Status.Allocation == nil {
		return
	}
	var devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != r.driver {
			continue
		}
		var share types.UID
		if result.ShareID != nil {
			share = *result.ShareID
		}
		devices = append(devices, r.status(result.Pool, result.Device, share, metav1.ConditionFalse, Events.PrepareFailed.Reason, cause.Error()))
	}
	r.enqueue(claim, devices)
}

// daemonRestarted reports to the owner of a claim what has happened under its containers.
func (r *reporter) daemonRestarted(claim sharing.Claim, daemon string) {
	r.claim(Events.MPSDaemonRestarted, claim, "Share",
		"node %s: the MPS daemon of %s ended and was started again: programs that used the GPU through it have failed and have to start again", r.node, daemon)
}

// partitionLost reports to the owner of a claim that its partition is gone.
func (r *reporter) partitionLost(claim sharing.Claim, device string, p sharing.Partition) {
	r.claim(Events.PartitionLost, claim, "Partition",
		"node %s: somebody has removed the partition %s (%s, %s) under this claim: delete its pods, so that they get another one", r.node, device, p.Profile, p.UUID)
}

// claim reports something about a claim. The reference has no resource version: what lasts is counted in one event, however often the
// claim is written meanwhile.
func (r *reporter) claim(e Event, claim sharing.Claim, action, format string, args ...any) {
	about := &corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: e.About,
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	r.recorder.Eventf(about, nil, e.Type, e.Reason, action, format, args...)
}

// machine reports something about the node itself.
func (r *reporter) machine(e Event, format string, args ...any) {
	r.recorder.Eventf(r.self(e), nil, e.Type, e.Reason, "Discover", format, args...)
}

// device reports something about one device of the node. Events that differ in their text alone are counted as one, with the text of
// the first: what they are related to keeps those of several devices apart.
func (r *reporter) device(e Event, device, format string, args ...any) {
	related := r.self(e)
	related.FieldPath = device
	r.recorder.Eventf(r.self(e), related, e.Type, e.Reason, "Discover", format, args...)
}

// self is the node as an event is about it.
func (r *reporter) self(e Event) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: e.About, Name: r.node, UID: types.UID(r.node)}
}

func (r *reporter) status(pool, device string, share types.UID, ready metav1.ConditionStatus, reason, message string) *resourceapply.AllocatedDeviceStatusApplyConfiguration {
	status := resourceapply.AllocatedDeviceStatus().WithDriver(r.driver).WithPool(pool).WithDevice(device).WithConditions(
		metaapply.Condition().WithType(readyCondition).WithStatus(ready).WithReason(reason).WithMessage(message).WithLastTransitionTime(metav1.Now()))
	if share != "" {
		status.WithShareID(string(share))
	}
	return status
}

func (r *reporter) enqueue(claim *resourceapi.ResourceClaim, devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration) {
	if len(devices) == 0 {
		return
	}
	want := resourceapply.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).
		WithStatus(resourceapply.ResourceClaimStatus().WithDevices(devices...))
	r.mu.Lock()
	r.next[claim.UID] = want
	r.mu.Unlock()
	r.queue.Add(claim.UID)
}
