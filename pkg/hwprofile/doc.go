// SPDX-License-Identifier: Apache-2.0

// Package hwprofile reads and writes profiles: the answers of NVML and the PCI bus on a machine, as YAML. The simulator
// plays a profile, and package record makes one of a real machine.
//
// ParseProfile returns a Profile: System for the machine, and a GPU for each GPU, with its place on the PCI bus (PCI),
// its answers (Calls) and its initial GPU instances. An Answer is a value or an NVML error. ParseProfile decodes the
// defaults and then each GPU into a copy of them (decode.go), and checks the whole for contradictions (Profile.check,
// GPU.checkMIG). Format is the opposite: it moves what all GPUs share to the defaults (encode.go). Calls (calls.go) has
// a field for each call with values; calls.txt lists all methods of go-nvml's Device, of which the others can only have
// errors. names.go has the constants of nvml.h. A profile may name a built-in table of MIG profiles (mig.go,
// mig/*.yaml).
//
// What must hold:
//   - Reading is strict and reports all mistakes at once, with line, path and accepted values
//     (TestParseProfileNamesEveryMistake).
//   - ParseProfile returns the same machine from what Format has written (TestFormatRoundTrip, FuzzProfile).
//   - A Profile is immutable: it is the machine before any change.
//   - A call without an answer is ERROR_NOT_SUPPORTED. The comment on Calls has the exceptions.
//   - A field or call of a GPU replaces the whole answer of the defaults (TestGPUReplacesDefaults).
//   - Constants and calls are those of go-nvml, which this package does not import, because the simulated nvidia-smi
//     must build without cgo. Tests of package simulator compare them.
//
// The tests read and write all built-in machines of the simulator. TestTables looks for contradictions in the tables.
package hwprofile
