// SPDX-License-Identifier: Apache-2.0

package main

// Why a row misses its aim, as profiles found it. A text is printed only when its row does.
const (
	whyPrepare = "see the row below: GET and durable write are what the API server and the disk of this machine take. The 99th percentile " +
		"is a call right after a look at the machine, which asks NVIDIA's toolkit anew, or behind somebody else's fsync."
	whyOwn = "a third is gRPC on both ends and the handling of the request; the rest are files that are not synced (marks, locks, two CDI " +
		"specs, the metadata), and on simulated GPUs the looks at their state before each step, so that a crash can be ordered there."
	whyUnprepare = "the release is written down before anything is undone, so that it never goes back, and the deletion of the record is " +
		"synced: two waits for the disk. A whole GPU has nothing to undo but files and could do without the first."
	whyPrepare200 = "the records of others are not read: what differs are larger directories and a machine whose containerd reads the CDI " +
		"directory again after each change, on the same cores (the row below)."
	whyCalls8 = "processor time, not waiting: eight GETs cost the API server, etcd and the plugin together about 0.8 ms each on 2 cores, " +
		"and eight records are synced to one disk, whose journal takes them one after the other."
	whyClaims8    = "as eight calls at once: the claims of a call are prepared side by side, each with its own GET."
	whyBackToBack = "the driver writes the status of a claim after it has answered; without a pause that write (the API server's processor " +
		"time, above all) falls into the next call. No API limit is involved: the client has none."
	whyStart = "the start of the program, of which a third is the initialisation of the Kubernetes API's types."
	whyRSS   = "two thirds are pages of the program file that were read once: the types of all Kubernetes API groups and what clients " +
		"need for them. They are shared and can be dropped by the kernel at any time."
	whyCPU = "half is the look at the machine every 10 s, which asks eight GPUs about 25 questions each (here of the simulation, which " +
		"builds a mock for every handle) and has the slices compared; a fifth are the kubelet's 36 probes a minute, a sixth the timers of Go's " +
		"scheduler that every wake-up brings along."
	whyPods = "the driver's part is one Prepare. The rest is Kubernetes: the controller makes the claim from its template, the scheduler " +
		"waits for it, searches and writes the allocation, the kubelet fetches the claim, and containerd reads the CDI directory and runs " +
		"NVIDIA's hooks in the container (six programs, each started by runc one after the other)."
)
