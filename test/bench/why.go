// SPDX-License-Identifier: Apache-2.0

package main

// Explanations of missed targets, as profiles showed them. A text is printed only when its row misses.
const (
	whyPrepare = "the rows below divide it: the API server's answer and the disk are most of it. The 99th percentile " +
		"was not profiled: a call that " +
		"comes while the plugin looks at the machine or writes the status of another claim waits for a processor."
	whyOwn = "the call itself, there and back, is the row above. Of the plugin's processor time in such a round " +
		"(perf, before Unprepare looked at one process of a container instead of all), the look for containers has " +
		"18 %, what the driver does in Prepare 13 %, the garbage collector and Go's scheduler a quarter. The rest is " +
		"the call itself and the metadata of the device, as in a floor."
	whyUnprepare = "one fsync, of the directory of records, is left. The look for containers that still run with the " +
		"claim (the step find_users) was three quarters of the processor time (perf) when it read the mounts of all " +
		"processes in pods, which the kernel writes out as text. Now it reads those of one process of a container. " +
		"No pod that starts waits for it."
	whyPrepare200 = "the records of other claims are not read (strace shows the same files opened). containerd reads " +
		"the CDI directory after " +
		"every change, on the same cores; see the row below."
	whyCalls8 = "eight times the processor time of one claim (API server, etcd, plugin) on the cores of this " +
		"machine, and sixteen fsyncs on " +
		"one journal. None waits for another in the driver: locks are per GPU."
	whyClaims8    = "as eight calls at once: each claim of a call is fetched and prepared by itself."
	whyBackToBack = "no API limit is involved, the client has none. The driver writes the status of each claim after " +
		"it has answered; without a " +
		"pause that write is under way during the next call."
	whyHang = "the calls on other GPUs wait for nothing of the GPU that hangs: a look at it goes on beside them. " +
		"What is more is the processor time of that look."
	whyUpdate = "the driver notices the update at its next look; then each claim is rendered and written anew."
	whyStart  = "it is 0.1 s where nothing else runs: the plugin looks at the machine, registers and writes the slice."
	whyRSS    = "three quarters are pages of the program file. More than a third of its code and data (go tool nm) " +
		"are the types of all " +
		"Kubernetes API groups, which client-go registers whether they are used or not. The kernel shares these " +
		"pages and can drop them."
	whyCPU = "with 208 partitions offered beside 8 GPUs. perf: two fifths are the look at the machine, most of that " +
		"the simulated NVML; the garbage collector and Go's scheduler have a seventh each. docs/operate.md lists " +
		"the timers."
	whyPods = "the CDI hooks of NVIDIA's toolkit are most of it: the row below has them on both sides. containerd " +
		"reads the CDI directory again for each of the claim's two files."
	whyPods8 = "not all of it is known. With the driver's hooks on both sides, in the row below, 128 ms and 295 ms " +
		"were left in two runs. In a profile of an earlier run (perf), containerd took a fifth more processor time " +
		"than with the null floor, to read the CDI directory (2.4 s instead of 2.0 s)."
	whyShare = "a share has two records, one before and one after its GPU and its daemon are as it needs them, where " +
		"a plain GPU has one. " +
		"Nothing is started for it, nor waited for."
	whyShares32 = "one after the other is the rule for the four shares of a GPU, each with two records; that is 128 " +
		"fsyncs on one journal, of which " +
		"each takes several times as long as one alone (the step write_record in the metrics). The rest is processor " +
		"time (perf): containerd, which " +
		"reads the CDI directory after each change of it, and the API server take twice as much as the plugin, each. " +
		"On two cores eight plain GPUs " +
		"at once take more than four times one, too."
	whyFirstShares32 = "eight daemons start at once: each is asked whether it answers, given its limits, and asked " +
		"for them, by a program that is started " +
		"for every command. Then the above."
	whyFirstShare = "the start of a daemon takes five starts of a program, one after the other: of itself and one " +
		"for each command."
	whyTimeSlice = "a plain GPU's Prepare and Unprepare, whose rows are above, and one run of `nvidia-smi` each; in " +
		"Prepare also a record before it. What " +
		"the plugin takes for that run beside the program's own time is half a millisecond (the step configure_gpu " +
		"in the metrics)."
	whySupervisor = "half is the program file."
	whySearch     = "the scheduler's allocator looks at the devices in their order and, for each that it tries, at " +
		"every counter of the node: other " +
		"work on the same cores is all that was seen to change it. See docs/scheduling.md."
	whyAdmission     = "not profiled."
	whyControllerRSS = "not profiled."
	whyTaint         = "not profiled."
	whyConverted     = "not profiled."
	whyKubectl       = "of the four seconds of processor time that `why` needs with 128,000 devices (pprof), two " +
		"fifths decode the answers of the API server, a fifth is the garbage collector, a fifth drops what no answer " +
		"needs, and an eighth compares the nodes. Meanwhile the API server encodes and compresses, on the same cores."
	whyExplaining = "not profiled."
	whyEvict      = "not profiled."
	whyStorm      = "not profiled."
	whyWatch      = "not profiled. The same code took between 6 and 20 ms; docs/operate.md lists " +
		"the timers."
)
