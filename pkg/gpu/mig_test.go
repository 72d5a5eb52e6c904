// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

func TestPartitionProfile(t *testing.T) {
	for _, tc := range []struct{ name, device, want string }{
		{"a partition", gpu.PartitionName("gpu-3b-00-0", gpu.Placement{Profile: "1g.10gb", Start: 4}), "1g10gb"},
		{"a profile with engines of its own", gpu.PartitionName("gpu-3b-00-0", gpu.Placement{Profile: "1g.10gb+me",
			Start: 4}), "1g10gb-me"},
		{"one of several compute instances", gpu.PartitionName("gpu-3b-00-0", gpu.Placement{Profile: "1c.3g.40gb",
			Start: 0}) + "-1", "1c3g40gb"},
		{"of NVIDIA's DRA driver, with the number of the profile", "gpu-0-mig-19-4-1", "19"},
		{"a whole GPU", "gpu-3b-00-0", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := gpu.PartitionProfile(tc.device); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
