// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// readyCondition is the type of the device condition in a claim's status.devices.
const readyCondition = "Ready"

// Pods that start come first: a status is written once no call of the kubelet has run for the pause, and at the latest
// after the delay. In statusPause the containers of several pods start. The work of the API server and the disk for the
// status of their claims would delay them. Errors of Prepare do not wait, and nothing waits while the plugin stops.
const (
	statusPause = 3 * time.Second
	statusDelay = 15 * time.Second
	healthPause = 20 * time.Millisecond
	healthDelay = time.Second
)

// statuses are the pending updates of claim statuses, and their queue.
type statuses struct {
	manager string // of the fields that are written
	pause   time.Duration
	delay   time.Duration
	queue   workqueue.TypedRateLimitingInterface[types.UID]
	mu      sync.Mutex
	next    map[types.UID]update
}

// update is a pending update of a claim's status.
type update struct {
	want  *resourceapply.ResourceClaimApplyConfiguration
	since time.Time // when it was enqueued; zero: it is written at once, also if the claim is released
}

func newStatuses(manager string, pause, delay time.Duration) *statuses {
	return &statuses{
		manager: manager, pause: pause, delay: delay,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, time.Minute)),
		next: map[types.UID]update{},
	}
}

// all returns all updates.
func (r *Reporter) all() []*statuses { return []*statuses{r.statuses, r.health, r.idle} }

func (r *Reporter) shutDown() {
	for _, s := range r.all() {
		s.queue.ShutDown()
	}
}

// Run writes the status of claims until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range r.all() {
		all.Go(func() { s.run(ctx, r) })
	}
	select {
	case <-r.Stopping:
		for _, s := range r.all() {
			s.hurry()
		}
	case <-ctx.Done():
	}
	all.Wait()
}

// hurry queues what is left to be written.
func (s *statuses) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.next {
		s.queue.Add(uid)
	}
}

// Flush waits until no status is left to be written, at most for the timeout.
func (r *Reporter) Flush(timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	for slices.ContainsFunc(r.all(), (*statuses).pending) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *statuses) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.next) > 0
}

func (s *statuses) run(ctx context.Context, r *Reporter) {
	for {
		uid, ended := s.queue.Get()
		if ended {
			return
		}
		if left := s.left(uid, r); left > 0 {
			s.queue.AddAfter(uid, left)
		} else {
			s.write(ctx, r.Client, uid)
		}
		s.queue.Done(uid)
	}
}

// left returns how long the update of the claim waits at least.
func (s *statuses) left(uid types.UID, r *Reporter) time.Duration {
	select {
	case <-r.Stopping:
		return 0
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(r.Calls.Left(s.pause), time.Until(s.next[uid].since.Add(s.delay)))
}

// write tries once to update the status. It ignores claims that are gone.
func (s *statuses) write(ctx context.Context, client kubernetes.Interface, uid types.UID) {
	s.mu.Lock()
	want := s.next[uid].want
	s.mu.Unlock()
	if want == nil { // the claim was released
		s.queue.Forget(uid)
		return
	}
	claims := client.ResourceV1().ResourceClaims(*want.Namespace)
	_, err := claims.ApplyStatus(ctx, want, metav1.ApplyOptions{FieldManager: s.manager, Force: true})
	if err != nil && ctx.Err() == nil && !isPermanent(err) {
		klog.FromContext(ctx).V(2).Info("Status of claim not written, will be tried again",
			"claim", klog.KRef(*want.Namespace, *want.Name), "err", err)
		s.queue.AddRateLimited(uid)
		return
	}
	s.queue.Forget(uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next[uid].want == want {
		delete(s.next, uid)
	}
}

// isPermanent reports whether a retry cannot help: the claim is gone, was replaced, or was deallocated.
func isPermanent(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

// deviceData is the data of a device in status.devices.
type deviceData struct {
	UUID        gpu.UUID `json:"uuid,omitempty"`
	ProductName string   `json:"productName,omitempty"`
	Profile     string   `json:"profile,omitempty"` // only of a partition
	CDIDevices  []string `json:"cdiDevices,omitempty"`
	// Limits are the environment variables that limit containers to their share; none: nothing does.
	Limits []string `json:"limits,omitempty"`
	// Settings are the GPU settings that were changed for the claim.
	Settings string `json:"settings,omitempty"`
}

// Prepared marks the devices of a claim as ready. It writes an event where the result may surprise the claim's owner.
func (r *Reporter) Prepared(claim *resourceapi.ResourceClaim, rec checkpoint.PreparedClaim, inv inventory.Inventory) {
	var devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration
	for _, a := range rec.Plan.Assignments {
		device, _ := inv.Find(a.Device)
		data := deviceData{UUID: device.UUID, ProductName: device.Product.Name, CDIDevices: a.CDI, Limits: a.Limits()}
		if p := a.Partition; p != nil {
			data.UUID, data.Profile = p.UUID, p.Profile
		} else if a.ChangesHardware() {
			data.Settings = a.Settings.String()
		}
		raw, err := json.Marshal(data)
		if err != nil {
			continue // strings always marshal
		}
		devices = append(devices, r.readyStatus(claim, DeviceCondition{Pool: a.Pool, Device: a.Device,
			ShareID: a.ShareID, Status: metav1.ConditionTrue, Reason: "Prepared"}).
			WithData(runtime.RawExtension{Raw: raw}))
		r.tellOf(rec.Claim, a, device)
	}
	since := time.Now()
	if r.toldOfFailure(claim) {
		since = time.Time{} // what it says is wrong now
	}
	r.enqueue(claim, devices, since)
}

// tellOf writes events about what the claim gets in another way than it may expect.
func (r *Reporter) tellOf(claim sharing.Claim, a sharing.Assignment, device gpu.Device) {
	switch {
	case a.Unenforced && device.Use.Sharing == gpu.Unlimited:
		r.claim(Events.ShareNotEnforced, claim, "Prepare",
			"request %s: any number of claims may use %s, and nothing limits what each of them uses, because its "+
				"node configuration has sharing: unlimited", a.Request, a.Device)
	case a.Unenforced && a.MPS != nil:
		r.claim(Events.ShareNotEnforced, claim, "Prepare",
			"request %s: the limits of MPS are not enforced on %s (%s), because GPUs have them from Volta on",
			a.Request, a.Device, device.Product.Name)
	case a.Unenforced:
		r.claim(Events.ShareNotEnforced, claim, "Prepare",
			"request %s: the share of %s is counted and not enforced, because the claim asks for TimeSlicing",
			a.Request, a.Device)
	}
	for _, container := range a.Unmounted {
		r.claim(Events.SharedMemoryReplaced, claim, "Prepare", "container %s: its own volume at /dev/shm is "+
			"not mounted: under MPS, /dev/shm is the memory of the MPS daemon of %s, which all of its containers "+
			"share (mps.sharedMemory of the chart)", container, a.Device)
	}
	if a.Unsliced {
		r.claim(Events.TimeSlicingIgnored, claim, "Prepare",
			"request %s: %s is a partition and has no time slices to set: TimeSlicing changes nothing", a.Request,
			a.Device)
	}
}

// toldOfFailure reports whether the status of the claim says that a device is not ready, or is about to.
func (r *Reporter) toldOfFailure(claim *resourceapi.ResourceClaim) bool {
	return r.statuses.hurried(claim.UID) || slices.ContainsFunc(claim.Status.Devices,
		func(d resourceapi.AllocatedDeviceStatus) bool {
			return d.Driver == r.Driver && meta.IsStatusConditionFalse(d.Conditions, readyCondition)
		})
}

// Failed marks the devices of a claim as not ready, and writes an event.
func (r *Reporter) Failed(claim *resourceapi.ResourceClaim, cause error) {
	r.claim(Events.PrepareFailed, sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		"Prepare",
		"node %s: %v", r.ReporterConfig.Node, cause)
	if claim.Status.Allocation == nil {
		return
	}
	var devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != r.Driver {
			continue
		}
		devices = append(devices, r.readyStatus(claim, DeviceCondition{Pool: result.Pool, Device: result.Device,
			ShareID: ptr.Deref(result.ShareID, ""), Status: metav1.ConditionFalse,
			Reason: Events.PrepareFailed.Reason, Message: cause.Error()}))
	}
	r.enqueue(claim, devices, time.Time{})
}

// Released drops what waits to be written about a claim: its devices are not its own any more. Why Prepare has failed
// is written.
func (r *Reporter) Released(claim types.UID) {
	for _, s := range r.all() {
		s.drop(claim)
	}
}

// readyStatus returns the entry of a device with the condition Ready, since its status was last another one.
func (r *Reporter) readyStatus(claim *resourceapi.ResourceClaim,
	ready DeviceCondition) *resourceapply.AllocatedDeviceStatusApplyConfiguration {
	ready.Since = time.Now()
	for _, d := range claim.Status.Devices {
		if d.Driver != r.Driver || d.Pool != ready.Pool || d.Device != ready.Device ||
			string(ready.ShareID) != ptr.Deref(d.ShareID, "") {
			continue
		}
		before := meta.FindStatusCondition(d.Conditions, readyCondition)
		if before != nil && before.Status == ready.Status {
			ready.Since = before.LastTransitionTime.Time
		}
	}
	return r.deviceStatus(readyCondition, ready)
}

// deviceStatus returns the entry of a device for status.devices, with a condition of this type.
func (r *Reporter) deviceStatus(conditionType string,
	c DeviceCondition) *resourceapply.AllocatedDeviceStatusApplyConfiguration {
	status := resourceapply.AllocatedDeviceStatus().WithDriver(r.Driver).WithPool(c.Pool).WithDevice(c.Device).
		WithConditions(metaapply.Condition().WithType(conditionType).WithStatus(c.Status).WithReason(c.Reason).
			WithMessage(c.Message).WithLastTransitionTime(metav1.NewTime(c.Since)))
	if c.ShareID != "" {
		status.WithShareID(string(c.ShareID))
	}
	return status
}

func (r *Reporter) enqueue(claim *resourceapi.ResourceClaim,
	devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration, since time.Time) {
	r.statuses.enqueue(r, sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}, devices, since)
}

// enqueue replaces the pending update of the claim.
func (s *statuses) enqueue(r *Reporter, claim sharing.Claim,
	devices []*resourceapply.AllocatedDeviceStatusApplyConfiguration, since time.Time) {
	if len(devices) == 0 {
		return
	}
	want := resourceapply.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).
		WithStatus(resourceapply.ResourceClaimStatus().WithDevices(devices...))
	s.mu.Lock()
	s.next[claim.UID] = update{want, since}
	s.mu.Unlock()
	s.queue.AddAfter(claim.UID, s.left(claim.UID, r)) // run would only wait when it is woken before
}

// hurried reports whether an update of the claim is to be written at once.
func (s *statuses) hurried(claim types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, pending := s.next[claim]
	return pending && u.since.IsZero()
}

// drop forgets the update of the claim, unless it is to be written at once.
func (s *statuses) drop(claim types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.next[claim].since.IsZero() {
		delete(s.next, claim)
	}
}
