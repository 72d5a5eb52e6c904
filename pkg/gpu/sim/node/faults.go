// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Fault is what is wrong with a call of a GPU: it answers an error, or it takes long. One of the first two fields is set.
type Fault struct {
	Error Error         `json:",omitempty"`
	Delay time.Duration `json:",omitempty"`
	After int           `json:",omitempty"` // so many calls are spared first
	Times int           `json:",omitempty"` // so many calls it befalls then; 0: all that come
	Spent bool          `json:",omitempty"` // it has befallen as many as it should
}

// simple says whether the fault is an error that befalls every call, which is all that format 1 of the state knows.
func (f Fault) simple() bool { return f == Fault{Error: f.Error} }

// counts says whether calls must be counted for it.
func (f Fault) counts() bool { return !f.Spent && (f.After > 0 || f.Times > 0) }

// now says whether it befalls a call that is made now.
func (f Fault) now() bool { return !f.Spent && f.After == 0 }

// counted is the fault when one more call has been made.
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
		_, err := ParseError(string(f.Error))
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

// MarshalJSON writes a simple fault as format 1 of the state does: as its error alone.
func (f Fault) MarshalJSON() ([]byte, error) {
	if f.simple() {
		return json.Marshal(f.Error)
	}
	type fields Fault
	return json.Marshal(fields(f))
}

// UnmarshalJSON reads what MarshalJSON has written.
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

// Fail makes a call of the GPU answer the error from now on; the call AllCalls stands for every call.
func (n *Node) Fail(which, call string, e Error) error {
	return n.Inject(which, call, Fault{Error: e})
}

// Slow makes a call of the GPU take so long from now on; the call AllCalls stands for every call.
func (n *Node) Slow(which, call string, d time.Duration) error {
	return n.Inject(which, call, Fault{Delay: d})
}

// Inject makes something wrong with a call of the GPU, in place of what was wrong with it in that way before; the call AllCalls
// stands for every call. A call may both take long and answer an error: these are two faults, each of which counts the calls.
func (n *Node) Inject(which, call string, f Fault) error {
	if call != AllCalls && !KnownCall(call) {
		return unknownCall(call)
	}
	if err := f.check(); err != nil {
		return err
	}
	return n.change(which, func(_ Card, s *GPUState) error {
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

// Heal takes all faults of the GPU away. It is no error if there are none. It does not plug the GPU in.
func (n *Node) Heal(which string) error {
	return n.change(which, func(_ Card, s *GPUState) error {
		s.Faults, s.Delays = nil, nil
		return nil
	})
}

// Fault is the error that the call would answer instead of the truth, "" when none.
func (c Card) Fault(call string) Error {
	if c.State.Unplugged {
		return LostGPU
	}
	return befalling(c.State.Faults, call).Error
}

// Delay is how long the call would take longer than it should.
func (c Card) Delay(call string) time.Duration { return befalling(c.State.Delays, call).Delay }

// Delayed says whether an order that the call takes long is still in force, be it spent or not.
func (c Card) Delayed(call string) bool {
	_, one := c.State.Delays[call]
	_, all := c.State.Delays[AllCalls]
	return one || all
}

// Healthy says that there is nothing wrong with any call of the GPU.
func (c Card) Healthy() bool {
	return !c.State.Unplugged && len(c.State.Faults) == 0 && len(c.State.Delays) == 0
}

// befalling is what befalls the call now: what was ordered for it, else what was ordered for all.
func befalling(faults map[string]Fault, call string) Fault {
	for _, name := range []string{call, AllCalls} {
		if f, ok := faults[name]; ok && f.now() {
			return f
		}
	}
	return Fault{}
}

// Befall is what befalls a call that somebody makes now: how much longer it takes, and the error that it answers then instead of
// the truth. Where faults count the calls, this one has been counted on disk when Befall returns.
func (n *Node) Befall(uuid, call string) (delay time.Duration, e Error, err error) {
	v, err := n.View()
	if err != nil {
		return 0, "", err
	}
	at := slices.IndexFunc(v.GPUs, func(c Card) bool { return c.UUID == uuid })
	if at < 0 {
		return 0, LostGPU, nil
	}
	c := v.GPUs[at]
	if n.dir == "" || !counting(c.State.Faults, call) && !counting(c.State.Delays, call) {
		return c.Delay(call), c.Fault(call), nil
	}
	err = n.change(uuid, func(c Card, s *GPUState) error {
		delay, e = c.Delay(call), c.Fault(call)
		count(s.Faults, call)
		count(s.Delays, call)
		return nil
	})
	return delay, e, err
}

func counting(faults map[string]Fault, call string) bool {
	return faults[call].counts() || faults[AllCalls].counts()
}

func count(faults map[string]Fault, call string) {
	for _, name := range []string{call, AllCalls} {
		if f, ok := faults[name]; ok {
			faults[name] = f.counted()
		}
	}
}
