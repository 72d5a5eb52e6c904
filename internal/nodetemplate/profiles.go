// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// A file describes the GPUs that the driver discovers on a machine of the profile: a list of gpu.Device. The first has
// all fields, and each other one those that differ. The files are made from the profiles of the simulator:
// go test ./internal/nodetemplate -update
//
//go:embed profiles/*.yaml
var files embed.FS

// Profiles returns the names of the profiles, sorted.
func Profiles() []string { return hwprofile.FileNames(files) }

// devices returns the GPUs of a machine of the profile.
func devices(profile string) ([]gpu.Device, error) {
	text, err := files.ReadFile("profiles/" + profile + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("no profile %q; known are %s", profile, strings.Join(Profiles(), ", "))
	}
	all, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", profile, err)
	}
	return all, nil
}

// rawFields are the fields of a gpu.Device.
type rawFields map[string]json.RawMessage

// decode reads a file.
func decode(text []byte) ([]gpu.Device, error) {
	var list []rawFields
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, err
	}
	all := make([]gpu.Device, len(list))
	for i, own := range list {
		of := maps.Clone(list[0])
		maps.Copy(of, own)
		whole, err := json.Marshal(of)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(whole, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}
