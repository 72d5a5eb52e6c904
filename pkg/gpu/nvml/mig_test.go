// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"reflect"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// What can be read of the partitions replaces what was known at its place, and what cannot be read stays as it was.
func TestFillMIG(t *testing.T) {
	at := func(start int, id gpu.UUID) gpu.Partition {
		return gpu.Partition{UUID: id,
			Placement: gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Start: start, Size: 1}}
	}
	was := gpu.MIG{Capable: true, Enabled: true, Instances: []gpu.Partition{at(0, "MIG-a"), at(1, "MIG-b")}}
	got := fillMIG(gpu.MIG{Capable: true, Enabled: true, Unlisted: true,
		Instances: []gpu.Partition{at(0, "MIG-c"), at(1, ""), at(3, "")}}, was)
	want := gpu.MIG{Capable: true, Enabled: true,
		Instances: []gpu.Partition{at(0, "MIG-c"), at(1, "MIG-b"), at(3, "")}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
