// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// FuzzClaimSpec writes specs for claims, devices and variables of any content. What a runtime reads is one device with
// this variable and this mount and nothing else, from one file in the directory; or the names are refused, and there
// is no file.
func FuzzClaimSpec(f *testing.F) {
	for _, row := range [][4]string{
		{"u1", "gpu-3b-00-0", "A", "b"},
		{"../../etc/x", "gpu-3b-00-0", "A", "b"},
		{"..", "../x", "A", "b"},
		{"u1", "gpu\"}],\"containerEdits\":{\"env\":[\"X=1\"]},\"x\":[{\"", "A", "b"},
		{"u1", "gpu-3b-00-0", "A", "b\nX=1"},
		{"u1", "gpu-3b-00-0", "A", `"]}}, {"name": "x", "containerEdits": {"mounts": [{"hostPath": "/"}]}`},
		{"u1", "gpu-3b-00-0", "A", "\x1b[1m\x00"},
		{"u1", "gpu-3b-00-0", "A", "a\x7fb"},
		{"u1", "gpu-3b-00-0", "A", "a\u0085b\u2028c\ufeffd\uffff"},
		{"u1", "gpu-3b-00-0", "A", ": {{ x }} %s &a *a !!binary <<"},
		{"a\x00b", "gpu-3b-00-0", "A", "b"},
		{strings.Repeat("u", 300), "gpu-3b-00-0", "A", "b"},
		{"u1", "gpu-3b-00-0", "NVIDIA_VISIBLE_DEVICES", "all"},
		{"u1", "gpu-3b-00-0", "A=B", "c"},
	} {
		f.Add(row[0], row[1], row[2], row[3])
	}
	base := tmpfs.Dir(f)
	f.Fuzz(func(t *testing.T, claim, device, name, value string) {
		parameters, err := json.Marshal(map[string]any{"apiVersion": api.GroupVersion, "kind": api.KindGpuConfig,
			"environment": map[string]string{name: value}})
		if err != nil {
			t.Fatal(err)
		}
		config, err := api.Decode(parameters, nil)
		if err != nil {
			return
		}
		var env []string
		for name, value := range config.Environment {
			env = append(env, name+"="+value)
		}
		top, err := os.MkdirTemp(base, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		dir := filepath.Join(top, "cdi")
		specs, err := NewSpecs("gpu.nvidia.com", dir)
		if err != nil {
			t.Fatal(err)
		}
		uid := types.UID(claim)
		err = specs.WriteClaim(uid, gpu.Access{}, []Device{{Name: device, Access: gpu.Access{Env: env,
			Mounts: []gpu.Mount{{HostPath: "/a", ContainerPath: "/a", Options: gpu.ReadOnly}}}}})
		files, _ := os.ReadDir(dir)
		if above, err := os.ReadDir(top); err != nil || len(above) > 1 {
			t.Fatalf("got %v beside the directory, error %v", above, err)
		}
		if err != nil {
			if len(files) > 0 {
				t.Errorf("refused with %v, and there is %v", err, files)
			}
			return
		}
		if len(files) != 1 || !strings.HasPrefix(files[0].Name(), "k8s.gpu.nvidia.com-claim_") {
			t.Fatalf("got the files %v, want one of the claim", files)
		}
		spec, err := cdiapi.ReadSpec(filepath.Join(dir, files[0].Name()), 0)
		if err != nil {
			t.Fatalf("no runtime can read it: %v", err)
		}
		if len(spec.Devices) != 1 || spec.Kind != "k8s.gpu.nvidia.com/claim" {
			t.Fatalf("got kind %s and %d devices", spec.Kind, len(spec.Devices))
		}
		edits := spec.Devices[0].ContainerEdits
		got := fmt.Sprintf("%s %q %d %d %d %d", spec.Devices[0].Name, edits.Env, len(edits.Mounts), len(edits.Hooks),
			len(edits.DeviceNodes), len(spec.ContainerEdits.Env)+len(spec.ContainerEdits.Mounts)+
				len(spec.ContainerEdits.Hooks)+len(spec.ContainerEdits.DeviceNodes))
		if want := fmt.Sprintf("%s %q 1 0 0 0", device, env); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if err := specs.RemoveClaim(uid); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v is left, error %v", left, err)
		}
	})
}
