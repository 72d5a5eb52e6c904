// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

// NewContainerSpec returns the base spec of all containers: containerd's default plus a hook that shows the container
// the node's boot ID instead of the host's. A container has its own /proc, and runc refuses to mount there.
func NewContainerSpec(programs components.Dirs) (string, error) {
	spec, err := exec.Command(filepath.Join(programs[components.Containerd], "ctr"), "oci", "spec").Output()
	if err != nil {
		return "", fmt.Errorf("ask containerd for its default container: %w", err)
	}
	return showBootID(spec)
}

func showBootID(spec []byte) (string, error) {
	var container map[string]any
	if err := json.Unmarshal(spec, &container); err != nil {
		return "", fmt.Errorf("parse containerd's default container: %w", err)
	}
	// Runs in the container's namespaces, in its root folder, before pivot_root.
	hook := map[string]any{
		"path": "/bin/mount",
		"args": []string{"mount", "--no-mtab", "--bind", machine.BootIDFile, "./proc/sys/kernel/random/boot_id"},
	}
	container["hooks"] = map[string]any{"createContainer": []any{hook}}
	data, err := json.MarshalIndent(container, "", "  ")
	return string(data), err
}
