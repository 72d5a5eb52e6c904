// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"slices"
	"strings"
)

// SharingMode says how claims may use a GPU, as the administrator configures it. The zero value is the default: shares
// of any size, enforced by MPS.
type SharingMode struct {
	Sharing  Sharing
	Replicas int // how many claims may hold the GPU at once, for Replicated
	// Partitions says which partitions claims can get, besides the whole GPU.
	Partitions Partitions `json:",omitempty"`
	// OnDemand publishes possible partitions of the GPU only as they are needed, for PartitionsDynamic. What an
	// administrator has chosen may have it for PartitionsAuto.
	OnDemand bool `json:",omitempty"`
	// Isolation is what enforces a share.
	Isolation Isolation
	// NoPassthrough keeps the GPU from virtual machines.
	NoPassthrough bool `json:",omitempty"`
	// SharedOnly reserves a replicated or unlimited GPU for requests for shared ones (nvidia.com/gpu.shared), as the
	// device plugin's renameByDefault does.
	SharedOnly bool `json:",omitempty"`
	// OnePerClaim refuses claims for several replicas, as the device plugin's failRequestsGreaterThanOne does.
	OnePerClaim bool `json:",omitempty"`
	// Hook is the CUDA interposer that enforces shares, for IsolationHook.
	Hook HookLibrary `json:",omitzero"`
}

// MaxMPSClients is the maximum number of clients of an MPS server, from Volta on.
const MaxMPSClients = 48

// EnforceableOn returns the mode with what the GPU can enforce: see Unenforceable. A GPU that would have shares is
// exclusive then, so that no share is silently without limits. Replicas, which somebody wants, are only counted.
func (m SharingMode) EnforceableOn(d Device) SharingMode {
	if m.Unenforceable(d) == "" {
		return m
	}
	switch m.Sharing {
	case Fractional:
		m.Sharing = Exclusive
	case Replicated:
		m.Isolation = IsolationNone
	}
	return m
}

// Unenforceable says why the isolation limits nothing on the GPU; empty: it does. MPS does not before Volta, and on no
// vGPU; whether a cgroup does is not known without the version of NVIDIA's driver.
func (m SharingMode) Unenforceable(d Device) string {
	switch {
	case m.Isolation == IsolationMPS && d.Guest != nil:
		return "the driver uses no MPS on a vGPU"
	case m.Isolation == IsolationMPS && !d.MPSLimits():
		return "MPS limits nothing before Volta"
	case m.Isolation == IsolationCgroup && d.DriverVersion != "":
		return d.NoMemoryLimit()
	}
	return ""
}

// String is for people and complete: "fractional, isolation mps", "replicated: 10, isolation none, shared only",
// "exclusive".
func (m SharingMode) String() string {
	text := m.Sharing.String()
	if m.Sharing == Exclusive {
		return text + m.others()
	}
	if m.Sharing == Replicated {
		text += fmt.Sprintf(": %d", m.Replicas)
	}
	text += ", isolation " + m.Isolation.String()
	if m.Hook.Path != "" {
		text += " (" + m.Hook.Path + ")"
	}
	if m.SharedOnly {
		text += ", shared only"
	}
	if m.OnePerClaim {
		text += ", one per claim"
	}
	return text + m.others()
}

// others describes the devices besides the whole GPU.
func (m SharingMode) others() (text string) {
	switch {
	case m.OnDemand:
		text = ", partitions " + PartitionsOnDemand.String()
	case m.Partitions != PartitionsAuto:
		text = ", partitions " + m.Partitions.String()
	}
	if m.NoPassthrough {
		text += ", no passthrough"
	}
	return text
}

// HookLibrary is a library that intercepts CUDA calls, supplied by the administrator.
type HookLibrary struct {
	Path string `json:",omitempty"` // on the host
}

// Sharing reports whether and how claims share a GPU.
type Sharing int

const (
	// Fractional GPUs are divided into shares of any size; a claim that requests no amount gets the whole GPU.
	Fractional Sharing = iota
	// Replicated GPUs are given to a fixed number of claims at once.
	Replicated
	// Exclusive GPUs are given to one claim at a time.
	Exclusive
	// Unlimited GPUs are given to any number of claims at once, and nothing limits what each of them uses.
	Unlimited
)

// Isolation says what enforces the limits of a share.
type Isolation int

const (
	// IsolationMPS is CUDA's Multi-Process Service: it limits memory and multiprocessors of each client.
	IsolationMPS Isolation = iota
	// IsolationNone means that shares are counted and not enforced.
	IsolationNone
	// IsolationHook is a library that intercepts CUDA calls.
	IsolationHook
	// IsolationCgroup is the memory limit of NVIDIA's driver for a cgroup.
	IsolationCgroup
)

var (
	sharings   = []string{"fractional", "replicated", "exclusive", "unlimited"}
	isolations = []string{"mps", "none", "hook", "cgroup"}
)

func (s Sharing) String() string   { return sharings[s] }
func (i Isolation) String() string { return isolations[i] }

// MarshalText writes the name.
func (s Sharing) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText writes the name.
func (i Isolation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads the name. The error lists the names.
func (s *Sharing) UnmarshalText(text []byte) error {
	n, err := indexOf(sharings, string(text))
	*s = Sharing(n)
	return err
}

// UnmarshalText reads the name. The error lists the names.
func (i *Isolation) UnmarshalText(text []byte) error {
	n, err := indexOf(isolations, string(text))
	*i = Isolation(n)
	return err
}

func indexOf(names []string, name string) (int, error) {
	n := slices.Index(names, name)
	if n < 0 {
		return 0, fmt.Errorf("%q: want one of %s", name, strings.Join(names, ", "))
	}
	return n, nil
}
