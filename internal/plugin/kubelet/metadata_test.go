// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// TestRequireMetadata: kubeletplugin answers success for a claim whose metadata it could not write.
func TestRequireMetadata(t *testing.T) {
	m := &metadataWriter{driver: "gpu.nvidia.com", files: kubeletplugin.MetadataFileOperations{MkdirAll: os.MkdirAll}}
	if m.mkdirAll(filepath.Join(os.Args[0], "dir"), 0o755) == nil {
		t.Fatal("a directory below a file was made")
	}
	device := func(request string, ids ...string) *drapb.Device {
		return &drapb.Device{RequestNames: []string{request}, CdiDeviceIds: ids}
	}
	claims := map[string]*drapb.NodePrepareResourceResponse{
		"with": {Devices: []*drapb.Device{device("a", "x=1", "gpu.nvidia.com/metadata=with_a"), device("a", "x=2"),
			device("b", "gpu.nvidia.com/metadata=with_b")}},
		"without":     {Devices: []*drapb.Device{device("a", "x=1")}},
		"one without": {Devices: []*drapb.Device{device("a", "gpu.nvidia.com/metadata=one without_a"), device("b")}},
		"empty":       {},
		"failed":      {Error: "no"},
	}
	answer, err := m.require(t.Context(), nil, nil, func(context.Context, any) (any, error) {
		return &drapb.NodePrepareResourcesResponse{Claims: claims}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for uid, claim := range answer.(*drapb.NodePrepareResourcesResponse).Claims {
		got[uid] = claim.Error
	}
	why := ": mkdir " + os.Args[0] + ": not a directory"
	want := map[string]string{"with": "", "empty": "", "failed": "no",
		"without":     "write the device metadata of claim without" + why,
		"one without": "write the device metadata of claim one without" + why}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
	if _, err := m.require(t.Context(), nil, nil, func(context.Context, any) (any, error) {
		return nil, errBad
	}); !errors.Is(err, errBad) {
		t.Errorf("got %v, want the error of the call", err)
	}
}
