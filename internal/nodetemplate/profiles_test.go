// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

var update = flag.Bool("update", false, "write the files of the profiles")

// TestFilesOfProfiles: every profile of the simulator has a file, with the GPUs that the driver discovers on it.
func TestFilesOfProfiles(t *testing.T) {
	if got, want := Profiles(), simulator.Profiles(); !*update && !slices.Equal(got, want) {
		t.Errorf("got files of %v, want %v", got, want)
	}
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			want := simtest.Discover(t, profile)
			for i := range want { // whether a machine has an IOMMU, vfio-pci or vGPUs is no part of a profile
				want[i].VFIO, want[i].VGPUs = nil, nil
			}
			if err := withoutUUIDs(&want); err != nil {
				t.Fatal(err)
			}
			text, file := encode(t, want), filepath.Join("profiles", profile+".yaml")
			if read, err := decode(text); err != nil || !reflect.DeepEqual(read, want) {
				t.Fatalf("cannot be read again: got %+v, %v", read, err)
			}
			if *update {
				if err := os.WriteFile(file, text, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%s is out of date (go test ./internal/nodetemplate -update), %v\nwant\n%s", file,
					err, text)
			}
		})
	}
}

// encode returns the text that decode reads.
func encode(t *testing.T, devices []gpu.Device) []byte {
	t.Helper()
	var list []rawFields
	for _, d := range devices {
		of := rawFields{}
		text, err := json.Marshal(d)
		if err == nil {
			err = json.Unmarshal(text, &of)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			maps.DeleteFunc(of, func(name string, value json.RawMessage) bool {
				return bytes.Equal(value, list[0][name])
			})
		}
		list = append(list, of)
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("# SPDX-License-Identifier: Apache-2.0\n# Made by go test ./internal/nodetemplate "+
		"-update\n"), text...)
}
