// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// server is a remote device, and the pod that serves it.
type server struct {
	device   resourceapi.Device // as published, but for the taint of a lost server; only a name, if no more is known
	pod      *corev1.Pod        // nil: it is gone
	answered time.Time          // zero: never, or not since the device was lost; see spare
	admitted []types.UID        // claims, as it last answered
}

// lost reports whether claims cannot use the device.
func (s *server) lost(now time.Time) bool { return s.pod == nil || now.Sub(s.answered) >= patience }

// deviceName returns the name of the device that the pod serves. A new pod of the same name is another device. So is
// the pod after a restart of a container with the GPU, because what clients had on it is lost. If no container has a
// claim, all of them count.
func deviceName(pod *corev1.Pod) string {
	var with []string
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; len(c.Resources.Claims) > 0 {
			with = append(with, c.Name)
		}
	}
	return nameAfter(pod, func(container string) bool { return len(with) == 0 || slices.Contains(with, container) })
}

// publishedName is deviceName, unless version 0.1.0 has published the device. There restarts of all containers counted,
// and a device with another name would evict the clients.
func (c *Controller) publishedName(pod *corev1.Pod) string {
	if former := nameAfter(pod, func(string) bool { return true }); c.servers[former] != nil {
		return former
	}
	return deviceName(pod)
}

// nameAfter returns the name of the device after the restarts of these containers.
func nameAfter(pod *corev1.Pod, counts func(container string) bool) string {
	id := string(pod.UID)
	for _, c := range pod.Status.ContainerStatuses {
		if c.RestartCount > 0 && counts(c.Name) {
			id += fmt.Sprintf(" %s %d", c.Name, c.RestartCount)
		}
	}
	name := fmt.Sprintf("%s-%.4x", pod.Name, sha256.Sum256([]byte(id)))
	if len(validation.IsDNS1123Label(name)) > 0 || gpu.IsPart(name) {
		return fmt.Sprintf("server-%.4x", sha256.Sum256([]byte(id)))
	}
	return name
}

// refreshed is how often the local device of a server is read again.
const refreshed = 30 * time.Second

// offer is what a pod serves, or why it serves nothing.
type offer struct {
	device resourceapi.Device
	err    error
	at     time.Time // when it was read
}

// errRefused means that a pod serves nothing, whatever happens next.
var errRefused = errors.New("no GPU over the network")

// reader reads the slices of each node once.
type reader struct {
	*Controller
	nodes   map[string][]resourceapi.ResourceSlice
	serving map[types.UID]*corev1.Pod // pods of servers that run
}

// offerOf returns what the pod serves.
func (r *reader) offerOf(ctx context.Context, pod *corev1.Pod) (resourceapi.Device, error) {
	engine := pod.Labels[remote.ServerLabel]
	if _, err := remote.EngineOf(engine); err != nil {
		return resourceapi.Device{}, fmt.Errorf("%w: label %s: %w", errRefused, remote.ServerLabel, err)
	}
	link := pod.Annotations[remote.LinkAnnotation]
	gbps, err := strconv.ParseInt(link, 10, 32)
	if link != "" && (err != nil || gbps <= 0) {
		return resourceapi.Device{}, fmt.Errorf("%w: annotation %s: %q: want a positive number of Gbit/s", errRefused,
			remote.LinkAnnotation, link)
	}
	result, err := r.served(ctx, pod)
	if err != nil {
		return resourceapi.Device{}, err
	}
	local, err := r.local(ctx, pod.Spec.NodeName, result)
	if err != nil {
		return resourceapi.Device{}, err
	}
	d, err := remoteDevice(r.driver, local, result)
	if err != nil {
		return resourceapi.Device{}, err
	}
	d.Attributes[r.qualified("remoteNode")] = resourceapi.DeviceAttribute{
		StringValue: ptr.To(inventory.Truncate(pod.Spec.NodeName))}
	d.Attributes[r.qualified("remoteEngine")] = resourceapi.DeviceAttribute{StringValue: &engine}
	if gbps > 0 {
		d.Attributes[r.qualified("linkGbps")] = resourceapi.DeviceAttribute{IntValue: &gbps}
	}
	return d, nil
}

// served returns the one local device that the pod has.
func (r *reader) served(ctx context.Context, pod *corev1.Pod) (*resourceapi.DeviceRequestAllocationResult, error) {
	var all []resourceapi.DeviceRequestAllocationResult
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue
		}
		claim, err := r.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read claim %s: %w", *name, err)
		}
		users := claim.Status.ReservedFor
		if at := slices.IndexFunc(users, func(u resourceapi.ResourceClaimConsumerReference) bool {
			return r.serving[u.UID] != nil
		}); at >= 0 && users[at].UID != pod.UID {
			return nil, fmt.Errorf("%w: server pod %s has the same claim: give each one of its own", errRefused,
				users[at].Name)
		}
		for _, result := range cluster.Results(claim) {
			if result.Driver == r.driver {
				all = append(all, result)
			}
		}
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%w: its claims have %d devices of %s: want 1", errRefused, len(all), r.driver)
	}
	return &all[0], nil
}

// local returns the local device as published.
func (r *reader) local(ctx context.Context, node string,
	of *resourceapi.DeviceRequestAllocationResult) (*resourceapi.Device, error) {
	if _, read := r.nodes[node]; !read {
		list, err := r.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{ResourceVersion: "0",
			FieldSelector: fields.SelectorFromSet(fields.Set{resourceapi.ResourceSliceSelectorNodeName: node,
				resourceapi.ResourceSliceSelectorDriver: r.driver}).String()})
		if err != nil {
			return nil, fmt.Errorf("read the slices of node %s: %w", node, err)
		}
		r.nodes[node] = list.Items
	}
	for i := range r.nodes[node] {
		s := &r.nodes[node][i]
		if s.Spec.Driver != of.Driver || s.Spec.Pool.Name != of.Pool {
			continue
		}
		for j := range s.Spec.Devices {
			if s.Spec.Devices[j].Name == of.Device {
				return &s.Spec.Devices[j], nil
			}
		}
	}
	return nil, fmt.Errorf("device %s/%s is not published", of.Pool, of.Device)
}

// qualified returns the full name of an attribute of local devices.
func (c *Controller) qualified(name resourceapi.QualifiedName) resourceapi.QualifiedName {
	return resourceapi.QualifiedName(c.driver) + "/" + name
}

// text returns an attribute of a published device; empty: it has none.
func (c *Controller) text(s *server, attribute resourceapi.QualifiedName) string {
	return ptr.Deref(s.device.Attributes[c.qualified(attribute)].StringValue, "")
}

// ofPlace are attributes that say where a GPU is in its machine, which means nothing to pods on others. Those of
// Kubernetes also say that.
var ofPlace = []resourceapi.QualifiedName{"index", "minor", "nvlinkDomain", "fabricDomain", "iommuGroup"}

// remoteDevice returns what a claim that holds the result can serve of a local device: without name.
func remoteDevice(driver string, local *resourceapi.Device,
	held *resourceapi.DeviceRequestAllocationResult) (resourceapi.Device, error) {
	all := local.Capacity["memory"].Value
	memory := all.Value()
	consumed, shares := held.ConsumedCapacity["memory"], held.ConsumedCapacity["shares"]
	of := local.Capacity["shares"].Value
	switch {
	case consumed.Sign() > 0:
		memory = consumed.Value()
	case shares.Sign() > 0 && of.Sign() > 0:
		memory = memory / of.Value() * shares.Value()
	}
	if memory <= 0 {
		return resourceapi.Device{}, fmt.Errorf("device %s/%s has no memory", held.Pool, held.Device)
	}
	size, least := *resource.NewQuantity(memory, resource.BinarySI), resource.MustParse("1Mi")
	none := *resource.NewQuantity(0, resource.BinarySI)
	d := resourceapi.Device{
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			// A request without an amount has the device alone.
			"memory": {Value: size, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &size,
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &size}}},
			// For selectors that are written for local devices.
			resourceapi.QualifiedName(driver) + "/memory": {Value: size,
				RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &none,
					ValidValues: []resource.Quantity{none}}},
		},
		AllowMultipleAllocations: ptr.To(true),
		BindingConditions:        []string{remote.SessionReady},
		BindingFailureConditions: []string{remote.ServerLost},
	}
	for _, t := range local.Taints {
		t.TimeAdded = nil
		d.Taints = append(d.Taints, t)
	}
	for name, value := range local.Attributes {
		if !strings.Contains(string(name), "/") && !slices.Contains(ofPlace, name) {
			d.Attributes[resourceapi.QualifiedName(driver)+"/"+name] = value
		}
	}
	// The engine limits nobody's share.
	for name, value := range map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"remote":     {BoolValue: ptr.To(true)},
		"sharing":    {StringValue: ptr.To(gpu.Fractional.String())},
		"isolation":  {StringValue: ptr.To("none")},
		"sharedOnly": {BoolValue: ptr.To(false)},
	} {
		d.Attributes[resourceapi.QualifiedName(driver)+"/"+name] = value
	}
	return d, nil
}

// restore takes the devices that an earlier leader has published.
func (c *Controller) restore(ctx context.Context) error {
	list, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver,
			remote.Driver(c.driver)).String()})
	if err != nil {
		return fmt.Errorf("read the slices of %s: %w", remote.Driver(c.driver), err)
	}
	c.called = c.now()
	for i := range list.Items {
		if list.Items[i].Spec.Driver != remote.Driver(c.driver) {
			continue
		}
		for _, d := range list.Items[i].Spec.Devices {
			s := &server{device: d, answered: c.now()}
			s.device.Taints = slices.DeleteFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
				return t.Key == remote.ServerLostTaint(c.driver)
			})
			if len(s.device.Taints) < len(d.Taints) {
				s.answered = time.Time{}
			}
			c.servers[d.Name] = s
		}
	}
	return nil
}

// look reads which pods serve what. What it cannot read now, it reads in the next round.
func (c *Controller) look(ctx context.Context) error {
	var errs []error
	r := &reader{c, map[string][]resourceapi.ResourceSlice{}, map[types.UID]*corev1.Pod{}}
	for _, s := range c.servers {
		s.pod = nil
	}
	for _, pod := range c.pods() {
		if pod.Namespace == c.Namespace && pod.Labels[remote.ServerLabel] != "" && pod.DeletionTimestamp == nil &&
			pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" {
			r.serving[pod.UID] = pod
		}
	}
	for _, pod := range r.serving {
		o, known := c.offers[pod.UID]
		if !known || c.now().Sub(o.at) >= refreshed {
			device, err := r.offerOf(ctx, pod)
			if o.at = c.now(); err == nil || !known || errors.Is(err, errRefused) {
				o.device, o.err = device, err
			}
			c.offers[pod.UID] = o
		}
		o.device.Name = c.publishedName(pod)
		s := c.servers[o.device.Name]
		switch {
		case errors.Is(o.err, errRefused):
			text := o.err.Error()
			if s != nil { // somebody has edited a label or an annotation
				text += "; it stays published as it was"
			}
			errs = append(errs, c.tell(ctx, Events.ServerRefused, event.PodReference(pod), text))
		case o.err != nil: // an earlier leader may have published it
			errs = append(errs, fmt.Errorf("server pod %s: %w", pod.Name, o.err))
			delete(c.offers, pod.UID)
		case s == nil:
			s = &server{device: o.device}
			c.servers[o.device.Name] = s
		default:
			s.device = o.device
		}
		if s != nil {
			s.pod = pod
		}
	}
	maps.DeleteFunc(c.offers, func(uid types.UID, _ offer) bool { return r.serving[uid] == nil })
	return errors.Join(errs...)
}
