// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

// measurement fills in rows of the table. Measurements run in this order: those that need an unused plugin come first.
type measurement struct {
	name    string
	measure func(context.Context, *bench) error
}

var measurements = []measurement{
	{"idle", measureIdle},
	{"back to back", measureBackToBack},
	{"one claim", measureOneClaim},
	{"floors", measureFloors},
	{"churn", measureChurn},
	{"time slices", measureTimeSlices},
	{"first share", measureFirstShare},
	{"supervisor", measureSupervisor},
	{"shares", measureShares},
	{"many shares", measureManyShares},
	{"making partitions", measureMakingPartitions},
	{"driver update", measureDriverUpdate},
	{"hanging GPU", measureHanging},
	{"start", measureStart},
	{"kubelet restarts", measureKubeletRestarts},
	{"pods", measurePods},
	{"conversion", measureConversion},
	{"health", measureHealth},
	{"health, idle", measureWatching},
	{"partitions", measurePartitions},
	{"fragmentation", measureFragmentation},
	{"controller", measureController},
	{"kubectl-gpu", measureKubectl},
	{"page", measurePage},
	{"virtual machines", measureVirtualMachines}, // the node has other GPUs meanwhile
}

// row is a line of the table. Its values are in the bench's results under its key.
type row struct {
	key  string
	what string
	unit string
	aim  []float64 // one for each value, or one for all; nil: none, the row explains others
	// A target, of all values, may be a multiple of the first value of another row; says describes it.
	of    string
	times float64
	says  string
	// why explains a missed target, as profiles showed it. It is printed only then.
	why string
}

// rows are in the order of the targets.
var rows = []row{
	{key: "prepare", what: "NodePrepareResources, one GPU, p50", unit: "ms"},
	{key: "get", what: "– the claim's GET, asked for as the plugin asks, p50", unit: "ms"},
	{key: "write", what: "– one durable write in the plugin's directory, p50", unit: "ms"},
	{key: "call", what: "– a call without claims, there and back, p50", unit: "ms"},
	{key: "prepare200", what: "Prepare with 200 other claims prepared, p50", unit: "ms", of: "preparepaused",
		times: 1.15, says: "1.15 × without them", why: whyPrepare200},
	{key: "preparepaused", what: "– without them, after the same pauses, p50", unit: "ms"},
	{key: "parse200", what: "– the CDI directory then, read as containerd reads it at each change, p50", unit: "ms"},
	{key: "backtoback", what: "200 prepares back to back, the chart's API limits, p50", unit: "ms",
		of: "prepare", times: 1, says: "as Prepare alone", why: whyBackToBack},
	{key: "backtobackall", what: "– from one to the next: prepare, unprepare, mean", unit: "ms"},
	{key: "backtobackcpu", what: "– processor time in that: API server / etcd / containerd / plugin and controller / " +
		"all else, mean", unit: "ms"},
	{key: "statuscpu", what: "– the plugin's processor time to write the status of a claim, of 200 that are " +
		"prepared, when no call has run for three seconds", unit: "ms"},
	{key: "churn", what: "10,000 claims, on 8 GPUs at once: RSS of the plugin, its growth over the last 5,000",
		unit: "KiB a claim", aim: []float64{0.1}, why: whyChurn},
	{key: "churnfiles", what: "– open files of the plugin, before / after", unit: "files"},
	{key: "churnsyncs", what: "– fsyncs of a claim: Prepare, Unprepare", unit: "fsyncs"},
	{key: "churnbytes", what: "– written to the disk for a claim", unit: "KiB"},
	{key: "churncalls", what: "– API calls for a claim", unit: "calls"},
	{key: "share", what: "Prepare of a fraction on a running daemon, p50", unit: "ms", of: "shareplain", times: 1.5,
		says: "1.5 × a plain GPU", why: whyShare},
	{key: "shareplain", what: "– a plain GPU in turn with it, p50", unit: "ms"},
	{key: "shares32", what: "32 fractions prepared at once on 8 GPUs, daemons running, wall, p50", unit: "ms",
		of: "calls8", times: 2.5, says: "2.5 × 8 whole GPUs at once", why: whyShares32},
	{key: "gets32", what: "– the claims' GETs then, at once, asked for as the plugin asks, wall, p50", unit: "ms"},
	{key: "shares32cpu", what: "– processor time then: API server / etcd / containerd / plugin and controller / all " +
		"else, p50", unit: "ms"},
	{key: "firstshares32", what: "– the same without daemons, wall, p50", unit: "ms", of: "firstsharep50", times: 4,
		says: "4 × one", why: whyFirstShares32},
	{key: "firstshares32cpu", what: "– – processor time then, as above, p50", unit: "ms"},
	{key: "firstshare", what: "first fraction on a GPU (daemon start, simulated), p99", unit: "ms", aim: []float64{300},
		why: whyFirstShare},
	{key: "firstsharep50", what: "– p50", unit: "ms"},
	{key: "timeslice", what: "TimeSlicing prepare / unprepare, p50, with a no-op `nvidia-smi`", unit: "ms",
		aim: []float64{4, 2}, why: whyTimeSlice},
	{key: "smi", what: "– that `nvidia-smi` by itself, p50", unit: "ms"},
	{key: "supervisor", what: "RSS of the MPS supervisor, idle / with 8 daemons, without those", unit: "MiB",
		aim: []float64{15, 15}, why: whySupervisor},
	{key: "hang", what: "with one of eight GPUs hanging: p99 of Prepare / Unprepare on the others, as a ratio to all " +
		"healthy", unit: "×", aim: []float64{1.2, 1.2}, why: whyHang},
	{key: "hangmedian", what: "– p50", unit: "×"},
	{key: "update", what: "driver updated under 50 claims, minor numbers of two GPUs swapped: all CDI specs right " +
		"after", unit: "s", aim: []float64{10}, why: whyUpdate},
	{key: "start", what: "process start → slice visible, p50", unit: "s", aim: []float64{0.5},
		why: whyStart},
	{key: "startall", what: "– every slice, with all partitions of 8 H100, p50", unit: "s", aim: []float64{1.5},
		why: whyStart},
	{key: "kubelet", what: fmt.Sprintf("%d restarts of the kubelet, which removes its node's slices: until all are "+
		"back, longest / p50", kubeletRestarts), unit: "ms", aim: []float64{2000}, why: whyKubelet},
	{key: "rss", what: "RSS idle / after 200 cycles, with all partitions of 8 H100", unit: "MiB",
		of: "floorrss", times: 1.15, says: "1.15 × the safe floor", why: whyRSS},
	{key: "anon", what: "– of that the process's own, the rest is the program file's: idle / after 200 cycles",
		unit: "MiB"},
	{key: "floorrss", what: "– the safe floor after its calls: RSS / the process's own", unit: "MiB"},
	{key: "cpu", what: "CPU, idle", unit: "ms a minute", aim: []float64{20}, why: whyCPU},
	{key: "pod", what: "pod with a claim, create → Running, minus the same with the null floor without hooks, p50",
		unit: "ms", aim: []float64{15}, why: whyPods},
	{key: "podhooks", what: "– minus the same with the null floor with the driver's hooks, p50", unit: "ms"},
	{key: "podplain", what: "– the pod without a claim / null floor / null floor with hooks / driver, p50",
		unit: "ms"},
	{key: "pods8", what: "eight such pods at once, minus eight with the null floor without hooks, p50", unit: "ms",
		aim: []float64{60}, why: whyPods8},
	{key: "pods8hooks", what: "– minus eight with the null floor with the driver's hooks, p50", unit: "ms"},
	{key: "pods8plain", what: "– eight pods without a claim / null floor / null floor with hooks / driver, p50",
		unit: "ms"},
	{key: "pods8bound", what: "– null floor / with hooks / driver: until the last pod is bound to the node, p50",
		unit: "ms"},
	{key: "pods8api", what: "– processor time until the last runs, null floor / with hooks / driver, p50: API server",
		unit: "ms"},
	{key: "pods8etcd", what: "– – etcd", unit: "ms"},
	{key: "pods8scheduler", what: "– – scheduler", unit: "ms"},
	{key: "pods8manager", what: "– – controller manager", unit: "ms"},
	{key: "pods8kubelet", what: "– – kubelet", unit: "ms"},
	{key: "pods8containerd", what: "– – containerd", unit: "ms"},
	{key: "pods8driver", what: "– – plugin and controller of the driver", unit: "ms"},
	{key: "pods8floor", what: "– – floors", unit: "ms"},
	{key: "pods8others", what: "– – all other programs, and the kernel: runc, shims, CDI hooks, the bench",
		unit: "ms"},
	{key: "converted", what: "pod of an older system, create → its claim exists, minus a pod with a template of a " +
		"user: a new template / one that exists, p50", unit: "ms", aim: []float64{100, 100}, why: whyConverted},
	{key: "taint", what: "XID → taint of the GPU visible in the API, with all partitions of 8 H100, p50 / p99",
		unit: "ms", aim: []float64{200, 1000}, why: whyTaint},
	{key: "taintparts", what: "– also of all its partitions, p50 / p99", unit: "ms"},
	{key: "evict", what: "XID with NoExecute → replacement of the pod Running on another GPU, p50", unit: "ms"},
	{key: "evictparts", what: "– taint visible / pod deleted / replacement bound / Running, each after the one " +
		"before, p50", unit: "ms"},
	{key: "evictown", what: "– of that the driver's: until the taint is visible, and Prepare without its GET, p50",
		unit: "ms", aim: []float64{300}, why: whyEvict},
	{key: "storm", what: "1,000 XIDs a second for a minute, on a GPU with a claim: the plugin's writes to the API",
		unit: "writes", aim: []float64{10}, why: whyStorm},
	{key: "stormkinds", what: "– ResourceSlices / events / claims", unit: "writes"},
	{key: "stormxids", what: "– XIDs that the plugin has counted", unit: "XIDs"},
	{key: "stormrss", what: "– RSS of the plugin before / after", unit: "MiB"},
	{key: "watch", what: "watching 8 healthy H100 with 56 partitions, in-process: waiting for events, the clock of " +
		"conditions, health for the kubelet, without looks, without NVML's own work", unit: "ms a minute",
		aim: []float64{10}, why: whyWatch},
	{key: "watchsim", what: "– with the simulated NVML, whose wait for events reads the state of all GPUs",
		unit: "ms a minute"},
	{key: "mig8", what: "8 partitions on 8 GPUs prepared at once, simulated creation set to 1 s, wall, p50", unit: "s",
		aim: []float64{1.3}, why: whyCalls8},
	{key: "migprepare", what: "– one that takes no time to make, prepare / unprepare, p50", unit: "ms"},
	{key: "vfio", what: "a whole GPU for a virtual machine, Prepare / Unprepare, simulated kernel, p50", unit: "ms"},
	{key: "vfiobeside", what: "– Prepare of plain GPUs while another GPU is bound and returned all the time, as a " +
		"ratio to without, p50 / p99", unit: "×"},
	{key: "vfiobesidems", what: "– that Prepare, p50 / p99", unit: "ms"},
	{key: "partition", what: "allocation of a 1g.10gb on a half-full node of 8 H100, in-process, p50", unit: "ms",
		aim: []float64{2}, why: whySearch},
	{key: "partitionways", what: "– of what is recommended to ask for, on 1,000 half-full nodes of 8 or 16 H100, " +
		"also where it does not fit, p99 / p50", unit: "ms", aim: []float64{20}, why: whySearch},
	{key: "partslices", what: "– ResourceSlices of a node of 8 H100", unit: "slices", aim: []float64{10},
		why: whySearch},
	{key: "fragments", what: "partitions that come and go on one H100: served by the published order / ascending / " +
		"the best of 60,480", unit: "%"},
	{key: "fragments8", what: "– on eight", unit: "%"},
	{key: "admission", what: "admission at 100 requests a second, with 1,000 nodes of 8 H100 and all their " +
		"partitions known, p99 / p50", unit: "ms", aim: []float64{10}, why: whyAdmission},
	{key: "controllerrss", what: "– RSS of the controller then", unit: "MiB", aim: []float64{150},
		why: whyControllerRSS},
	{key: "controllerpeak", what: "– the most it has been, while it read all slices", unit: "MiB"},
	{key: "kubectl", what: "`kubectl gpu why` / `ls`, 1,000 nodes of 8 whole H100, half of them held, p50", unit: "s",
		aim: []float64{1, 1}, why: whyKubectl},
	{key: "kubectlrss", what: "– RSS, the most of a run, `why` / `ls`", unit: "MiB"},
	{key: "kubectlparts", what: "`kubectl gpu why`, 613 nodes with all partitions: until the cluster is read / from " +
		"then to the answer, p50", unit: "s", aim: []float64{5, 1}, why: whyKubectl},
	{key: "kubectldevices", what: "– that many devices", unit: "devices"},
	{key: "kubectlpartsls", what: "– `ls` then, p50", unit: "s"},
	{key: "kubectlpartsrss", what: "– RSS, the most of a run, `why` / `ls`", unit: "MiB", aim: []float64{300, 300},
		why: whyKubectl},
	{key: "page", what: "page of `kubectl gpu ui`, 1,000 nodes of 8 whole H100, half of them held, in Chromium: " +
		"until the first GPUs are shown", unit: "ms", aim: []float64{2000}, why: whyPage},
	{key: "pageall", what: "– until all are", unit: "ms"},
	{key: "pagechange", what: "– until a change of each node is shown, all at once", unit: "ms",
		aim: []float64{1500}, why: whyPage},
	{key: "pagescroll", what: "– the longest task of the tab over 50 ms while it is scrolled, 0 if there is none",
		unit: "ms", aim: []float64{100}, why: whyPage},
	{key: "pagememory", what: "– memory of the tab before / after 3,600 changes that are sent fast", unit: "MiB"},
	{key: "pageseconds", what: "– until these are shown", unit: "s"},
	{key: "explaining", what: "controllers with 1,000 waiting claims and events that say why, 1,000 nodes of 8 whole " +
		"H100: of a processor, minus the same without waiting claims", unit: "%", aim: []float64{5},
		why: whyExplaining},
	{key: "explainingidle", what: "– without waiting claims / with", unit: "%"},
}
