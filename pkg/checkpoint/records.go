// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Records is a directory of records.
type Records struct {
	dir string
	// device → chan struct{} of capacity 1, full while a call of this process holds or acquires the device's lock
	turns sync.Map
	// UID → decoded. Every Get reads the file, and decodes it only if this process has neither written nor read it so.
	decoded sync.Map
}

// decoded is a record and its file.
type decoded struct {
	data   []byte
	record PreparedClaim
}

// recordSuffix follows the UID of the claim in the name of a record's file.
const recordSuffix = ".json"

// anyDevice stands for all devices, for an unreadable record that may hold any of them.
const anyDevice = "_any"

// Open opens the directory, creating it if needed, and indexes the records again.
func Open(dir string) (*Records, error) {
	r := &Records{dir: dir}
	for _, d := range []string{r.claimsDir(), r.tempDir(), r.devicesDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := r.removeAbandonedFiles(); err != nil {
		return nil, err
	}
	if err := r.index(); err != nil {
		return nil, err
	}
	return r, nil
}

// Get reads the record of a claim. What its plan points to is shared, so the caller does not change it. Errors:
// ErrNotFound, ErrUnreadable.
func (r *Records) Get(uid types.UID) (PreparedClaim, error) {
	file, err := r.file(uid)
	if err != nil {
		return PreparedClaim{}, err
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		r.decoded.Delete(uid)
		return PreparedClaim{}, fmt.Errorf("claim %s: %w", uid, ErrNotFound)
	}
	if err != nil {
		return PreparedClaim{}, unreadable(file, err)
	}
	if known, ok := r.decoded.Load(uid); ok && bytes.Equal(known.(decoded).data, data) {
		return known.(decoded).record, nil
	}
	rec, err := decode(data, uid, file)
	if err == nil {
		r.decoded.Store(uid, decoded{data, rec})
	}
	return rec, err
}

// List reads all records, sorted by UID. It returns the readable ones together with an error for the others.
func (r *Records) List() ([]PreparedClaim, error) {
	uids, err := r.uids()
	if err != nil {
		return nil, err
	}
	r.decoded.Range(func(uid, _ any) bool {
		if !slices.Contains(uids, uid.(types.UID)) { // deleted by another instance, or while Get read it
			r.decoded.Delete(uid)
		}
		return true
	})
	var records []PreparedClaim
	var errs []error
	for _, uid := range uids {
		rec, err := r.Get(uid)
		if errors.Is(err, ErrNotFound) {
			continue // released since the directory was read
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		records = append(records, rec)
	}
	return records, errors.Join(errs...)
}

// Holders returns the claims, without the excepted one, whose records concern the physical GPU of any of the devices.
// The caller holds the locks. Error: ErrUnreadable, if an unreadable record may concern one of them.
func (r *Records) Holders(devices []string, except types.UID) ([]sharing.Holder, error) {
	seen := map[types.UID]bool{except: true}
	var holders []sharing.Holder
	for _, device := range append([]string{anyDevice}, gpusOf(devices)...) {
		marks, err := r.marks(device)
		if err != nil {
			return nil, err
		}
		for _, uid := range marks {
			if seen[uid] {
				continue
			}
			seen[uid] = true
			rec, err := r.Get(uid)
			if errors.Is(err, ErrNotFound) { // the driver died between mark and record
				if err := r.unmark(device, uid); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("may hold %s: %w", strings.Join(devices, ", "), err)
			}
			holders = append(holders, rec.Holder())
		}
	}
	return holders, nil
}

// Put writes the record. When it returns nil, the record survives a power cut. After an error the old record is in
// place, or the new one not yet safely, if only the sync of the directory failed. The call may be repeated. Get returns
// what the plan points to, so the caller does not change it any more.
func (r *Records) Put(rec PreparedClaim) error {
	file, err := r.file(rec.Claim.UID)
	if err != nil {
		return err
	}
	data, err := encode(rec)
	if err != nil {
		return err
	}
	// Marks come first: a record without its marks would leave its devices free for others.
	if err := r.mark(rec); err != nil {
		return err
	}
	if err := renameio.WriteFile(file, data, 0o600, renameio.WithTempDir(r.tempDir())); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	r.decoded.Store(rec.Claim.UID, decoded{data, rec})
	return syncDir(r.claimsDir())
}

// Delete removes the record. It is no error if there is none.
func (r *Records) Delete(rec PreparedClaim) error {
	file, err := r.file(rec.Claim.UID)
	if err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.decoded.Delete(rec.Claim.UID)
	if err := syncDir(r.claimsDir()); err != nil {
		return err
	}
	for _, device := range gpusOf(rec.Plan.Devices()) {
		if err := r.unmark(device, rec.Claim.UID); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the directories. It is an error if there is still a record.
func (r *Records) Remove() error {
	if err := os.Remove(r.claimsDir()); err != nil { // fails if it is not empty
		return err
	}
	return errors.Join(os.RemoveAll(r.devicesDir()), os.RemoveAll(r.tempDir()))
}

func (r *Records) claimsDir() string  { return filepath.Join(r.dir, "claims") }
func (r *Records) tempDir() string    { return filepath.Join(r.dir, "tmp") }
func (r *Records) devicesDir() string { return filepath.Join(r.dir, "devices") }

// file returns the path of the claim's record. It refuses UIDs that would leave the directory.
func (r *Records) file(uid types.UID) (string, error) {
	if isHidden(string(uid)) || strings.ContainsAny(string(uid), "/\x00") {
		return "", fmt.Errorf("claim UID %q: not a UID", uid)
	}
	return filepath.Join(r.claimsDir(), string(uid)+recordSuffix), nil
}

// gpusOf returns the names of the physical GPU of each device, sorted and unique. A change of a partition concerns its
// whole GPU.
func gpusOf(devices []string) []string {
	var names []string
	for _, device := range devices {
		names = append(names, gpu.ParentName(device))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isHidden reports whether the name is no UID but that of a file which a tool has left: an editor, for example.
func isHidden(name string) bool { return name == "" || strings.HasPrefix(name, ".") }

// uids returns the claims that have a record, sorted.
func (r *Records) uids() ([]types.UID, error) {
	entries, err := os.ReadDir(r.claimsDir())
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if uid, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && !isHidden(uid) {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
