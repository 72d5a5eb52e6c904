// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// abandonedAfter is the age at which a temporary file belongs to nobody: longer than the kubelet lets any call run (45 s), because
// the other of two instances may be writing.
const abandonedAfter = 5 * time.Minute

// index makes every record findable by its devices. Marks are not synced to disk, so a power cut may have lost some. Marks of
// records that are not there are left to Holders, which has the lock: another instance may be between mark and record.
func (r *Records) index() error {
	uids, err := r.uids()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		rec, err := r.Get(uid)
		switch {
		case errors.Is(err, ErrNotFound): // released by another instance
		case err != nil: // nothing says any more which devices it holds, unless marks are left
			err = r.markUnreadable(uid)
			if err != nil {
				return err
			}
		default:
			for _, device := range gpusOf(rec.Plan.Devices()) {
				if err := r.mark(device, uid); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// markUnreadable makes a record that cannot be read block what it may hold: the devices under which it is still marked, or else
// all of them.
func (r *Records) markUnreadable(uid types.UID) error {
	marked, err := filepath.Glob(filepath.Join(r.devicesDir(), "*", string(uid)))
	if err != nil || len(marked) > 0 {
		return err
	}
	return r.mark(anyDevice, uid)
}

// marks are the claims that are marked as touching the device, sorted.
func (r *Records) marks(device string) ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(r.devicesDir(), device))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

func (r *Records) mark(device string, uid types.UID) error {
	dir := filepath.Join(r.devicesDir(), device)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, string(uid)), nil, 0o600)
}

func (r *Records) unmark(device string, uid types.UID) error {
	err := os.Remove(filepath.Join(r.devicesDir(), device, string(uid)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// dropAbandonedWrites removes what a killed driver was writing.
func (r *Records) dropAbandonedWrites() error {
	entries, err := os.ReadDir(r.tempDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < abandonedAfter {
			continue
		}
		if err := os.Remove(filepath.Join(r.tempDir(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
