// SPDX-License-Identifier: Apache-2.0

// Package nvml reads and changes GPUs through NVIDIA's management library (NVML). It works the same with a real and a
// simulated library.
//
// Machine gives access to the GPUs. With New it opens a session of NVML when it needs one; with Open the first session
// stays. Calls of NVML go through call (calls.go): Machine.acquire returns the session (session.go), a goroutine runs
// the function, and Machine.release ends the use. Discover (discover.go) reads all GPUs in parallel: in full once a
// minute or after a change, otherwise only what may change. It adds lost GPUs (lost.go), NVLink domains (topology.go),
// vGPUs and what virtual machines need (passthrough.go). known (known.go) outlasts sessions. The first five methods of
// machine.go implement claims.Hardware. Watch (watch.go) reports events.
//
// What must hold:
//   - A call that hangs is given up when its context ends, with ErrNoAnswer. No other call is made for its GPU until it
//     has returned. Other GPUs answer meanwhile (TestHangingGPU).
//   - A call that was given up before it asked its GPU says nothing about the GPU (TestCallsWhileNVMLIsClosed).
//   - An open session prevents resets and an unload of the driver. Discover closes it if no events are watched and all
//     GPUs have persistence mode (TestSessionBetweenLooks). BindVFIO closes it for its writes to sysfs, and Release
//     keeps it closed.
//   - Whichever step of creating or removing a partition fails, a repetition or the opposite call ends as if it had not
//     (TestPartitionsInterrupted). DestroyPartition leaves a partition with another UUID than the known one alone.
//   - The MIG mode of a GPU that needs a reset for it is not changed: gpu.ErrMIGModeFixed.
//   - A process loads one library only. When another one has replaced it on disk, no new session is opened:
//     ErrDriverReplaced.
//   - Functions that R470 lacks are looked up first (session.has): a call of a missing one ends the program.
//
// The tests run a Machine on the simulator. TestNVIDIALibrary loads NVIDIA's library.
package nvml
