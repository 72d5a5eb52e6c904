// SPDX-License-Identifier: Apache-2.0

// Package binding calls go-nvml's nvml.Interface as the C functions of NVML are called: with numbers, and with pointers
// to where the answers go. It compares the sizes of C's types with those of go-nvml. A function whose parameters do not
// fit returns ERROR_NOT_SUPPORTED.
package binding

import (
	"reflect"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is NVML behind its C interface. It is safe for concurrent use.
type Library struct {
	open    func() (nvml.Interface, nvml.Return)
	handles handles

	mu   sync.RWMutex
	uses []nvml.Interface // one for each Init without Shutdown

	functions sync.Map // from a name to its caller, nil for one that is not supported
}

// New returns a library that opens NVML when it is initialized. What open returns is initialized.
func New(open func() (nvml.Interface, nvml.Return)) *Library { return &Library{open: open} }

// Call calls the C function of that name. A value is a number or a pointer. Its size is that of what the pointer points
// to, and 0 for a number.
func (l *Library) Call(name string, values []uint64, sizes []uint32) (ret nvml.Return) {
	defer func() {
		if recover() != nil { // go-nvml's mocks panic; a program of others must not end because of them
			ret = nvml.ERROR_UNKNOWN
		}
	}()
	switch name {
	case "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags":
		return l.init()
	case "nvmlShutdown":
		return l.shutdown()
	}
	lib := l.current()
	if lib == nil {
		return nvml.ERROR_UNINITIALIZED
	}
	call := l.function(name, sizes)
	if call == nil {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return call(&l.handles, lib, values)
}

func (l *Library) init() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	lib, ret := l.open()
	if ret == nvml.SUCCESS {
		l.uses = append(l.uses, lib)
	}
	return ret
}

// current returns NVML as the last Init opened it, nil after the last Shutdown.
func (l *Library) current() nvml.Interface {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.uses) == 0 {
		return nil
	}
	return l.uses[len(l.uses)-1]
}

func (l *Library) shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.uses) == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	last := len(l.uses) - 1
	ret := l.uses[last].Shutdown()
	l.uses = l.uses[:last]
	return ret
}

// function returns the function of that name, or nil if it is not supported.
func (l *Library) function(name string, sizes []uint32) caller {
	if f, ok := l.functions.Load(name); ok {
		return f.(caller)
	}
	f := bind(name, sizes)
	l.functions.Store(name, f)
	return f
}

// caller is a C function: it takes the values of a call and returns what the function returns.
type caller func(h *handles, lib nvml.Interface, values []uint64) nvml.Return

var interfaceType = reflect.TypeFor[nvml.Interface]()

// bind finds the method of nvml.Interface for a C function: the one of the same name, or of the name without version,
// which go-nvml uses for the newest one. It returns nil if there is none whose parameters fit.
func bind(name string, sizes []uint32) caller {
	call := strings.TrimPrefix(name, "nvml")
	if f, ok := special[call]; ok {
		return f
	}
	plain, _, _ := strings.Cut(call, "_v")
	for _, candidate := range []string{call, plain} {
		m, ok := interfaceType.MethodByName(candidate)
		if !ok {
			continue
		}
		if f := newFunction(m, sizes); f != nil {
			return f.call
		}
	}
	return nil
}
