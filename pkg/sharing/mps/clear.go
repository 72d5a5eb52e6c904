// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// WantedFile is the name of the file that asks for a daemon, in the daemon's directory.
const WantedFile = wantedFile

// IsWanted says whether the daemon is asked for, be it in a file that cannot be read.
func (d Dir) IsWanted(id string) bool {
	_, err := os.Lstat(filepath.Join(string(d), id, wantedFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// Libraries is where the supervisor gathers the driver's libraries for the daemon.
func (d Dir) Libraries(id string) string { return filepath.Join(string(d), id, "lib") }

// Clear removes what the supervisor has made for the daemon, and its directory, unless it has been asked for again meanwhile. It may
// be repeated.
func (d Dir) Clear(id string) error {
	dir := filepath.Join(string(d), id)
	errs := []error{os.RemoveAll(d.Pipe(id)), os.RemoveAll(d.Log(id)), os.RemoveAll(d.Libraries(id))}
	for _, path := range []string{filepath.Join(dir, stateFile), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
