// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// LocalIPC are directories in which the containers of a claim find each other's sockets and files. Each is a file
// system in memory, which only these containers have mounted.
type LocalIPC struct {
	Dir  string // has the directory of each claim, the same path on the host
	Size uint64 // of a directory of a new claim, in bytes
	// Mount mounts a file system in memory at the directory, which it makes, or keeps the one that is there. Unmount
	// unmounts it, and is no error if there is none.
	Mount   func(source, dir string, size uint64) error
	Unmount func(dir string) error
}

// ErrNoLocalIPC means that the node makes no directories for local IPC.
var ErrNoLocalIPC = errors.New("the claim has a LocalIPCConfig, and the driver is installed with localIPC.size: 0")

// sizeFor returns the size of the directory of a claim with these results; 0: it has none. Error: ErrNoLocalIPC.
func (l LocalIPC) sizeFor(results []allocation.Result) (uint64, error) {
	if !slices.ContainsFunc(results, func(r allocation.Result) bool { return r.LocalIPC }) {
		return 0, nil
	}
	if l.Size == 0 {
		return 0, ErrNoLocalIPC
	}
	return l.Size, nil
}

func (l LocalIPC) path(claim types.UID) string { return filepath.Join(l.Dir, string(claim)) }

// remove removes the directory of the claim. It is no error if there is none. Containers that still run keep theirs.
func (l LocalIPC) remove(claim types.UID) error {
	if _, err := os.Lstat(l.path(claim)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := l.Unmount(l.path(claim)); err != nil {
		return err
	}
	return os.RemoveAll(l.path(claim))
}

// makeLocalIPC makes the directory of the claim if its record has one, and returns what containers need to use it.
func (t *tx) makeLocalIPC() (access gpu.Access, err error) {
	size := t.record.Plan.LocalIPC
	if size == 0 {
		return access, nil
	}
	dir := t.LocalIPC.path(t.claim.UID)
	if err := t.step(steps.MakeLocalIPC, func() error { return t.LocalIPC.Mount("local-ipc", dir, size) }); err != nil {
		return access, fmt.Errorf("make the directory for local IPC: %w", err)
	}
	access.Env = []string{api.LocalIPCVariable + "=" + api.LocalIPCDir}
	access.Mounts = []gpu.Mount{{HostPath: dir, ContainerPath: api.LocalIPCDir,
		Options: append(slices.Clone(gpu.ReadWrite), "noexec")}}
	return access, nil
}

// removeLocalIPC removes the directory of the claim.
func (t *tx) removeLocalIPC() error {
	if err := t.step(steps.RemoveLocalIPC, func() error { return t.LocalIPC.remove(t.claim.UID) }); err != nil {
		return fmt.Errorf("remove the directory for local IPC: %w", err)
	}
	return nil
}
