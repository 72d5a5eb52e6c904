// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// metadataFiles writes the metadata of devices without waiting for the disk, as kubeletplugin would, twice for every claim. Every
// Prepare makes these files anew, and after a power cut the kubelet prepares a claim before it starts a container with it: nobody
// reads what a power cut has left.
var metadataFiles = kubeletplugin.MetadataFileOperations{WriteFile: replaceFile}

// replaceFile writes the file in one step for those who read it.
func replaceFile(name string, data []byte, perm os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(perm), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
