// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "metadata.json")
	for _, content := range []string{"one", "two"} {
		if err := replaceFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("got mode %v, %v, want 0644", info.Mode(), err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(filepath.Join(dir, "taken"), nil, 0o644); err == nil {
		t.Error("replaced a directory")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v, want no temporary files", entries, err)
	}
}

// TestRequireMetadata: kubeletplugin answers success for a claim whose metadata it could not write.
func TestRequireMetadata(t *testing.T) {
	m := &metadataWriter{driver: "gpu.nvidia.com"}
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
