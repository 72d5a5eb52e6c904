// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// abandonedAfter is the age at which a temporary file is abandoned. One from as far in the future was written when the
// clock was ahead. It is longer than the kubelet's timeout for a call
// (45 s), because another instance may be writing.
const abandonedAfter = 5 * time.Minute

// index marks the devices of every record again, because marks are not synced to disk and a power cut may lose some.
// Marks without a record are left to Holders, which runs under the lock: another instance may be about to write the
// record.
func (r *Records) index() error {
	uids, err := r.uids()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		rec, err := r.Get(uid)
		switch {
		case errors.Is(err, ErrNotFound): // released by another instance
		case err != nil: // only marks can still say which devices it holds
			err = r.markUnreadable(uid)
			if err != nil {
				return err
			}
		default:
			if err := r.mark(rec); err != nil {
				return err
			}
		}
	}
	return nil
}

// markUnreadable makes an unreadable record block the devices that one of its marks names, or all devices if it has no
// mark that can be read.
func (r *Records) markUnreadable(uid types.UID) error {
	dirs, err := os.ReadDir(r.devicesDir())
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		content, err := os.ReadFile(filepath.Join(r.devicesDir(), dir.Name(), string(uid)))
		devices := strings.Fields(string(content))
		if err == nil && len(devices) > 0 && !slices.ContainsFunc(devices, func(d string) bool {
			return d != anyDevice && !isDevice(d)
		}) {
			return r.markAll(devices, uid)
		}
	}
	return r.markAll([]string{anyDevice}, uid)
}

// isDevice reports whether the text can be the name of a device, which is also that of a directory.
func isDevice(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// marks returns the claims with a mark for the device, sorted.
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

// mark marks the devices of the record with its claim.
func (r *Records) mark(rec PreparedClaim) error {
	return r.markAll(gpusOf(rec.Plan.Devices()), rec.Claim.UID)
}

// markAll writes a mark for each device. Each mark names all of them, because a power cut may lose the others.
func (r *Records) markAll(devices []string, uid types.UID) error {
	content := []byte(strings.Join(devices, "\n"))
	for _, device := range devices {
		dir := filepath.Join(r.devicesDir(), device)
		file := filepath.Join(dir, string(uid))
		if there, err := os.ReadFile(file); err == nil && bytes.Equal(there, content) {
			continue // it is of an earlier phase
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (r *Records) unmark(device string, uid types.UID) error {
	err := os.Remove(filepath.Join(r.devicesDir(), device, string(uid)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeAbandonedFiles removes temporary files of a driver that was killed.
func (r *Records) removeAbandonedFiles() error {
	entries, err := os.ReadDir(r.tempDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()).Abs() < abandonedAfter {
			continue
		}
		if err := os.Remove(filepath.Join(r.tempDir(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
