// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
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
	dir   string
	turns sync.Map // device → chan struct{}: has a value in it while a call of this process has the device's lock, or asks for it
}

// recordSuffix ends the name of a record's file; before it stands the UID of the claim.
const recordSuffix = ".json"

// anyDevice stands for the devices of a record that says nothing: it may hold any of them.
const anyDevice = "_any"

// Open opens the directory, making it when there is none, and derives what it keeps beside the records anew.
func Open(dir string) (*Records, error) {
	r := &Records{dir: dir}
	for _, d := range []string{r.claimsDir(), r.tempDir(), r.devicesDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := r.dropAbandonedWrites(); err != nil {
		return nil, err
	}
	if err := r.index(); err != nil {
		return nil, err
	}
	return r, nil
}

// Get reads the record of a claim. Errors: ErrNotFound, ErrUnreadable.
func (r *Records) Get(uid types.UID) (Record, error) {
	file, err := r.file(uid)
	if err != nil {
		return Record{}, err
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, fmt.Errorf("claim %s: %w", uid, ErrNotFound)
	}
	if err != nil {
		return Record{}, unreadable(file, err)
	}
	return decode(data, uid, file)
}

// List reads all records, sorted by UID. Those that cannot be read are reported in the error, beside the others.
func (r *Records) List() ([]Record, error) {
	uids, err := r.uids()
	if err != nil {
		return nil, err
	}
	var records []Record
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

// Holders are the claims, other than the one given, whose records touch the GPUs of any of the devices. The caller holds their locks. A
// record that may touch one and cannot be read is an error: ErrUnreadable.
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
			holders = append(holders, sharing.Holder{Claim: rec.Claim, Plan: rec.Plan})
		}
	}
	return holders, nil
}

// Put writes the record: when it returns nil, the record outlives a power cut. On an error, the record is as before, or,
// when only the sync of the directory failed, as given and not yet safe; either way the call can be made again.
func (r *Records) Put(rec Record) error {
	file, err := r.file(rec.Claim.UID)
	if err != nil {
		return err
	}
	data, err := encode(rec)
	if err != nil {
		return err
	}
	// Marks come first: a record that can be found without its mark would leave its device free for others.
	for _, device := range gpusOf(rec.Plan.Devices()) {
		if err := r.mark(device, rec.Claim.UID); err != nil {
			return err
		}
	}
	if err := renameio.WriteFile(file, data, 0o600, renameio.WithTempDir(r.tempDir())); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return syncDir(r.claimsDir())
}

// Delete removes the record. It is no error if there is none.
func (r *Records) Delete(rec Record) error {
	file, err := r.file(rec.Claim.UID)
	if err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
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

// Remove removes the directories of records that are all gone. It is an error if one is there.
func (r *Records) Remove() error {
	if err := os.Remove(r.claimsDir()); err != nil { // fails when it is not empty
		return err
	}
	return errors.Join(os.RemoveAll(r.devicesDir()), os.RemoveAll(r.tempDir()))
}

func (r *Records) claimsDir() string  { return filepath.Join(r.dir, "claims") }
func (r *Records) tempDir() string    { return filepath.Join(r.dir, "tmp") }
func (r *Records) devicesDir() string { return filepath.Join(r.dir, "devices") }

// file is where the record of the claim is. The UID comes from outside and must not lead elsewhere.
func (r *Records) file(uid types.UID) (string, error) {
	if uid == "" || strings.HasPrefix(string(uid), ".") || strings.ContainsAny(string(uid), "/\x00") {
		return "", fmt.Errorf("claim UID %q: not a UID", uid)
	}
	return filepath.Join(r.claimsDir(), string(uid)+recordSuffix), nil
}

// gpusOf are the names of the physical GPUs that the devices are or are parts of, sorted, each once: what happens to a partition
// concerns its GPU.
func gpusOf(devices []string) []string {
	var names []string
	for _, device := range devices {
		names = append(names, gpu.ParentName(device))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// uids are the claims that have a record, sorted.
func (r *Records) uids() ([]types.UID, error) {
	entries, err := os.ReadDir(r.claimsDir())
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if uid, ok := strings.CutSuffix(e.Name(), recordSuffix); ok {
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
