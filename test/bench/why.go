// SPDX-License-Identifier: Apache-2.0

package main

// Explanations of missed targets, as profiles showed them. A text is printed only when its row misses.
const (
	whyPrepare = "the rows below divide it: the API server's answer and the disk are most of it. The 99th percentile " +
		"was not profiled: a call that comes while the plugin looks at the machine waits for a processor."
	whyOwn = "its parts are below, under \"Where the plugin's time for a claim goes\". A floor has a third of them, " +
		"too: the metadata that kubeletplugin writes, Go's watching thread and its garbage collector. perf counted " +
		"441 system calls for a claim, 24 of which are saved since, and 227 for the safe floor, most of them short: " +
		"files are opened and looked for. No step of the driver but the record has more than 4 %."
	whyUnprepare = "one fsync, of the directory of records, is left, as the safe floor has it. Of the processor time " +
		"of the driver's own code (perf), the largest part sees by the files with the claim's metadata whether a " +
		"container still runs with it, and removes them (the step find_users). Without that, a GPU whose pod was " +
		"deleted by force could be given to two pods."
	whyChurn = "no object on the heap is left of a claim (pprof, after 5,000 and 10,000 claims), and no goroutine. " +
		"The standard error of the growth is as large as the aim."
	whyPrepare200 = "the records of other claims are not read (strace shows the same files opened). containerd reads " +
		"the CDI directory after every change, on the same cores; see the row of the CDI directory. A Prepare makes " +
		"two changes, both after the record: the driver's CDI spec of the claim, and that of kubeletplugin for the " +
		"metadata."
	whyCalls8 = "eight times the processor time of one claim (API server, etcd, plugin) on the cores of this " +
		"machine, and sixteen fsyncs on " +
		"one journal. None waits for another in the driver: locks are per GPU."
	whyClaims8    = "as eight calls at once: each claim of a call is fetched and prepared by itself."
	whyBackToBack = "in the rows of one claim the bench waits 10 ms before it releases it, so that containerd can " +
		"read the CDI directory; here it still reads during the next call. The rows below tell how much of the " +
		"machine's processors is used, and by whom."
	whyHang = "the calls on other GPUs wait for nothing of the GPU that hangs: a look at it goes on beside them. " +
		"What is more is the processor time of that look."
	whyUpdate  = "the driver notices the update at its next look; then each claim is rendered and written anew."
	whyStart   = "it is 0.1 s where nothing else runs: the plugin looks at the machine, registers and writes the slice."
	whyKubelet = "a slice that somebody else has removed is written again after half a second."
	whyRSS     = "two thirds are pages of the program file, as in the floor. More than a third of its code " +
		"and data (go tool nm) are the types of all Kubernetes API groups, which client-go registers whether they " +
		"are used or not. The kernel shares these pages and can drop them. Of the 7.5 MiB that live in the heap " +
		"(pprof, in this cluster), 3.3 are two copies of the slices that kubeletplugin's controller keeps, with 25 " +
		"attributes of 128 bytes in a map for each device, 1.6 what packages make at their start, 1.2 the " +
		"simulation, and nothing else more than 0.6. Go lets the heap grow by half, so the aim would need 2.3 MiB " +
		"less. Collecting more often (GOGC=20) saves 2 MiB and takes half as much processor time again."
	whyCPU = "with 208 partitions offered beside 8 GPUs. Half of it was measured (perf, an hour) to be the wait for " +
		"NVML's events, four times a second because the values of the demos offer GPUs to virtual machines. A node " +
		"without such GPUs no longer does that. The parts of the rest are below, under \"What an idle plugin " +
		"costs\". docs/project/architecture.md lists the timers."
	whyPods = "the CDI hooks of NVIDIA's toolkit are most of it: the row below has them on both sides. containerd " +
		"reads the CDI directory again for each of the claim's two files."
	whyPods8 = "the CDI hooks of NVIDIA's toolkit, which the row below has on both sides, and the processor time in " +
		"the rows below it: on two cores, two milliseconds of it are one. In single runs, without a change, the " +
		"median differs by 60 ms. The status of the claims is written 3 s after the last Prepare: with one second, " +
		"in the middle of the starts, the driver took 2449 ms where the null floor with hooks took 1982, with three " +
		"1958 and 1865."
	whyShare = "nothing is started for it, nor waited for. The limits of its daemon are compared with what the " +
		"others need."
	whyShares32 = "32 claims are four times the processor time of 8, on the same cores: the aim is below that, and " +
		"the safe floor took 72 ms for 32 claims. One " +
		"after the other is the rule for the four shares of a GPU, each with one record: 64 fsyncs on one journal. " +
		"Those alone take 15 ms in a benchmark of the records, and 12 if the lock is given back before the second " +
		"fsync. The row below tells whose processor time it is. containerd reads the CDI directory after each of its " +
		"64 changes, half of them by kubeletplugin: see \"What a claim costs containerd\"."
	whyFirstShares32 = "eight daemons start at once on two cores. Each is ready after two starts of a simulated " +
		"program, which read the state of the simulated node: 12 ms until the daemon makes its socket, and 6 ms for " +
		"all commands, on a quiet machine. It reads that state once since then and not twice, so the socket is there " +
		"a third sooner. NVIDIA's program takes 2 ms for the commands. Then the above."
	whyFirstShare = "the daemon starts, and its program once more for all commands."
	whyTimeSlice  = "a plain GPU's Prepare and Unprepare, whose rows are above, and one run of `nvidia-smi` each; in " +
		"either also a record before it, with two fsyncs: after a crash, it says what to set back. What " +
		"the plugin takes for that run beside the program's own time is half a millisecond (the step configure_gpu " +
		"in the metrics)."
	whySupervisor = "half is the program file."
	whySearch     = "the scheduler's allocator looks at the devices in their order and, for each that it tries, at " +
		"every counter of the node: other " +
		"work on the same cores is all that was seen to change it. See docs/use/partitions.md."
	whyAdmission = "of the processor time of a request (perf, 26 November 2026), two fifths was HTTP and TLS, a " +
		"sixth the checks, and a sixteenth Go's garbage collector. The slowest requests came in groups, while other " +
		"programs used the processors."
	whyControllerRSS = "not profiled."
	whyTaint         = "not profiled."
	whyConverted     = "not profiled."
	whyKubectl       = "of the processor time that `why` needs with 128,000 devices (pprof, without TLS and " +
		"compression), two fifths decode slices, and a sixth allocates. Meanwhile the API server encodes and " +
		"compresses, on the same cores."
	whyExplaining = "while there is more to tell than a round may, a round begins as soon as the limit of 5 % " +
		"allows: after 19 times the processor time of the one before. Of that (perf, 26 November 2026), a third was " +
		"Go's garbage collector, which cleans up after the reading of the cluster, a quarter that reading, a seventh " +
		"the comparison of nodes, and a tenth what looks at each waiting pod several times a second: retries, and " +
		"preemption, which is on in `make bench` and off by default. Once all claims have their events, the cluster " +
		"is read about every ten minutes, and those looks are most of the rest."
	whyEvict = "not profiled."
	whyStorm = "not profiled."
	whyWatch = "the wait for events is a system call that blocks, twelve a minute, and Go watches its scheduler for " +
		"the first 10 ms of each: its thread woke 520 times more in a minute (perf, 27 November 2026) than with the " +
		"simulated NVML, whose wait Go's poller does. That is 0.8 ms for each call. A longer wait would delay the " +
		"discovery of a new GPU and the closing of NVML, because nothing interrupts it. The health for the kubelet " +
		"and the loop of the node are the rest. docs/project/architecture.md lists the timers."
)

const whyPage = "The browser draws without a graphics processor, on the processors of the cluster under test. " +
	"A change is shown when the server has written all 1,000 nodes as JSON and the page has drawn them; what is not " +
	"on the screen costs elements, but no layout."
