// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

// MemoryDir is where Linux has a file system in memory, for the data of a Plane; without it, "", which stands for the
// default folder of temporary files.
func MemoryDir() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

// ReadClasses reads the device classes, by name, of a file that Helm has rendered.
func ReadClasses(file string) (map[string]*resourceapi.DeviceClass, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read device classes: %w", err)
	}
	all := map[string]*resourceapi.DeviceClass{}
	for document := range strings.SplitSeq(string(text), "\n---") {
		class := &resourceapi.DeviceClass{}
		if err := yaml.Unmarshal([]byte(document), class); err != nil {
			return nil, fmt.Errorf("read device classes: %w", err)
		}
		if class.Name != "" { // no comment
			all[class.Name] = class
		}
	}
	return all, nil
}
