// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
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

// saved returns the inventory that was saved last.
func saved(dir string) inventory.Inventory {
	return append(load(dir, gpusFile), load(dir, partitionsFile)...)
}

func load(dir, file string) inventory.Inventory {
	data, err := os.ReadFile(filepath.Join(dir, file))
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

func save(dir string, known inventory.Inventory) error {
	for file, inv := range map[string]inventory.Inventory{gpusFile: known.GPUs(), partitionsFile: partitionsOf(known)} {
		data, err := json.Marshal(inv)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func partitionsOf(inv inventory.Inventory) inventory.Inventory {
	return slices.DeleteFunc(slices.Clone(inv), func(d gpu.Device) bool { return d.Partition == nil && d.VGPU == nil })
}
