// SPDX-License-Identifier: Apache-2.0

// Package checkpoint stores one durable record per claim, and locks the GPUs of claims.
//
// Two instances of the driver may use a directory at the same time, so the state is kept on disk only:
//
//	claims/<UID>.json        the record
//	devices/<GPU>/<UID>      says that the record touches the GPU or a partition of it: nobody has to read them all
//	devices/<GPU>/.lock      held while a claim on the GPU is prepared or released
//
// The records are authoritative. The files below devices/ are derived from them, and Open creates them again.
package checkpoint

import (
	"errors"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Phase is the progress of a claim.
type Phase string

const (
	// Preparing means that the hardware may be in any state between its original one and that of the plan. A plan that
	// alters nothing skips this phase, unless it waits for a daemon, because there is nothing to undo: see
	// sharing.Alters.
	Preparing Phase = "Preparing"
	// Prepared means that the hardware agrees with the plan. The CDI spec is written next, and again by each Prepare
	// and at the start of the plugin.
	Prepared Phase = "Prepared"
	// Releasing means that the plan is being undone. It never returns to another phase.
	Releasing Phase = "Releasing"
)

// PreparedClaim is the stored state of a claim: its plan and phase.
type PreparedClaim struct {
	Claim  sharing.Claim
	Phase  Phase
	BootID string // of the boot in which the claim was prepared
	Plan   sharing.Plan
}

// Holder returns the claim as a holder of its GPUs.
func (c PreparedClaim) Holder() sharing.Holder { return sharing.Holder{Claim: c.Claim, Plan: c.Plan} }

var (
	// ErrNotFound is returned when the claim has no record.
	ErrNotFound = errors.New("no record")
	// ErrUnreadable is returned when a record cannot be read. The driver never removes it, because its devices may be
	// in use.
	ErrUnreadable = errors.New("record is unreadable")
)
