// SPDX-License-Identifier: Apache-2.0

// Package node knows the GPUs of the node: their modes, their health, and which devices claims can get. It changes no
// GPU and prepares no claim.
//
// Node.Run (node.go) is one goroutine that owns the state (loop.go). Everything that happens is an event for it: a
// timer, an event of a GPU, the result of a discovery, or how a change for a claim ended, which Node.Hardware and
// Node.Passthrough observe. state.step takes an event and returns actions; Node.do does them in the order of their
// fields. A discovery (discovery.go) runs in a goroutine of its own, because a GPU may hang: Node.discover reads the
// Machine, the records of claims before and after that, and the node configuration (nodeconfig.go), and assigns the
// modes (modes.go). Its result, found, is an event too. state.take then derives the devices, package gpuhealth adds
// taints, state.offer decides of which GPUs possible partitions are published (offer.go), and Publisher.Set publishes
// them. Other goroutines read a snapshot: Devices, which has all possible partitions, Inventory, ServeHealth.
//
// What must hold:
//   - Only the loop changes the state, and a snapshot never changes. Discoveries and closing NVML, which may wait for a
//     GPU that hangs, run in other goroutines.
//   - The inventory is saved before it is published (saved.go): otherwise a GPU that is lost would be forgotten at the
//     next start. If saving fails, a later discovery saves it (TestTheInventoryIsSavedAgain).
//   - A lost GPU that a claim holds is kept. If a record cannot be read, every known GPU counts as held (records.go).
//   - The mode of a GPU stays while claims hold it (TestModeChangeWaitsForClaims). While the node configuration is not
//     known, a GPU keeps its known mode, or is left out (TestNodeConfigurationNeverInForce).
//   - Possible partitions of a free GPU are not withdrawn: a claim may be on its way to one (TestNoGPUIsGivenTwice).
//   - The last inventory stays valid while discovery fails; after two failures in a row new claims are kept away
//     (TestUnread).
//   - Of its sibling packages, it may import only dirwatch, gpuhealth, publish and report.
//
// Tests run the loop or single steps with a fake Machine; TestTogether calls everything at once, for the race detector.
package node
