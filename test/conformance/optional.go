// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/utils/ptr"
)

// adminAccess gives a device that a pod uses to a second claim with admin access, and takes it back.
func adminAccess(ctx context.Context, s *suite) (string, error) {
	if s.Spec.Devices.Requests[0].Exactly == nil {
		return "", skip("the first request of the claim has alternatives")
	}
	pod, _, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	saw, err := s.probe(ctx, pod.Name)
	if err != nil {
		return "", err
	}
	admin, claim, err := s.started(ctx, func(spec *resourceapi.ResourceClaimSpec) {
		spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	})
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool { return ptr.Deref(r.AdminAccess, false) }) {
		return "", skip("the cluster lacks the feature gate DRAAdminAccess")
	}
	if err := s.remove(ctx, metav1.DeleteOptions{}, admin.Name); err != nil {
		return "", err
	}
	return strings.Join(devices(claim.Status.Allocation, s.Driver), " "), s.unchanged(ctx, pod.Name, saw)
}

// deviceStatus looks at what the driver writes into the status of a claim.
func deviceStatus(ctx context.Context, s *suite) (string, error) {
	_, claim, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	var own []string
	err = s.within(ctx, statusPolls, func() (bool, error) {
		claim, err = s.getClaim(ctx, claim.Name)
		if err != nil {
			return false, err
		}
		for _, device := range claim.Status.Devices {
			if device.Driver == s.Driver {
				own = append(own, device.Pool+"/"+device.Device)
			}
		}
		return len(own) > 0, nil
	})
	if err != nil {
		return "", err
	}
	if len(own) == 0 {
		return "", absent("the driver writes no status of devices")
	}
	want := devices(claim.Status.Allocation, s.Driver)
	slices.Sort(own)
	slices.Sort(want)
	if !slices.Equal(slices.Compact(own), slices.Compact(want)) {
		return "", fmt.Errorf("the status is of %v, allocated are %v", own, want)
	}
	return strings.Join(own, " "), nil
}

// statusPolls is how often a check looks for what a driver may never do.
const statusPolls = 20

// within looks a few times. It is no error if it is never done.
func (s *suite) within(ctx context.Context, polls int, look func() (bool, error)) error {
	for range polls {
		if done, err := look(); done || err != nil {
			return err
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// health reads one message of the health service.
func health(ctx context.Context, s *suite) (string, error) {
	if s.Health == nil {
		return "", skip("the plugin's socket is not given")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := s.Health.NodeWatchResources(ctx, &healthpb.NodeWatchResourcesRequest{})
	if err != nil {
		return "", err
	}
	message, err := stream.Recv()
	if status.Code(err) == codes.Unimplemented {
		return "", absent("the plugin has no health service")
	}
	if err != nil {
		return "", fmt.Errorf("NodeWatchResources: %w", err)
	}
	published, err := s.nodeDevices(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range message.Devices {
		name := d.GetDevice().GetPoolName() + "/" + d.GetDevice().GetDeviceName()
		if _, ok := published[name]; !ok {
			return "", fmt.Errorf("health of device %s, which no slice has", name)
		}
		if d.LastUpdatedTime == 0 {
			return "", fmt.Errorf("health of device %s has no time", name)
		}
	}
	if len(message.Devices) == 0 {
		return "", errors.New("the first message has no device")
	}
	return fmt.Sprintf("%d devices", len(message.Devices)), nil
}

// taints evicts a pod by a rule for its device, and then uses the device again.
func taints(ctx context.Context, s *suite) (string, error) {
	pod, claim, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	var device *resourceapi.DeviceRequestAllocationResult
	for i, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == s.Driver {
			device = &claim.Status.Allocation.Devices.Results[i]
		}
	}
	if device == nil {
		return "", fmt.Errorf("the claim has no device of %s", s.Driver)
	}
	rules := s.Client.ResourceV1().DeviceTaintRules()
	rule, err := rules.Create(ctx, &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &s.Driver, Pool: &device.Pool,
				Device: &device.Device},
			Taint: resourceapi.DeviceTaint{Key: "dra-conformance.example.com/test",
				Effect: resourceapi.DeviceTaintEffectNoExecute},
		}}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return "", skip("the API server has no DeviceTaintRule in resource.k8s.io/v1")
	} else if err != nil {
		return "", err
	}
	evicted := s.until(ctx, pod.Name+" is evicted", func(ctx context.Context) (bool, string, error) {
		got, err := s.Client.CoreV1().Pods(s.namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err), "", ignoreNotFound(err)
		}
		return false, s.state(ctx, got), nil
	})
	released := s.released(ctx, claim.Name)
	if err := errors.Join(evicted, released, rules.Delete(context.WithoutCancel(ctx), rule.Name,
		metav1.DeleteOptions{})); err != nil {
		return "", err
	}
	_, _, err = s.started(ctx)
	return "", err
}

// extendedResource starts a pod that names the class as a resource.
func extendedResource(ctx context.Context, s *suite) (string, error) {
	class, err := s.Client.ResourceV1().DeviceClasses().Get(ctx, s.Class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	name := ptr.Deref(class.Spec.ExtendedResourceName, resourceapi.ResourceDeviceClassPrefix+s.Class)
	pod, err := s.podWith(ctx, func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}
	})
	if err != nil {
		return "", err
	}
	got, err := s.running(ctx, pod)
	if err != nil {
		if strings.Contains(err.Error(), "Insufficient "+name) {
			return "", skip("the scheduler does not know " + name + ": the cluster lacks DRAExtendedResource, or no " +
				"device is free")
		}
		return "", err
	}
	if got.Status.ExtendedResourceClaimStatus == nil {
		return "", skip("the node offers " + name + " without a claim: a device plugin has it")
	}
	return name, s.remove(ctx, metav1.DeleteOptions{}, pod)
}

// deviceMetadata reads the file that the driver lets containers have.
func deviceMetadata(ctx context.Context, s *suite) (string, error) {
	if len(s.Cat) == 0 {
		return "", skip("no command is given that prints a file in a container")
	}
	pod, claim, err := s.started(ctx)
	if err != nil {
		return "", err
	}
	first := claim.Status.Allocation.Devices.Results[0].Request
	file := strings.Join([]string{metadata.ContainerDir, metadata.ResourceClaimsSubDir, claim.Name, first,
		s.Driver + metadata.MetadataFileSuffix}, "/")
	text, err := s.Exec(ctx, s.namespace, pod.Name, append(slices.Clone(s.Cat), file)...)
	if err != nil {
		return "", absent("the container has no " + file)
	}
	want := devices(claim.Status.Allocation, s.Driver)
	var got []string
	for decoder := json.NewDecoder(strings.NewReader(text)); ; { // one object for each version
		var object struct {
			Requests []struct {
				Devices []struct{ Driver, Pool, Name string }
			}
		}
		if err := decoder.Decode(&object); err == io.EOF {
			break
		} else if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		got = nil
		for _, r := range object.Requests {
			for _, d := range r.Devices {
				got = append(got, d.Pool+"/"+d.Name)
			}
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			return "", fmt.Errorf("the metadata is of %v, allocated are %v", got, want)
		}
	}
	if len(got) == 0 {
		return "", fmt.Errorf("%s has no device", file)
	}
	return strings.Join(got, " "), nil
}

// ownNode tries to write a slice of another node with the rights of the plugin. Nothing is stored.
func ownNode(ctx context.Context, s *suite) (string, error) {
	if s.ServiceAccount == "" {
		return "", skip("the plugin's service account is not given")
	}
	client, err := s.As(s.ServiceAccount, s.Node)
	if err != nil {
		return "", err
	}
	create := func(node string) error {
		_, err := client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
			Spec: resourceapi.ResourceSliceSpec{Driver: s.Driver, NodeName: &node,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := create(s.Node); err != nil {
		return "", skip("it may not write slices of its own node: " + err.Error())
	}
	if err := create("another-node"); err == nil {
		return "", errors.New("the plugin of one node may write slices of another node")
	} else if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return "", err
	}
	return "", nil
}

// sickDevice makes a device sick: others stay usable, a restart does not make it healthy, and it comes back.
func sickDevice(ctx context.Context, s *suite) (string, error) {
	if s.Sick == "" || s.Well == "" {
		return "", skip("no commands are given that make a device sick and well")
	}
	before, err := s.usableDevices(ctx)
	if err != nil {
		return "", err
	}
	if len(before) < 2 {
		return "", skip("the node has one device, and this needs another that stays well")
	}
	if err := s.Run(ctx, s.Sick); err != nil {
		return "", err
	}
	err = s.whileSick(ctx, before)
	if failed := s.Run(context.WithoutCancel(ctx), s.Well); failed != nil {
		return "", errors.Join(err, failed)
	}
	if err != nil {
		return "", err
	}
	return "", s.until(ctx, "the device is usable again", func(ctx context.Context) (bool, string, error) {
		now, err := s.usableDevices(ctx)
		return len(now) >= len(before), fmt.Sprintf("%d of %d devices are usable", len(now), len(before)), err
	})
}

func (s *suite) whileSick(ctx context.Context, before map[string]resourceapi.Device) error {
	var now map[string]resourceapi.Device
	fewer := func(ctx context.Context) (bool, string, error) {
		var err error
		now, err = s.usableDevices(ctx)
		return len(now) < len(before), "all devices are usable", err
	}
	if err := s.until(ctx, "the sick device is tainted or gone", fewer); err != nil {
		return err
	}
	if len(now) == 0 {
		return errors.New("one sick device makes all devices of the node unusable")
	}
	if s.RestartPlugin == "" {
		return nil
	}
	if err := s.Run(ctx, s.RestartPlugin); err != nil {
		return err
	}
	if _, _, err := s.started(ctx); err != nil { // then the driver has published
		return err
	}
	if err := s.until(ctx, "the sick device is tainted or gone after a restart of the plugin", fewer); err != nil {
		return err
	}
	if len(now) == 0 {
		return errors.New("one sick device makes all devices of the node unusable after a restart of the plugin")
	}
	return nil
}

// usableDevices returns the devices of the node that have no taint.
func (s *suite) usableDevices(ctx context.Context) (map[string]resourceapi.Device, error) {
	all, err := s.nodeDevices(ctx)
	for name, device := range all {
		if tainted(device) {
			delete(all, name)
		}
	}
	return all, err
}
