// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
)

// Kinds of a Refusal, for errors.Is.
var (
	// ErrInUse means that other claims hold the device, or do not leave enough of it.
	ErrInUse = errors.New("device in use")
	// ErrGone means that the allocated device is not on this node, or does not answer.
	ErrGone = errors.New("no such device on this node")
	// ErrAdminOnly means that the device is for requests with admin access, and this request has none.
	ErrAdminOnly = errors.New("device is for admin access only")
	// ErrConflict means that another claim has a share of the device with other settings.
	ErrConflict = errors.New("settings of another claim are in force")
	// ErrRefused means that the device cannot be used as the claim's configuration asks.
	ErrRefused = errors.New("configuration refused")
	// ErrTooLarge is an ErrRefused for a limit above what the device has: a larger device may accept it.
	ErrTooLarge = fmt.Errorf("%w", ErrRefused)
)

// Refusal says why a request cannot have its allocated device.
type Refusal struct {
	Request string // as in the allocation: "main/sub" for an alternative; empty: a container's requests together
	Device  string // empty: Reason names several devices
	Path    string // of a field in the configuration: "sharing.strategy"; empty: the refusal is about the device
	Value   string // of that field; may be empty
	// for people, with what to do: a sentence, or, without Path, a predicate of the device: "is held by …"
	Reason string
	Change string // of the pod or of the claim that would help; empty: Reason says what to do
	Kind   error  // ErrInUse, ErrGone, ErrAdminOnly, ErrConflict, ErrRefused or ErrTooLarge
}

// Error returns the request, the text and the kind.
func (r *Refusal) Error() string {
	text := r.Kind.Error()
	if t := r.Text(); t != "" {
		text = t + ": " + text
	}
	if r.Request == "" {
		return text
	}
	return "request " + r.Request + ": " + text
}

// Text returns the device, the field with its value, if any, and the reason.
func (r *Refusal) Text() string {
	field, reason := r.Path, r.Reason
	if r.Change != "" {
		reason += ": " + r.Change
	}
	if r.Value != "" {
		field += " " + r.Value
	}
	switch {
	case r.Device == "":
		return reason
	case reason == "":
		return "device " + r.Device
	case field == "":
		return "device " + r.Device + " " + reason
	}
	return "device " + r.Device + ": " + field + ": " + reason
}

func (r *Refusal) Unwrap() error { return r.Kind }

// refuse returns a Refusal; NewPlan adds the request and the device.
func refuse(kind error, format string, args ...any) error {
	return &Refusal{Reason: fmt.Sprintf(format, args...), Kind: kind}
}

// refuseField returns a Refusal of the value of a configuration field.
func refuseField(kind error, path, value, format string, args ...any) error {
	return &Refusal{Path: path, Value: value, Reason: fmt.Sprintf(format, args...), Kind: kind}
}

// about adds the request and the device to a Refusal, or to each of joined ones.
func about(err error, request, device string) error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // of errors.Join
		errs := many.Unwrap()
		for i, one := range errs {
			errs[i] = about(one, request, device)
		}
		return errors.Join(errs...)
	}
	var r *Refusal
	if errors.As(err, &r) {
		r.Request, r.Device = request, device
	}
	return err
}
