// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// Fault makes a call of a GPU return an error or take long. Exactly one of the first two fields is set.
type Fault struct {
	Error hwprofile.Error `json:",omitempty"`
	Delay time.Duration   `json:",omitempty"`
	After int             `json:",omitempty"` // number of calls before it takes effect
	Times int             `json:",omitempty"` // number of calls affected after that; 0: all
	Spent bool            `json:",omitempty"` // it has affected Times calls
}

// simple reports whether the fault is an error of every call: the only kind that format 1 of the state has.
func (f Fault) simple() bool { return f == Fault{Error: f.Error} }

// counts reports whether the fault counts calls.
func (f Fault) counts() bool { return !f.Spent && (f.After > 0 || f.Times > 0) }

// now reports whether the fault affects the next call.
func (f Fault) now() bool { return !f.Spent && f.After == 0 }

// counted returns the fault after one more call.
func (f Fault) counted() Fault {
	switch {
	case f.After > 0:
		f.After--
	case f.Times > 0:
		f.Times--
		f.Spent = f.Times == 0
	}
	return f
}

func (f Fault) check() error {
	switch {
	case f.Error == "" && f.Delay <= 0:
		return errors.New("neither an error nor a delay of more than nothing")
	case f.Error != "" && f.Delay != 0:
		return errors.New("an error and a delay are two faults")
	case f.After < 0 || f.Times < 0 || f.Spent:
		return errors.New("a fault is for so many calls after so many others, both at least 0")
	case f.Error != "":
		_, err := hwprofile.ParseError(string(f.Error))
		return err
	}
	return nil
}

// String is the fault as the node prints it.
func (f Fault) String() string {
	text := string(f.Error)
	if f.Delay != 0 {
		text = f.Delay.String()
	}
	if f.After > 0 {
		text += fmt.Sprintf(" after=%d", f.After)
	}
	if f.Times > 0 {
		text += fmt.Sprintf(" times=%d", f.Times)
	}
	if f.Spent {
		text += " spent"
	}
	return text
}

// MarshalJSON writes a simple fault as format 1 of the state does: the error only.
func (f Fault) MarshalJSON() ([]byte, error) {
	if f.simple() {
		return json.Marshal(f.Error)
	}
	type fields Fault
	return json.Marshal(fields(f))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Fault) UnmarshalJSON(b []byte) error {
	*f = Fault{}
	if bytes.HasPrefix(b, []byte(`"`)) {
		return json.Unmarshal(b, &f.Error)
	}
	type fields Fault
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode((*fields)(f))
}

// Fail makes a call of the GPU return the error. AllCalls means every call.
func (n *Node) Fail(which, call string, e hwprofile.Error) error {
	return n.Inject(which, call, Fault{Error: e})
}

// Slow makes a call of the GPU take longer by d. AllCalls means every call.
func (n *Node) Slow(which, call string, d time.Duration) error {
	return n.Inject(which, call, Fault{Delay: d})
}

// Inject injects a fault into a call of the GPU. It replaces an earlier fault of the same kind, error or delay.
// AllCalls means every call. An error and a delay of the same call are two faults, and each counts the calls. Another
// driver may have the GPU: its calls fail when it is back.
func (n *Node) Inject(which, call string, f Fault) error {
	if call != AllCalls && !hwprofile.KnownCall(call) {
		return hwprofile.UnknownCall(call)
	}
	if err := f.check(); err != nil {
		return err
	}
	return n.changePresent(which, func(_ GPU, s *GPUState) error {
		faults := &s.Faults
		if f.Delay != 0 {
			faults = &s.Delays
		}
		if *faults == nil {
			*faults = map[string]Fault{}
		}
		(*faults)[call] = f
		return nil
	})
}

// Heal removes all faults of the GPU, also while another driver has it. It is no error if there are none. It does not
// plug an unplugged GPU back.
func (n *Node) Heal(which string) error {
	return n.changePresent(which, func(_ GPU, s *GPUState) error {
		s.Faults, s.Delays = nil, nil
		return nil
	})
}

// Fault returns the error of the next such call: the injected one, ERROR_GPU_IS_LOST if the GPU is unplugged, otherwise
// "".
func (c GPU) Fault(call string) hwprofile.Error {
	if c.State.Unplugged {
		return hwprofile.LostGPU
	}
	return activeFault(c.State.Faults, call).Error
}

// Delay returns the injected delay of the next such call.
func (c GPU) Delay(call string) time.Duration { return activeFault(c.State.Delays, call).Delay }

// Delayed reports whether a delay is injected into the call, spent or not.
func (c GPU) Delayed(call string) bool {
	_, one := c.State.Delays[call]
	_, all := c.State.Delays[AllCalls]
	return one || all
}

// Healthy reports whether the GPU is plugged in and has no faults.
func (c GPU) Healthy() bool {
	return !c.State.Unplugged && len(c.State.Faults) == 0 && len(c.State.Delays) == 0
}

// faultsOf returns the names of the faults that affect a call: its own, then AllCalls. The wait for events is for
// several GPUs, so it is not one of AllCalls.
func faultsOf(call string) []string {
	if call == hwprofile.WaitCall {
		return []string{call}
	}
	return []string{call, AllCalls}
}

// activeFault returns the fault that affects the next such call: its own, otherwise that of AllCalls.
func activeFault(faults map[string]Fault, call string) Fault {
	for _, name := range faultsOf(call) {
		if f, ok := faults[name]; ok && f.now() {
			return f
		}
	}
	return Fault{}
}

// TakeFault returns the injected delay and error of a call that happens now. If faults count the calls, the new count
// is on disk when it returns.
func (n *Node) TakeFault(uuid, call string) (delay time.Duration, e hwprofile.Error, err error) {
	v, err := n.View()
	if err != nil {
		return 0, "", err
	}
	at := slices.IndexFunc(v.GPUs, func(c GPU) bool { return c.UUID == uuid })
	if at < 0 {
		return 0, hwprofile.LostGPU, nil
	}
	c := v.GPUs[at]
	if n.dir == "" || !counting(c.State.Faults, call) && !counting(c.State.Delays, call) {
		return c.Delay(call), c.Fault(call), nil
	}
	err = n.change(uuid, func(c GPU, s *GPUState) error {
		delay, e = c.Delay(call), c.Fault(call)
		count(s.Faults, call)
		count(s.Delays, call)
		return nil
	})
	return delay, e, err
}

func counting(faults map[string]Fault, call string) bool {
	return slices.ContainsFunc(faultsOf(call), func(name string) bool { return faults[name].counts() })
}

func count(faults map[string]Fault, call string) {
	for _, name := range faultsOf(call) {
		if f, ok := faults[name]; ok {
			faults[name] = f.counted()
		}
	}
}
