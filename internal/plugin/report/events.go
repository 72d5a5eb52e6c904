// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Events are all events of the plugin.
var Events = struct {
	PrepareFailed, ClaimWaiting, ShareNotEnforced, TimeSlicingIgnored, SharedMemoryReplaced, MPSDaemonRestarted,
	MPSServerFailed, MPSSingleUser, PartitionLost, DeviceUnhealthy, DeviceRecovered, DeviceNotice, ClaimIdle event.Kind

	ReleaseFailed, GPULost, FieldsDropped, NodeConfigRefused, NodeConfigWarning, ModeChangePending, ModeChanged,
	MIGBlocked, PassthroughRefused, PassthroughBlocked,
	RuntimeWithoutCDI, DevicePluginPresent, GPUUnhealthy, GPURecovered, GPUNotice event.Kind
}{
	PrepareFailed: event.Warning("PrepareFailed", "ResourceClaim",
		"the claim cannot be prepared on its node; the text says why, and the kubelet tries again"),
	ClaimWaiting: event.Warning("ClaimWaiting", "ResourceClaim",
		"preparing or releasing the claim has waited for more than 5 s, and goes on waiting; the text says for what"),
	ShareNotEnforced: event.Normal("ShareNotEnforced", "ResourceClaim",
		"nothing limits how much of a shared GPU the claim's containers use: the claim has a share and asks for "+
			"TimeSlicing, the node configuration of the GPU has `sharing: unlimited`, or the claim asks for limits of "+
			"MPS on a GPU that is older than Volta"),
	TimeSlicingIgnored: event.Normal("TimeSlicingIgnored", "ResourceClaim",
		"the claim has a partition and asks for TimeSlicing, which changes nothing: a partition has no time slices "+
			"to set"),
	SharedMemoryReplaced: event.Normal("SharedMemoryReplaced", "ResourceClaim",
		"a container with a share under MPS has an emptyDir at `/dev/shm`, which is not mounted: `/dev/shm` is the "+
			"memory of the MPS daemon, of the size `mps.sharedMemory`"),
	PartitionLost: event.Warning("PartitionLost", "ResourceClaim",
		"somebody has removed or replaced the partition of the claim; the device is tainted until the claim is "+
			"released, "+
			"and its pods must be deleted to get another one"),
	MPSDaemonRestarted: event.Warning("MPSDaemonRestarted", "ResourceClaim",
		"the MPS daemon through which the claim's containers use a GPU ended and was started again; their programs "+
			"must start again too"),
	MPSServerFailed: event.Warning("MPSServerFailed", "ResourceClaim",
		"a server of the MPS daemon through which the claim's containers use a GPU ended with an error, so that their "+
			"programs have failed or cannot start; the daemon starts another one for the next program"),
	MPSSingleUser: event.Normal("MPSSingleUser", "ResourceClaim",
		"NVIDIA's driver on the node is older than R555: its MPS daemon serves clients of one user ID at a time, and "+
			"those of others wait"),
	DeviceUnhealthy: event.Warning("DeviceUnhealthy", "ResourceClaim, Pod",
		"a GPU or partition of the claim is sick; the text says what happened, since when, what follows and what a "+
			"person can do"),
	DeviceRecovered: event.Normal("DeviceRecovered", "ResourceClaim, Pod",
		"what was wrong with a GPU or partition of the claim has ended; the text says why, and what is left"),
	DeviceNotice: event.Normal("DeviceNotice", "ResourceClaim",
		"a GPU of the claim reported something that does not make it sick, such as an error of a program on it"),
	ClaimIdle: event.Normal("ClaimIdle", "ResourceClaim",
		"no pod of the claim has used its GPU for the time of the chart's value idle.after"),
	ReleaseFailed: event.Warning("ReleaseFailed", "Node",
		"a claim cannot be released, perhaps because a container still runs with it; the text says why; "+
			"its devices stay taken, and the kubelet or the plugin tries again each minute"),
	GPULost: event.Warning("GPULost", "Node",
		"a GPU does not answer any more; it is tainted until it does"),
	FieldsDropped: event.Warning("FieldsDropped", "Node",
		"the API server lacks a feature gate; the text names it, and what the driver does without it"),
	NodeConfigRefused: event.Warning("NodeConfigRefused", "Node",
		"the node configuration has mistakes; the text names each with its line, and says what is in force instead"),
	NodeConfigWarning: event.Warning("NodeConfigWarning", "Node",
		"the node configuration is in force, except for parts that have no effect; the text names each with its line"),
	ModeChangePending: event.Normal("ModeChangePending", "Node",
		"the node configuration lets a GPU be used in another way as soon as the claims that hold it have ended; "+
			"the text names them, and both modes"),
	RuntimeWithoutCDI: event.Warning("RuntimeWithoutCDI", "Node",
		"according to its version, the container runtime of the node may not give containers their GPUs: it does not "+
			"know CDI, "+
			"or has it off, or looks for specs elsewhere; the text says what to do"),
	DevicePluginPresent: event.Warning("DevicePluginPresent", "Node",
		"a device plugin on the node offers GPUs of NVIDIA, perhaps the same ones, so that two pods may get one GPU; "+
			"remove it from the node"),
	GPUUnhealthy: event.Warning("GPUUnhealthy", "Node",
		"a GPU or a partition is sick and is tainted; the text says what happened, since when, until when it stays "+
			"tainted and what a person can do"),
	GPURecovered: event.Normal("GPURecovered", "Node",
		"what was wrong with a GPU has ended; the text says why, and what is left"),
	GPUNotice: event.Normal("GPUNotice", "Node",
		"a GPU reported something that keeps no claim away, such as an error of a program on it, or it was taken out"),
	MIGBlocked: event.Warning("MIGBlocked", "Node",
		"the MIG mode of a GPU cannot be changed, because somebody uses it or because it cannot be from here; "+
			"the text says who or why, and what needs the change is tainted meanwhile"),
	PassthroughRefused: event.Warning("PassthroughRefused", "Node",
		"the kernel has vfio-pci, and a GPU cannot be given to virtual machines; the text says why and what to do"),
	PassthroughBlocked: event.Warning("PassthroughBlocked", "Node",
		"a GPU cannot be given to virtual machines now, because somebody uses it or has it open; the text says who, "+
			"and its device for virtual machines is tainted meanwhile"),
	ModeChanged: event.Normal("ModeChanged", "Node",
		"a GPU may be used in another way from now on; the text names both modes"),
}

// ReporterConfig is the configuration of a Reporter.
type ReporterConfig struct {
	Driver string // its name
	Node   string
	Client kubernetes.Interface
	// Stopping is closed when the plugin stops; nil: never.
	Stopping <-chan struct{}
}

// Reporter writes events and the status of claims. It never blocks its callers.
type Reporter struct {
	ReporterConfig
	Calls    Calls // status of claims is written after them
	recorder events.EventRecorder
	statuses *statuses // what Prepare says of claims
	health   *statuses // what becomes of their devices
	idle     *statuses // whether these are used
}

// NewReporter returns a Reporter whose events are written until ctx ends.
func NewReporter(ctx context.Context, c ReporterConfig) *Reporter {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.Client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "No events will be written")
	}
	r := NewReporterTo(broadcaster.NewRecorder(scheme.Scheme, c.Driver), c)
	context.AfterFunc(ctx, r.shutDown)
	return r
}

// NewReporterTo returns a Reporter that writes its events to the recorder.
func NewReporterTo(recorder events.EventRecorder, c ReporterConfig) *Reporter {
	return &Reporter{ReporterConfig: c, recorder: recorder, statuses: newStatuses(c.Driver, statusPause, statusDelay),
		health: newStatuses(c.Driver+"/health", healthPause, healthDelay),
		idle:   newStatuses(c.Driver+"/idle", healthPause, healthDelay)}
}

// Waiting reports what the node waits for before it can prepare or release the claim.
func (r *Reporter) Waiting(claim sharing.Claim, cause error) {
	r.claim(Events.ClaimWaiting, claim, "Wait", "node %s waits: %v", r.ReporterConfig.Node, cause)
}

// DaemonRestarted reports that an MPS daemon of the claim was restarted, and that its clients have failed.
func (r *Reporter) DaemonRestarted(claim sharing.Claim, daemon string) {
	r.claim(Events.MPSDaemonRestarted, claim, "Share", "node %s: the MPS daemon of %s ended and was started again: "+
		"programs that used the GPU through it have failed and must start again", r.ReporterConfig.Node, daemon)
}

// ServerFailed reports that a server of the claim's MPS daemon has ended with an error. Clients decide what and how
// often, so failures of a daemon are counted in one event, with the first text, until there is none for some minutes.
func (r *Reporter) ServerFailed(claim sharing.Claim, daemon, what string) {
	r.emit(Events.MPSServerFailed, event.ClaimReference(claim.Namespace, claim.Name, claim.UID), "Share",
		"the MPS daemon of "+daemon, fmt.Sprintf("node %s: the MPS daemon of %s: %s: programs that use it have failed "+
			"or cannot start; its log on the node has more", r.ReporterConfig.Node, daemon, what))
}

// SingleUser reports that the MPS daemon of the claim serves one user ID at a time.
func (r *Reporter) SingleUser(claim sharing.Claim, daemon string) {
	r.claim(Events.MPSSingleUser, claim, "Share", "node %s: the MPS daemon of %s serves clients of one user ID at a "+
		"time, because NVIDIA's driver is older than R555: use the same runAsUser in all its containers",
		r.ReporterConfig.Node,
		daemon)
}

// PartitionLost reports that the partition of a claim is gone.
func (r *Reporter) PartitionLost(claim sharing.Claim, device string, p sharing.AssignedPartition) {
	r.claim(Events.PartitionLost, claim, "Partition", "node %s: somebody has removed the partition %s (%s, %s) of "+
		"this claim: "+
		"delete its pods, so that they get another one", r.ReporterConfig.Node, device, p.Profile, p.UUID)
}

// Notice is news about the node or a claim.
type Notice struct {
	Event event.Kind
	Text  string
	Claim sharing.Claim // if the event is about one
	// Conditions are those of all devices of the claim; nil: they stay.
	Conditions []DeviceCondition
}

// Write writes the event of the notice, and the conditions.
func (r *Reporter) Write(n Notice) {
	if n.Claim == (sharing.Claim{}) {
		r.Node(n.Event, n.Text)
		return
	}
	r.claim(n.Event, n.Claim, "Monitor", "node %s: %s", r.ReporterConfig.Node, n.Text)
	if n.Event == Events.DeviceUnhealthy || n.Event == Events.DeviceRecovered {
		go r.tellPods(n)
	}
	if n.Conditions != nil {
		r.Conditions(n.Claim, n.Conditions)
	}
}

// tellPods writes the event about the pods of the claim: their owners may not know its name.
func (r *Reporter) tellPods(n Notice) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	claim, err := r.Client.ResourceV1().ResourceClaims(n.Claim.Namespace).Get(ctx, n.Claim.Name, metav1.GetOptions{})
	if err != nil || claim.UID != n.Claim.UID {
		return // the event of the claim says it
	}
	for _, user := range claim.Status.ReservedFor {
		if user.Resource == "pods" {
			r.emit(n.Event, &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace,
				Name: user.Name, UID: user.UID}, "Monitor", n.Text, "node "+r.ReporterConfig.Node+": "+n.Text)
		}
	}
}

// Node writes an event about the node itself.
func (r *Reporter) Node(e event.Kind, text string) {
	r.emit(e, r.node(e.About), "Discover", text, text)
}

// claim writes an event about a claim.
func (r *Reporter) claim(e event.Kind, claim sharing.Claim, action, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.emit(e, event.ClaimReference(claim.Namespace, claim.Name, claim.UID), action, text, text)
}

// emit writes an event. client-go aggregates events that differ only in text, and keeps the first text. So emit puts a
// hash of the cause in the field path of the related object, the node: events with different causes stay apart.
func (r *Reporter) emit(e event.Kind, about *corev1.ObjectReference, action, cause, text string) {
	related := r.node("Node")
	sum := sha256.Sum256([]byte(event.Text(cause)))
	related.FieldPath = "event/" + hex.EncodeToString(sum[:4])
	r.recorder.Eventf(about, related, e.Type, e.Reason, action, "%s", event.Text(text))
}

// node returns the reference to the node.
func (r *Reporter) node(kind string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Name: r.ReporterConfig.Node,
		UID: types.UID(r.ReporterConfig.Node)}
}
