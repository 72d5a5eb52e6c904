// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// EventType is a kind of event, a bit of NVML's masks (nvml.h: nvmlEventType*).
type EventType uint64

// The events that can be injected.
const (
	EventSingleBitECC   EventType = 0x1
	EventDoubleBitECC   EventType = 0x2
	EventPState         EventType = 0x4
	EventXID            EventType = 0x8
	EventClock          EventType = 0x10
	EventRecoveryAction EventType = 0x8000
)

// MaxXID is far above the XIDs of NVIDIA's catalog. NVML uses 999 for unknown ones.
const MaxXID = 1023

// Event is an event of a GPU.
type Event struct {
	GPU      string         // UUID
	Type     EventType      // one bit
	XID      uint64         `json:",omitempty"` // of EventXID
	Instance *EventInstance `json:",omitempty"` // nil: it is about the whole GPU
}

// EventInstance has the IDs of the partition that an event is about.
type EventInstance struct{ GPU, Compute int }

// eventsName is the file of events in the directory of a node: a line of JSON for each. Writers append to it, and
// replace it by a new file when it has eventsSize bytes. A reader keeps its file open, so it misses nothing then.
const (
	eventsName = "events"
	eventsSize = 1 << 20
)

// NewEvent returns an event of the device that View.Device finds. It is an error if the GPU does not report such
// events. NVML attributes only XIDs to partitions.
func (n *Node) NewEvent(which string, t EventType, xid uint64) (Event, error) {
	if xid > MaxXID || (t == EventXID) != (xid > 0) {
		return Event{}, fmt.Errorf("XID %d: want a number from 1 to %d", xid, MaxXID)
	}
	v, err := n.View()
	if err != nil {
		return Event{}, err
	}
	d, err := v.Device(which)
	if err != nil {
		return Event{}, err
	}
	if supported, e := d.SupportedEvents().Get(); e != "" || EventType(supported)&t == 0 {
		return Event{}, refuse(hwprofile.NotSupported, "%s reports no such events: the types are %#x", d.Name,
			supported)
	}
	if d.Partition == nil {
		return Event{GPU: d.UUID, Type: t, XID: xid}, nil
	}
	if t != EventXID {
		return Event{}, fmt.Errorf("%s/%s: such an event is about a whole GPU", d.Name, d.Partition.place())
	}
	return Event{GPU: d.UUID, Type: t, XID: xid,
		Instance: &EventInstance{d.Partition.Instance.ID, d.Partition.Compute.ID}}, nil
}

// Emit makes events happen, in that order. Processes that wait for them notice at once.
func (n *Node) Emit(events ...Event) error {
	if n.dir == "" {
		return fmt.Errorf("emit events: %s was attached to be read only", n.library)
	}
	var lines bytes.Buffer
	for _, e := range events {
		if err := json.NewEncoder(&lines).Encode(e); err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
	}
	err := Locked(n.dir, eventsName+".lock", func() error { return n.appendEvents(lines.Bytes()) })
	if err != nil {
		return fmt.Errorf("emit events: %w", err)
	}
	return nil
}

// appendEvents appends to the file of events, or replaces it when it is full. The caller holds its lock.
func (n *Node) appendEvents(lines []byte) error {
	path := filepath.Join(n.dir, eventsName)
	st, err := os.Stat(path)
	if err != nil || st.Size()+int64(len(lines)) > eventsSize {
		next := path + ".new"
		if err := os.WriteFile(next, lines, 0o644); err != nil {
			return err
		}
		return os.Rename(next, path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Close())
}

// Events reads the events of a node. It is not safe for concurrent use.
type Events struct {
	path string
	file *os.File // nil: there is none yet
	rest []byte   // the beginning of a line that is not complete
}

// Events returns a reader of the events that happen from now on.
func (n *Node) Events() *Events {
	e := &Events{path: filepath.Join(n.dir, eventsName)}
	if n.dir == "" {
		e.path = "" // without a directory there are none
	}
	if f, err := os.Open(e.path); err == nil {
		if _, err := f.Seek(0, io.SeekEnd); err == nil {
			e.file = f
		}
	}
	return e
}

// Next returns the events since the last call, in order. Those of a replaced file come before those of the next one.
func (e *Events) Next() []Event {
	out := e.read(nil)
	at, err := os.Stat(e.path)
	if err != nil || e.isAt(at) {
		return out
	}
	f, err := os.Open(e.path)
	if err != nil {
		return out
	}
	out = e.read(out) // what was written before the file was replaced
	e.Close()
	e.file, e.rest = f, nil
	return e.read(out)
}

// isAt reports whether the open file is the one at the path.
func (e *Events) isAt(path os.FileInfo) bool {
	if e.file == nil {
		return false
	}
	st, err := e.file.Stat()
	return err == nil && os.SameFile(st, path)
}

// read appends what is new in the open file. A line that a dead process left incomplete is dropped with the next one.
func (e *Events) read(out []Event) []Event {
	if e.file == nil {
		return out
	}
	added, err := io.ReadAll(e.file)
	if err != nil || len(added) == 0 {
		return out
	}
	e.rest = append(e.rest, added...)
	for {
		line, rest, complete := bytes.Cut(e.rest, []byte("\n"))
		if !complete {
			e.rest = bytes.Clone(e.rest)
			return out
		}
		var event Event
		if json.Unmarshal(line, &event) == nil {
			out = append(out, event)
		}
		e.rest = rest
	}
}

// Close ends the reading. It may be called again.
func (e *Events) Close() {
	if e.file != nil {
		_ = e.file.Close()
		e.file = nil
	}
}

// SupportedEvents is the answer of GetSupportedEventTypes. A profile without one has XIDs and clocks, and those of ECC
// if that is on. A GPU that is older than Fermi, or virtual, has no events.
func (c GPU) SupportedEvents() hwprofile.Answer[uint64] {
	const fermi = 2
	capability, _ := c.Calls.GetCudaComputeCapability.Get()
	brand, _ := c.Calls.GetBrand.Get()
	ecc, _ := c.Calls.GetEccMode.Get()
	types := EventXID | EventClock
	if ecc.Current == hwprofile.Enabled {
		types |= EventSingleBitECC | EventDoubleBitECC
	}
	if capability.Major < fermi || brand.Virtual() {
		return c.Calls.GetSupportedEventTypes
	}
	return c.Calls.GetSupportedEventTypes.Or(uint64(types))
}
