// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"fmt"
	"reflect"
	"sync"
)

// The numbers of handles look like pointers to C: not null, aligned, and outside of any heap.
const (
	firstHandle = 0x10000
	handleStep  = 16
)

// handles are the objects that C programs hold a handle of. One object always has the same handle, as in NVML.
type handles struct {
	mu      sync.Mutex
	numbers map[string]uint64 // by kind and identity
	objects map[uint64]any
	next    uint64
}

// put returns the handle of the object. The object replaces an older one of the same identity, because mocks remember
// every call as long as they live.
func (h *handles) put(object any) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.objects == nil {
		h.numbers, h.objects, h.next = map[string]uint64{}, map[uint64]any{}, firstHandle
	}
	identity := fmt.Sprintf("%T %p", object, object)
	if s, ok := object.(fmt.Stringer); ok {
		identity = fmt.Sprintf("%T %s", object, s)
	}
	number, ok := h.numbers[identity]
	if !ok {
		number = h.next
		h.next += handleStep
		h.numbers[identity] = number
	}
	h.objects[number] = object
	return number
}

// get returns the object of the handle, if it is of that type.
func (h *handles) get(number uint64, as reflect.Type) (reflect.Value, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := reflect.ValueOf(h.objects[number])
	return v, v.IsValid() && v.Type().Implements(as)
}

// drop forgets the object of the handle.
func (h *handles) drop(number uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.objects, number)
	for identity, n := range h.numbers {
		if n == number {
			delete(h.numbers, identity)
		}
	}
}
