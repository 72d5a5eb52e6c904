// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// round brings the servers, the pool and the status of claims up to date.
func (c *Controller) round(ctx context.Context) error {
	class, ok := c.view.Class(remote.Driver(c.driver))
	if !ok {
		return fmt.Errorf("there is no DeviceClass %s, which owns the pool", remote.Driver(c.driver))
	}
	issuer, err := c.authority(ctx, class)
	if err != nil {
		return err
	}
	c.mu.Lock()
	claims := maps.Clone(c.claims)
	c.mu.Unlock()
	errs := []error{c.look(ctx)}
	held := c.held(claims)
	errs = append(errs, c.admit(ctx, class, issuer, held, claims))
	errs = append(errs, c.publish(ctx, class, c.devices(held)))
	sessions := map[types.UID]session{}
	for _, uid := range slices.Sorted(maps.Keys(claims)) {
		errs = append(errs, c.report(ctx, claims[uid]))
		if s := c.servers[c.results(claims[uid])[0].Device]; s.pod != nil && slices.Contains(s.admitted, uid) {
			sessions[uid] = session{s.pod.UID, issuer}
		}
	}
	maps.DeleteFunc(c.told, func(uid types.UID, _ string) bool { return claims[uid] == nil })
	c.mu.Lock()
	c.sessions = sessions
	c.mu.Unlock()
	trigger(c.signed)
	c.measure(held)
	return errors.Join(errs...)
}

// refusal says why the claim gets no session; empty: it gets one.
func (c *Controller) refusal(claim *resourceapi.ResourceClaim) string {
	all := c.results(claim)
	if len(all) > 1 {
		return fmt.Sprintf("the claim has %d GPUs over the network: a claim may have one", len(all))
	}
	if ptr.Deref(all[0].AdminAccess, false) {
		return "the claim has admin access, which a GPU over the network does not give"
	}
	return ""
}

// held returns the claims of each device, sorted, also those that get no session.
func (c *Controller) held(claims map[types.UID]*resourceapi.ResourceClaim) map[string][]types.UID {
	held := map[string][]types.UID{}
	for _, uid := range slices.Sorted(maps.Keys(claims)) {
		for _, r := range c.results(claims[uid]) {
			if !slices.Contains(held[r.Device], uid) {
				held[r.Device] = append(held[r.Device], uid)
			}
		}
	}
	return held
}

// admit tells all servers which claims they serve. If it reaches none of them, it spares those that are ready.
func (c *Controller) admit(ctx context.Context, class *resourceapi.DeviceClass, issuer remote.Authority,
	held map[string][]types.UID, claims map[types.UID]*resourceapi.ResourceClaim) error {
	if err := c.caller.renew(issuer, c.now()); err != nil {
		return err
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	reached := false
	for name, s := range c.servers {
		if s.pod == nil {
			continue
		}
		wanted := []types.UID{}
		for _, uid := range held[name] {
			if c.refusal(claims[uid]) == "" {
				wanted = append(wanted, uid)
			}
		}
		all.Go(func() {
			answer, err := c.caller.put(ctx, s.pod, wanted)
			if err == nil {
				s.answered, s.admitted = c.now(), answer
			}
			mu.Lock()
			defer mu.Unlock()
			var unanswered *url.Error // also an error status is an answer
			reached = reached || !errors.As(err, &unanswered)
			if err != nil {
				errs = append(errs, fmt.Errorf("server pod %s: %w", s.pod.Name, err))
			}
		})
	}
	all.Wait()
	if !reached {
		errs = append(errs, c.spare(ctx, class))
	}
	c.called = c.now()
	return errors.Join(errs...)
}

// spare lets servers whose pods are ready count as if they had answered. No server was reached, so it is likely the
// controller's own node or network that fails. It leaves alone servers that never answered or were lost before, and a
// single server, because no other one bears that out.
func (c *Controller) spare(ctx context.Context, class *resourceapi.DeviceClass) error {
	var known, spared []*server
	for _, s := range c.servers {
		if s.lost(c.called) {
			continue
		}
		known = append(known, s)
		if cluster.Ready(s.pod) {
			spared = append(spared, s)
		}
	}
	if len(known) < 2 || len(spared) == 0 {
		return nil
	}
	for _, s := range spared {
		s.answered = c.now()
	}
	return c.tell(ctx, Events.ServersUnreachable, event.ClassReference(class),
		"the controller reaches no server; devices of server pods that are ready are not lost meanwhile")
}

// devices returns what is published, sorted by name: what can be used, and what is lost while claims hold it. It
// forgets the others.
func (c *Controller) devices(held map[string][]types.UID) []resourceapi.Device {
	for name := range held {
		if c.servers[name] == nil {
			c.servers[name] = &server{device: resourceapi.Device{Name: name, AllowMultipleAllocations: ptr.To(true)}}
		}
	}
	maps.DeleteFunc(c.servers, func(name string, s *server) bool { return s.pod == nil && len(held[name]) == 0 })
	var all []resourceapi.Device
	for _, name := range slices.Sorted(maps.Keys(c.servers)) {
		s := c.servers[name]
		switch d := *s.device.DeepCopy(); {
		case !s.lost(c.now()):
			all = append(all, d)
		case len(held[name]) > 0:
			// The CUDA contexts are gone, so the pods must start again elsewhere.
			d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: remote.ServerLostTaint(c.driver),
				Effect: resourceapi.DeviceTaintEffectNoExecute})
			all = append(all, d)
		}
	}
	return all
}

// The states of a device in metrics.
const (
	free      = "free"
	allocated = "allocated"
	lost      = "lost"
)

// measure exports the published devices. A scrape meanwhile finds all numbers, each old or new.
func (c *Controller) measure(held map[string][]types.UID) {
	counts := map[[3]string]float64{}
	for of := range c.measured {
		counts[of] = 0
	}
	for name, s := range c.servers {
		state := free
		switch {
		case s.lost(c.now()) && len(held[name]) == 0:
			continue // it is not published
		case s.lost(c.now()):
			state = lost
		case len(held[name]) > 0:
			state = allocated
		}
		node := c.text(s, "remoteNode")
		if s.pod != nil { // the attribute may lack the end of the name
			node = s.pod.Spec.NodeName
		}
		counts[[3]string{node, c.text(s, "productName"), state}]++
	}
	for of, count := range counts {
		if count > 0 {
			c.gpus.WithLabelValues(of[:]...).Set(count)
			continue
		}
		c.gpus.DeleteLabelValues(of[:]...)
		delete(counts, of)
	}
	c.measured = counts
}

const (
	// callTimeout is how long a server may take for an answer.
	callTimeout = 3 * time.Second
	// callerLifetime is that of the certificate for calls. It is renewed after half of it.
	callerLifetime = 24 * time.Hour
)

// caller calls servers with the certificate of the controller.
type caller struct {
	address func(*corev1.Pod) string
	client  *http.Client
	trusted []byte // the authority that has issued the certificate
	since   time.Time
}

// address returns where a server listens.
func address(pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(remote.ServerPort))
}

// renew makes a certificate, if there is none that is good.
func (c *caller) renew(issuer remote.Authority, now time.Time) error {
	trusted, _ := issuer.PEM()
	if c.client != nil && bytes.Equal(c.trusted, trusted) && now.Sub(c.since) < callerLifetime/2 {
		return nil
	}
	config, err := issuer.Controller(callerLifetime)
	if err != nil {
		return fmt.Errorf("make the controller's certificate: %w", err)
	}
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
	c.client = &http.Client{Timeout: callTimeout, Transport: &http.Transport{TLSClientConfig: config}}
	c.trusted, c.since = trusted, now
	return nil
}

// put replaces the sessions of a server, and returns those that it has then.
func (c *caller) put(ctx context.Context, pod *corev1.Pod, claims []types.UID) ([]types.UID, error) {
	body, err := json.Marshal(remote.SessionList{Claims: claims})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://"+c.address(pod)+remote.SessionsPath,
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", request.Method, request.URL, response.Status)
	}
	var answer remote.SessionList
	err = json.NewDecoder(response.Body).Decode(&answer)
	return answer.Claims, err
}

// publisher publishes the pool.
type publisher struct {
	client     kubernetes.Interface
	driver     string
	owner      types.UID
	tell       func(context.Context, event.Kind, *corev1.ObjectReference, string) error
	controller *resourceslice.Controller // nil: nothing is published yet
}

// clients selects the nodes whose pods can use remote devices.
func clients() *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: remote.ClientLabel,
			Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}}}}}}
}

// perSlice is the most devices of a slice with taints.
const perSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// publish publishes the devices. The class owns the slices, so that they are deleted with it.
func (p *publisher) publish(ctx context.Context, class *resourceapi.DeviceClass, devices []resourceapi.Device) error {
	pool := resourceslice.Pool{NodeSelector: clients()}
	for part := range slices.Chunk(devices, perSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: part})
	}
	if len(pool.Slices) == 0 {
		pool.Slices = []resourceslice.Slice{{}}
	}
	resources := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{remote.Pool: pool}}
	if p.controller != nil && p.owner == class.UID {
		p.controller.Update(resources)
		return nil
	}
	p.controller.Stop()
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{DriverName: p.driver,
		KubeClient: p.client, Resources: resources, Owner: &resourceslice.Owner{
			APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass", Name: class.Name,
			UID: class.UID}, ErrorHandler: func(ctx context.Context, err error, msg string) {
			utilruntime.HandleErrorWithContext(ctx, err, msg)
			if why := refused(err); why != "" {
				if err := p.tell(ctx, Events.SliceRefused, event.ClassReference(class), why); err != nil {
					utilruntime.HandleErrorWithContext(ctx, err, "Event not written")
				}
			}
		}})
	p.controller, p.owner = controller, class.UID
	return err
}

// refused says why the API server does not store a slice as it is; empty: the error is another one. The text does not
// have the name of the slice, which is another one in each attempt to create it.
func refused(err error) string {
	var dropped *resourceslice.DroppedFieldsError
	if errors.As(err, &dropped) {
		return dropped.Error()
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return ""
	}
	var causes []string
	for _, cause := range status.Status().Details.Causes {
		causes = append(causes, cause.Field+": "+cause.Message)
	}
	return "a slice is refused: " + strings.Join(causes, "; ")
}
