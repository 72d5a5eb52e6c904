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

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// instancesLock is held, shared, by every running instance.
const instancesLock = "instances.lock"

// metadataDir is where kubeletplugin keeps the metadata of claims, in the plugin's directory.
const metadataDir = "dra-device-metadata"

// MPSDir is where, in the plugin's directory, it meets the supervisor of MPS daemons.
const MPSDir = "mps"

// Instance is one run of the driver on a node, possibly beside another.
type Instance struct {
	dir  string
	lock *os.File
}

// Enter says that this instance is running, before it puts anything on the node. It waits for one that is clearing up.
func Enter(dir string) (*Instance, error) {
	for {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(filepath.Join(dir, instancesLock), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the supervisor of MPS daemons has just removed the directory, which was empty
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
		if err == nil && sameFile(lock) {
			return &Instance{dir, lock}, nil
		}
		_ = lock.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
	}
}

// sameFile says whether the file is still the one under its name: whoever cleared up has removed it.
func sameFile(f *os.File) bool {
	open, err1 := f.Stat()
	named, err2 := os.Stat(f.Name())
	return err1 == nil && err2 == nil && os.SameFile(open, named)
}

// Leave lets the last instance clear up after all of them, unless a claim still needs what is there: then nothing is taken away,
// and the next instance, whenever it comes, goes on from there.
func (i *Instance) Leave(ctx context.Context, records claims.Records, cleanUp func() error) {
	defer i.lock.Close()
	if unix.Flock(int(i.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // others are running
	}
	logger := klog.FromContext(ctx)
	if found, err := records.List(); len(found) > 0 || err != nil {
		logger.Info("Claims are still prepared on this node: their records and CDI specs stay for the next start of the driver", "claims", len(found))
		return
	}
	if err := errors.Join(cleanUp(), i.clear()); err != nil {
		logger.Error(err, "Something is left on the node")
	}
}

// clear removes what this package has put into the directory, and the directory, unless it is where the host's was mounted.
func (i *Instance) clear() error {
	var errs []error
	for _, name := range []string{knownFile, partitionsFile, publisherLock, metadataDir, instancesLock} {
		if err := os.Remove(filepath.Join(i.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	// Where a supervisor of MPS daemons lives, it is the one that removes what is empty when it ends.
	mpsDir := filepath.Join(i.dir, MPSDir)
	if supervised, _ := mps.Dir(mpsDir).Supervised(); supervised { // where it cannot be told, the directory is not there
		return errors.Join(errs...)
	}
	for _, dir := range []string{mpsDir, i.dir} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
