// SPDX-License-Identifier: Apache-2.0

package nearest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

func TestName(t *testing.T) {
	attributes := []string{"architecture", "brand", "cudaComputeCapability", "index", "nvlinkDomain", "productName",
		"uuid"}
	products := []string{"NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "Tesla T4"}
	for _, row := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"product", attributes, "productName"},
		{"ProductName", attributes, "productName"},
		{"prodcutName", attributes, "productName"},
		{"nvlinkdomain", attributes, "nvlinkDomain"},
		{"computeCapability", attributes, "cudaComputeCapability"},
		{"color", attributes, ""},
		{"x", attributes, ""},
		{"", attributes, ""},
		{"H100", products, "NVIDIA H100 80GB HBM3"},
		{"nvidia-l40s", products, "NVIDIA L40S"},
		{"a100 sxm4 80gb", products, "NVIDIA A100-SXM4-80GB"},
		{"T4", products, "Tesla T4"},
		{"40", products, ""}, // it is a part, and no word: two letters are a part of too much
		{"NVIDIA B300", products, ""},
		{"stratgy", []string{"mpsConfig", "strategy", "timeSlicingConfig"}, "strategy"},
		{"gpu.nvidia.org", []string{"gpu.nvidia.com", "mig.nvidia.com"}, "gpu.nvidia.com"},
		{"uuid", attributes, ""}, // it is one of them
		{strings.Repeat("a", 10_000), []string{strings.Repeat("a", 9_999)}, ""},
	} {
		if got := nearest.Name(row.name, row.candidates); got != row.want {
			t.Errorf("%q: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestHint(t *testing.T) {
	if got, want := nearest.Hint("core", []string{"cores"}), "; did you mean cores?"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := nearest.Hint("x", []string{"cores"}); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestProfiles(t *testing.T) {
	h100 := []string{"gpu.nvidia.com", "mig-1g.10gb.nvidia.com", "mig-1g.20gb.nvidia.com", "mig-2g.20gb.nvidia.com",
		"mig-3g.40gb.nvidia.com", "mig-4g.40gb.nvidia.com", "mig-7g.80gb.nvidia.com"}
	for _, row := range []struct{ name, first string }{
		{"mig-5g.50gb.nvidia.com", "mig-4g.40gb.nvidia.com"},
		{"mig-1g.23gb.nvidia.com", "mig-1g.20gb.nvidia.com"},
		{"nvidia.com/mig-6g.70gb", "mig-7g.80gb.nvidia.com"},
	} {
		got := nearest.Profiles(row.name, h100)
		if len(got) != 6 || got[0] != row.first || slices.Contains(got, "gpu.nvidia.com") {
			t.Errorf("%s: got %v, want %s first of 6 classes", row.name, got, row.first)
		}
	}
	if got := nearest.Profiles("gpu.nvidia.com", h100); got != nil {
		t.Errorf("got %v for a name without a profile", got)
	}
}
