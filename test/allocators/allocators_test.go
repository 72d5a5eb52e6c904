// SPDX-License-Identifier: Apache-2.0

// Package allocators gives the slices of the driver to the allocators of older schedulers: of the first patches of a
// version of Kubernetes, which users have and which the end-to-end tests do not run on.
package allocators

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// defaults are the features of a scheduler of Kubernetes 1.36, and of one of 1.35 with the alpha gates.
var defaults = structured.Features{AdminAccess: true, PrioritizedList: true, PartitionableDevices: true,
	DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true}

type class struct{}

func (class) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

// Get returns the class of whole GPUs.
func (class) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == " +
			"'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}}}}, nil
}

// allocateAll returns how many devices a claim for all GPUs of a node gets from the slices of the file.
func allocateAll(t *testing.T, file string) (devices int, err error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var published []*resourceapi.ResourceSlice
	if err := json.Unmarshal(text, &published); err != nil {
		t.Fatal(err)
	}
	for i, s := range published {
		s.Name = fmt.Sprint(s.GenerateName, i)
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "all", UID: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com",
				AllocationMode: resourceapi.DeviceAllocationModeAll}}}}}}
	nothing := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
	allocator, err := structured.NewAllocator(t.Context(), defaults, nothing, class{}, published,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if fault := recover(); fault != nil { // it ends a scheduler
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
		[]*resourceapi.ResourceClaim{claim})
	if err != nil || len(results) == 0 {
		return 0, err
	}
	return len(results[0].Devices.Results), nil
}

// TestAll: a claim for all GPUs ends the scheduler with the slices of newer versions, and not with those that the
// driver publishes on this version.
func TestAll(t *testing.T) {
	if devices, err := allocateAll(t, version(t)+".json"); devices != 2 || err != nil {
		t.Errorf("with the slices for this version: got %d GPUs and %v, want both GPUs", devices, err)
	}
	if devices, err := allocateAll(t, "v1.37.0.json"); err == nil || !strings.HasPrefix(err.Error(), "panic: ") {
		t.Errorf("with the slices for newer versions: got %d GPUs and %v, want a panic; without one, this version "+
			"needs no slices of its own", devices, err)
	}
}

var moduleVersion = regexp.MustCompile(`/dynamic-resource-allocation@v0\.(\d+\.\d+)/`)

// version returns the version of Kubernetes whose allocator runs: the file of its source names it.
func version(t *testing.T) string {
	t.Helper()
	at := reflect.ValueOf(structured.NewAllocator).Pointer()
	file, _ := runtime.FuncForPC(at).FileLine(at)
	found := moduleVersion.FindStringSubmatch(file)
	if found == nil {
		t.Fatalf("the allocator is in %s, which names no version", file)
	}
	return "v1." + found[1]
}
