// SPDX-License-Identifier: Apache-2.0

// Package checkpoint keeps one durable record per claim, and the locks over the devices that claims touch.
//
// Two instances of the driver may use a directory at the same time, so nothing is kept in memory between calls:
//
//	claims/<UID>.json        the record
//	devices/<GPU>/<UID>      says that the record touches the GPU or a partition of it, so that nobody has to read them all to find out
//	devices/<GPU>/.lock      held while a claim on the GPU is prepared or released
//
// The records are the truth. What is below devices/ is derived from them and is made again by Open.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Phase says how far a claim has come.
type Phase string

const (
	// Preparing means that the hardware may be anywhere between what it was and what the plan says. A plan that changes no hardware
	// needs no such phase: until it is Prepared, there is nothing to undo.
	Preparing Phase = "Preparing"
	// Prepared means that hardware and CDI agree with the plan.
	Prepared Phase = "Prepared"
	// Releasing means being undone. It never goes back.
	Releasing Phase = "Releasing"
)

// Record is all that is known about a claim: what it wants, and what came of it.
type Record struct {
	Version int           `json:"version"` // set by Put
	Claim   sharing.Claim `json:"claim"`
	Phase   Phase         `json:"phase"`
	BootID  string        `json:"bootID"` // of the machine's run in which the claim was prepared
	Plan    sharing.Plan  `json:"plan"`
	Grants  []Grant       `json:"grants"`
}

// Grant is one prepared device, as the kubelet is told.
type Grant struct {
	Request string    `json:"request"`
	Pool    string    `json:"pool"`
	Device  string    `json:"device"`
	ShareID types.UID `json:"shareID,omitempty"`
	CDI     []string  `json:"cdi"` // qualified names of CDI devices
}

// version is the newest format that this driver knows. It reads all up to it, and writes the oldest that can hold the record, so that
// the driver that a downgrade brings back knows what it has to undo. Format 1 knows whole GPUs as they are; format 2 also shares of
// them, settings and limits; format 3 also partitions.
const version = 3

// oldest is the oldest format that can hold the record.
func (r Record) oldest() int {
	if slices.ContainsFunc(r.Plan.Assignments, func(a sharing.Assignment) bool { return a.Partition != nil }) {
		return 3
	}
	newer := func(a sharing.Assignment) bool {
		return a.ChangesHardware() || a.Share != nil || a.Hook != nil || a.Cgroup != nil
	}
	if r.Phase == Preparing || slices.ContainsFunc(r.Plan.Assignments, newer) {
		return 2
	}
	return 1
}

var (
	// ErrNotFound means that there is no record of the claim.
	ErrNotFound = errors.New("no record")
	// ErrUnreadable means that there is a record and nobody knows what it says. It is never thrown away by the driver: it may stand
	// for a device that is in use.
	ErrUnreadable = errors.New("record is unreadable")
)

func encode(rec Record) ([]byte, error) {
	rec.Version = rec.oldest()
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// decode reads a record. file is for the error, which tells what to do.
func decode(data []byte, uid types.UID, file string) (Record, error) {
	var rec Record
	if err := json.Unmarshal(data, &rec); err != nil {
		return Record{}, unreadable(file, err)
	}
	switch {
	case rec.Version > version:
		return Record{}, fmt.Errorf("%s: format %d is from a newer driver, this one reads up to %d; run that driver again until its claims are gone: %w",
			file, rec.Version, version, ErrUnreadable)
	case rec.Version < 1 || !slices.Contains([]Phase{Preparing, Prepared, Releasing}, rec.Phase):
		return Record{}, unreadable(file, fmt.Errorf("version %d, phase %q", rec.Version, rec.Phase))
	case rec.Claim.UID != uid:
		return Record{}, unreadable(file, fmt.Errorf("is about claim %s", rec.Claim.UID))
	}
	return rec, nil
}

func unreadable(file string, cause error) error {
	return fmt.Errorf("%s: %w; when no container of that claim runs any more, remove the file: %w", file, cause, ErrUnreadable)
}
