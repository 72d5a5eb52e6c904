// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// MachineConfig configures a Machine.
type MachineConfig struct {
	Library nvmllib.Interface // nil: the one in the driver root
	Sysfs   string            // where sysfs is mounted: "/sys" on a real machine
	// ContainersOnly says that no GPU is offered to virtual machines. IOMMU groups are then read only while vfio-pci
	// has functions: a claim may hold one of them.
	ContainersOnly bool
	// WriteSysfs writes a file of sysfs; nil: like a shell does.
	WriteSysfs func(file, text string) error
	// Dev is where the host's device nodes are seen, for virtual machines. HostDev says that they are in the host's
	// "/dev"; otherwise Dev is their directory there, too.
	Dev      string
	HostDev  bool
	Proc     string // where proc is mounted: "/proc" on a real machine
	Driver   driverroot.Root
	CgroupV1 bool // the machine has no cgroup v2
	// Timeout is how long a GPU may take to answer Discover; 0: 10 s.
	Timeout time.Duration
	// EventWait is how long one call waits for events, and at most how long NVML stays open when it is to be closed:
	// nothing interrupts the call. The end of the program does not wait for it. 0: 5 s, and 250 ms while a GPU can be
	// given to a virtual machine.
	EventWait time.Duration
}

// ErrDriverReplaced means that the driver's library is not the one that this process has loaded. A process can load one
// only: go-nvml's calls stay bound to the first.
var ErrDriverReplaced = errors.New("NVIDIA's driver was replaced: this program must be started again")

// Machine gives access to the GPUs of this machine. It opens an NVML session when it needs one, and Discover closes it
// where it can. All methods are safe for concurrent use.
type Machine struct {
	MachineConfig
	follows bool // the library on disk; otherwise the first session stays

	giving      sync.Mutex // held while NVML is closed for a change of a GPU's driver
	opening     sync.Mutex // held while a session is opened, or while none may be
	mu          sync.Mutex
	current     *session    // nil: none is open
	initialised int         // sessions that are not shut down, with retired ones
	loaded      os.FileInfo // the library of the last session; nil: not followed

	calls calls
	known known
	watch watch
}

// New returns a Machine that opens its session on first use, so that the driver may be installed later.
func New(c MachineConfig) *Machine { return &Machine{MachineConfig: c, follows: true} }

// Open returns a Machine with one session, which stays open until Close.
func Open(c MachineConfig) (*Machine, error) {
	m := &Machine{MachineConfig: c}
	s, err := m.acquire(&asked{})
	if err != nil {
		return nil, err
	}
	m.release(s)
	return m, nil
}

// Close ends the session. It is no error if there is none.
func (m *Machine) Close() error { return m.retire(func(*session) bool { return true }) }

// session is an initialised NVML library, until its shutdown.
type session struct {
	config  *MachineConfig // of the Machine
	known   *known         // of the Machine
	lib     nvmllib.Interface
	devices device.Interface
	file    os.FileInfo // of the library on disk; nil: not followed
	bound   []string    // the functions of the PCI bus that NVIDIA's driver had when it was opened

	users   int  // running calls; under Machine.mu
	retired bool // the last user shuts it down

	handles sync.Map // UUID of a GPU → nvmllib.Device
}

// has reports whether the library has the function. A call of one that it lacks ends the program: the binding to it
// fails. Those that R470 has need no check (oldestDriver).
func (s *session) has(function string) bool { return s.lib.Extensions().LookupSymbol(function) == nil }

// acquire returns the session and opens it if needed, unless the caller has given up by then. The caller must release
// it. m.mu is not held while NVML is called. Errors: ErrReleased, errNotAsked.
func (m *Machine) acquire(a *asked) (*session, error) {
	m.opening.Lock() // one call opens it, and the others wait
	defer m.opening.Unlock()
	if err := m.watch.refusal(); err != nil {
		return nil, err
	}
	if s := m.enter(); s != nil {
		return s, nil
	}
	if err := a.ask(driver); err != nil {
		return nil, err
	}
	s, err := m.open()
	if err != nil {
		return nil, err
	}
	s.users = 1
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current, m.loaded = s, s.file
	m.initialised++
	return s, nil
}

// enter returns the current session, with one more user; nil: there is none.
func (m *Machine) enter() *session {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current != nil {
		m.current.users++
	}
	return m.current
}

// hold adds a use of the session, and returns false if it has none any more: it may be shut down.
func (m *Machine) hold(s *session) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.users > 0 {
		s.users++
	}
	return s.users > 0
}

// release ends one use of a session. The last user of a retired session shuts it down. While no events are watched, the
// last user of any session shuts it down, so that GPUs can be reset.
func (m *Machine) release(s *session) {
	closes := m.follows && m.known.persistent() && m.watch.isStopped()
	m.mu.Lock()
	s.users--
	if closes && s.users == 0 && m.current == s {
		m.current, s.retired = nil, true
	}
	last := s.retired && s.users == 0
	m.mu.Unlock()
	if last {
		_ = m.shutdown(s) // nobody waits for the answer
	}
}

func (m *Machine) shutdown(s *session) error {
	ret := s.lib.Shutdown()
	m.mu.Lock()
	m.initialised--
	m.mu.Unlock()
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("shut NVML down: %w", ret)
	}
	return nil
}

// open initialises the library.
func (m *Machine) open() (*session, error) {
	s := &session{config: &m.MachineConfig, known: &m.known, lib: m.Library}
	if m.follows || s.lib == nil {
		path, file, err := m.libraryFile()
		if err != nil {
			return nil, err
		}
		s.file = file
		if s.lib == nil {
			if err := m.load(file); err != nil {
				return nil, err
			}
			s.lib = nvmllib.New(nvmllib.WithLibraryPath(path))
		}
	}
	s.bound = m.bus().BoundToNVIDIA()
	// A machine without GPUs is no error: they may be added, or come back.
	if ret := s.lib.InitWithFlags(nvmllib.INIT_FLAG_NO_GPUS); ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("initialise NVML: %w", ret)
	}
	s.devices = device.New(s.lib)
	return s, nil
}

// load records that the library is loaded. Error: ErrDriverReplaced if another one is.
func (m *Machine) load(library os.FileInfo) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loaded != nil && !os.SameFile(m.loaded, library) {
		return ErrDriverReplaced
	}
	m.loaded = library // also if it cannot be initialised
	return nil
}

// libraryFile returns the library on disk. Another version has another file.
func (m *Machine) libraryFile() (string, os.FileInfo, error) {
	path, err := m.Driver.Library()
	if err != nil {
		return "", nil, err
	}
	file, err := os.Stat(path)
	return path, file, err
}

// DriverChanged reports whether the library on disk differs from that of the last session.
func (m *Machine) DriverChanged() bool {
	_, file, err := m.libraryFile()
	m.mu.Lock()
	defer m.mu.Unlock()
	return err == nil && m.follows && m.loaded != nil && !os.SameFile(m.loaded, file)
}

// LibraryDir returns the directory of the library on disk; "" if there is none.
func (m *Machine) LibraryDir() string {
	path, _, err := m.libraryFile()
	if err != nil {
		return ""
	}
	return filepath.Dir(path)
}

// refresh ends the session if the library on disk differs from that of the session.
func (m *Machine) refresh() error {
	if !m.follows {
		return nil
	}
	_, file, err := m.libraryFile()
	if err != nil {
		return err
	}
	return m.retire(func(s *session) bool { return !os.SameFile(s.file, file) })
}

// renew ends the session, so that the next call opens another one. It does nothing while a call uses the session,
// because NVML would only decrease its reference count.
func (m *Machine) renew() error {
	return m.retire(func(s *session) bool { return m.follows && s.users == 0 })
}

// retire ends the current session, as soon as no call uses it, if ends returns true for it.
func (m *Machine) retire(ends func(*session) bool) error {
	m.mu.Lock()
	s := m.current
	if s == nil || !ends(s) {
		m.mu.Unlock()
		return nil
	}
	m.current, s.retired = nil, true
	unused := s.users == 0
	m.mu.Unlock()
	if !unused {
		return nil
	}
	return m.shutdown(s)
}

// handle returns NVML's handle of a GPU or a partition. The index of a GPU is known from the last discovery. NVML may
// query other GPUs to find a UUID.
func (s *session) handle(id gpu.UUID) (nvmllib.Device, error) {
	if known, ok := s.handles.Load(id); ok {
		return known.(nvmllib.Device), nil
	}
	if index, ok := s.known.indexOf(id); ok {
		if handle, ret := s.lib.DeviceGetHandleByIndex(index); ret == nvmllib.SUCCESS {
			if uuid, ret := handle.GetUUID(); ret == nvmllib.SUCCESS && uuid == string(id) {
				s.handles.Store(id, handle)
				return handle, nil
			}
		}
	}
	handle, ret := s.lib.DeviceGetHandleByUUID(string(id))
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("get handle of GPU %s: %w", id, ret)
	}
	return handle, nil
}

// needsReset reports whether the error means that the GPU has gone, or answers no more before it is reset: its settings
// and partitions end with that.
func needsReset(err error) bool {
	return errors.Is(err, nvmllib.ERROR_NOT_FOUND) || errors.Is(err, nvmllib.ERROR_GPU_IS_LOST) ||
		errors.Is(err, nvmllib.ERROR_GPU_NOT_FOUND) || errors.Is(err, nvmllib.ERROR_RESET_REQUIRED)
}
