// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// The last inventory, saved in the plugin's directory for GPUs that are lost later. Partitions have their own file,
// because older versions of the driver take all devices in the first file for GPUs.
const (
	gpusFile       = "devices.json"
	partitionsFile = "partitions.json"
)

// Files returns the names of this package's files in the plugin's directory.
func Files() []string { return []string{gpusFile, partitionsFile} }

// saved returns the inventory that the previous instance saved.
func (n *Node) saved() inventory.Inventory {
	return append(n.load(gpusFile), n.load(partitionsFile)...)
}

func (n *Node) load(file string) inventory.Inventory {
	data, err := os.ReadFile(filepath.Join(n.Dir, file))
	var inv inventory.Inventory
	if err == nil {
		err = json.Unmarshal(data, &inv)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.Background().Error(err, "Last known inventory cannot be read, a lost GPU will be forgotten", "file", file)
		return nil
	}
	return inv
}

func (n *Node) save(gpus, partitions inventory.Inventory) error {
	for file, inv := range map[string]inventory.Inventory{gpusFile: gpus, partitionsFile: partitions} {
		data, err := json.Marshal(inv)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(filepath.Join(n.Dir, file), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
