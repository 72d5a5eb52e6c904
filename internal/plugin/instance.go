// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/idle"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/node"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// instancesLock is a file that every running instance locks, shared.
const instancesLock = "instances.lock"

// metadataDir is where kubeletplugin keeps the metadata of claims, below the plugin's directory.
const metadataDir = "dra-device-metadata"

// LocalIPCDir has the directories of claims for local IPC, below the plugin's directory.
const LocalIPCDir = "local-ipc"

// Instance is a running plugin. During an update, two run on a node.
type Instance struct {
	dir  string
	lock *os.File
}

// Enter registers a new instance, before it writes anything on the node. It waits while another instance cleans up.
func Enter(dir string) (*Instance, error) {
	for {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(filepath.Join(dir, instancesLock), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the supervisor of MPS daemons has just removed the empty directory
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
		if err == nil && mps.SameFile(lock) {
			return &Instance{dir, lock}, nil
		}
		_ = lock.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
	}
}

// Leave unregisters the instance. The last one runs cleanUp, unless a claim is still prepared: then the files stay for
// the next instance.
func (i *Instance) Leave(ctx context.Context, records *checkpoint.Records, cleanUp func() error) {
	defer i.lock.Close()
	if unix.Flock(int(i.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // others are running
	}
	logger := klog.FromContext(ctx)
	if found, err := records.List(); len(found) > 0 || err != nil {
		logger.Info("Claims are still prepared on this node: their records and CDI specs stay for the next start of "+
			"the driver",
			"claims", len(found))
		return
	}
	if err := errors.Join(cleanUp(), i.clear()); err != nil {
		logger.Error(err, "Something is left on the node")
	}
}

// clear removes the plugin's files from its directory, and the directory unless it is a mount point.
func (i *Instance) clear() error {
	var errs []error
	for _, name := range append(node.Files(), idle.File, publish.LockFile, LocalIPCDir, instancesLock) {
		if err := os.Remove(filepath.Join(i.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, health.Forget(i.dir), removeTemporary(i.dir, 0),
		os.RemoveAll(filepath.Join(i.dir, metadataDir))) // an instance may have been killed before it removed a claim's
	// A running supervisor of MPS daemons removes the directories when it ends.
	mpsDir := string(mps.Below(i.dir))
	if supervised, _ := mps.Dir(mpsDir).Supervised(); supervised { // an error means that the directory does not exist
		return errors.Join(errs...)
	}
	for _, dir := range []string{mpsDir, i.dir} {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) &&
			!errors.Is(err, unix.EBUSY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
