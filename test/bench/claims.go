// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// gpu and monitor return allocation results: the whole GPU with that number, and the monitor device.
func (b *bench) gpu(number int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: b.node,
		Device: b.gpus[number%len(b.gpus)]}
}

func (b *bench) monitor() resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver,
		Pool: inventory.MonitorPool(b.node), Device: inventory.Monitor,
		AdminAccess: ptr.To(true), ShareID: ptr.To(uuid.NewUUID())}
}

// fraction returns the result of a share of the GPU with that number. Five of them fill the GPU.
func (b *bench) fraction(number int) resourceapi.DeviceRequestAllocationResult {
	result := b.gpu(number)
	result.ShareID = ptr.To(uuid.NewUUID())
	result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		"memory": *resource.NewQuantity(5<<30, resource.BinarySI), "cores": *resource.NewQuantity(20,
			resource.DecimalSI)}
	return result
}

// longTimeSlice returns a claim configuration with the long time slice.
func longTimeSlice() []resourceapi.DeviceAllocationConfiguration {
	const config = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	return []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(config)}}},
	}}
}

// allocated creates a claim for each result, with the status that the scheduler would write, and returns them as the
// kubelet's messages.
func (b *bench) allocated(ctx context.Context, results ...resourceapi.DeviceRequestAllocationResult) ([]*drapb.Claim,
	error) {
	return b.configured(ctx, nil, results...)
}

// configured is allocated with a configuration in each claim.
func (b *bench) configured(ctx context.Context, config []resourceapi.DeviceAllocationConfiguration,
	results ...resourceapi.DeviceRequestAllocationResult) ([]*drapb.Claim, error) {
	claims := make([]*drapb.Claim, len(results))
	err := atOnce(len(results), 4, func(i int) (err error) {
		claims[i], err = b.allocate(ctx, resourceapi.DeviceAllocationResult{Results: results[i : i+1], Config: config})
		return err
	})
	return claims, err
}

func (b *bench) allocate(ctx context.Context, devices resourceapi.DeviceAllocationResult) (*drapb.Claim, error) {
	result := devices.Results[0]
	class := result.Driver
	if result.Device == inventory.Monitor {
		class = "monitor." + driver
	}
	claim, err := b.claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name:    request,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AdminAccess: result.AdminAccess},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create a claim: %w", err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: devices,
		// Without the selector the driver may not write the claim's status.
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{b.node}}}}}},
	}
	if _, err := b.claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("allocate claim %s: %w", claim.Name, err)
	}
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}, nil
}

// prepare calls the plugin as the kubelet does and returns the duration of the call.
func (b *bench) prepare(ctx context.Context, claims ...*drapb.Claim) (time.Duration, error) {
	return prepareOn(ctx, b.kubelet, claims...)
}

// eachInTurn prepares and unprepares one claim after the other, and returns the times of the prepare calls. It calls
// rest after each claim.
func (b *bench) eachInTurn(ctx context.Context, claims []*drapb.Claim, rest func() error) (took samples, err error) {
	for _, claim := range claims {
		t, err := b.prepare(ctx, claim)
		if err != nil {
			return nil, err
		}
		took = append(took, t)
		if _, err := b.unprepare(ctx, claim); err != nil {
			return nil, err
		}
		if err := rest(); err != nil {
			return nil, err
		}
	}
	return took, nil
}

func prepareOn(ctx context.Context, plugin drapb.DRAPluginClient, claims ...*drapb.Claim) (time.Duration, error) {
	begin := time.Now()
	answer, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("prepare: %w", err)
	}
	for _, claim := range claims {
		switch got := answer.Claims[claim.Uid]; {
		case got.GetError() != "":
			return 0, fmt.Errorf("prepare %s: %s", claim.Name, got.Error)
		case len(got.GetDevices()) != 1:
			return 0, fmt.Errorf("prepare %s: got %d devices, want 1", claim.Name, len(got.GetDevices()))
		}
	}
	return took, nil
}

func (b *bench) unprepare(ctx context.Context, claims ...*drapb.Claim) (time.Duration, error) {
	return unprepareOn(ctx, b.kubelet, claims...)
}

func unprepareOn(ctx context.Context, plugin drapb.DRAPluginClient, claims ...*drapb.Claim) (time.Duration, error) {
	begin := time.Now()
	answer, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("unprepare: %w", err)
	}
	for _, claim := range claims {
		if got := answer.Claims[claim.Uid]; got == nil || got.Error != "" {
			return 0, fmt.Errorf("unprepare %s: %s", claim.Name, got.GetError())
		}
	}
	return took, nil
}

// get reads the claim from the API server, as the plugin does before it prepares it.
func (b *bench) get(ctx context.Context, claim *drapb.Claim) (time.Duration, error) {
	begin := time.Now()
	got, err := b.plugin.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	took := time.Since(begin)
	if err == nil && got.UID != types.UID(claim.Uid) {
		err = errors.New("it is another one")
	}
	if err != nil {
		return 0, fmt.Errorf("get claim %s: %w", claim.Name, err)
	}
	return took, nil
}

// deleteClaims deletes all claims of the bench. They must be unprepared.
func (b *bench) deleteClaims(ctx context.Context) error {
	return b.claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// atOnce calls do for 0 to n-1, at most limit in parallel, and joins the errors.
func atOnce(n, limit int, do func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, limit)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			errs[i] = do(i)
			<-slots
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
