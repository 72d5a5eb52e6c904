// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// newestFormat is the newest format that this driver can read. It writes the oldest format that can hold the record, so
// that an older driver can undo it after a downgrade. Format 1 has whole GPUs, format 2 adds shares, settings and
// limits, format 3 adds partitions, format 4 adds GPUs for virtual machines, format 5 adds vGPUs, and format 6 adds
// directories for local IPC.
const newestFormat = 6

// document is a record on disk, in any format.
type document struct {
	Version int           `json:"version"`
	Claim   sharing.Claim `json:"claim"`
	Phase   Phase         `json:"phase"`
	BootID  string        `json:"bootID"`
	Plan    sharing.Plan  `json:"plan"`
	Grants  []grant       `json:"grants"` // one per assignment, once the claim is prepared
}

// grant names the CDI devices of one assignment.
type grant struct {
	Request string    `json:"request"`
	Pool    string    `json:"pool"`
	Device  string    `json:"device"`
	ShareID types.UID `json:"shareID,omitempty"`
	CDI     []string  `json:"cdi"`
}

// oldestFormat returns the oldest format that can hold the record.
func (r PreparedClaim) oldestFormat() int {
	if r.Plan.LocalIPC != 0 {
		return 6
	}
	if slices.ContainsFunc(r.Plan.Assignments, func(a sharing.Assignment) bool {
		return a.VFIO != nil && a.VFIO.VGPU != nil
	}) {
		return 5
	}
	if slices.ContainsFunc(r.Plan.Assignments, func(a sharing.Assignment) bool { return a.VFIO != nil }) {
		return 4
	}
	if slices.ContainsFunc(r.Plan.Assignments, func(a sharing.Assignment) bool { return a.Partition != nil }) {
		return 3
	}
	newer := func(a sharing.Assignment) bool {
		return a.ChangesHardware() || a.Share != nil || a.Isolation != sharing.Isolation{}
	}
	if r.Phase == Preparing || slices.ContainsFunc(r.Plan.Assignments, newer) {
		return 2
	}
	return 1
}

func encode(rec PreparedClaim) ([]byte, error) {
	d := document{Version: rec.oldestFormat(), Claim: rec.Claim, Phase: rec.Phase, BootID: rec.BootID, Plan: rec.Plan}
	for _, a := range rec.Plan.Assignments {
		if a.CDI != nil {
			d.Grants = append(d.Grants, grant{a.Request, a.Pool, a.Device, a.ShareID, a.CDI})
		}
	}
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// decode reads a record. The error names the file and says what to do.
func decode(data []byte, uid types.UID, file string) (PreparedClaim, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return PreparedClaim{}, unreadable(file, err)
	}
	switch {
	case d.Version > newestFormat:
		return PreparedClaim{}, fmt.Errorf("%s: format %d is from a newer driver, this one reads up to %d; "+
			"run that driver again until its claims are gone: %w", file, d.Version, newestFormat, ErrUnreadable)
	case d.Version < 1 || !slices.Contains([]Phase{Preparing, Prepared, Releasing}, d.Phase):
		return PreparedClaim{}, unreadable(file, fmt.Errorf("version %d, phase %q", d.Version, d.Phase))
	case d.Claim.UID != uid:
		return PreparedClaim{}, unreadable(file, fmt.Errorf("is about claim %s", d.Claim.UID))
	case len(d.Grants) > 0 && len(d.Grants) != len(d.Plan.Assignments):
		return PreparedClaim{}, unreadable(file, fmt.Errorf("%d grants for %d assignments", len(d.Grants),
			len(d.Plan.Assignments)))
	}
	for _, device := range gpusOf(d.Plan.Devices()) {
		if !isDevice(device) {
			return PreparedClaim{}, unreadable(file, fmt.Errorf("%q is no name of a device", device))
		}
	}
	for i, g := range d.Grants {
		d.Plan.Assignments[i].CDI = g.CDI
	}
	return PreparedClaim{Claim: d.Claim, Phase: d.Phase, BootID: d.BootID, Plan: d.Plan}, nil
}

func unreadable(file string, cause error) error {
	return fmt.Errorf("%s: %w; when no container of that claim runs any more, remove the file: %w", file, cause,
		ErrUnreadable)
}
