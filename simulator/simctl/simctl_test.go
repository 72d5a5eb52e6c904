// SPDX-License-Identifier: Apache-2.0

package simctl_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/simulator/simctl"
)

// run is what simctl prints, or its error.
func run(args ...string) string {
	var out strings.Builder
	c := simctl.Command()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&strings.Builder{})
	if err := c.Execute(); err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	return out.String()
}

const (
	first  = "gpu-3b-00-0 Tesla T4 memory=15360MiB numa=0 root=pci0000:3a mode="
	second = "gpu-af-00-0 Tesla T4 memory=15360MiB numa=1 root=pci0000:ae mode=Default\n"
)

func TestCommands(t *testing.T) {
	for _, tt := range []struct{ name, commands, want string }{
		{"print", "print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"set both", "set gpu-3b-00-0 compute-mode=EXCLUSIVE_PROCESS memory-used=5Gi; print",
			"t4-x2 driver=580.95.05\n" + first + "Exclusive_Process used=5120MiB\n" + second},
		{"set back", "set 0 compute-mode=PROHIBITED; set 0 compute-mode=DEFAULT memory-used=0; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"fail and heal", "fail 0 all ERROR_GPU_IS_LOST; fail 0000:AF:00.0 GetName ERROR_UNKNOWN; heal 0; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second + "gpu-af-00-0 fails GetName ERROR_UNKNOWN\n"},
		{"an unknown GPU", "heal gpu-00-00-0",
			`error: no GPU "gpu-00-00-0"; this node has gpu-3b-00-0, gpu-af-00-0 (an index from 0 to 1 or a UUID will also do)` + "\n"},
		{"a number is missing", "xid 0", "error: these are not its arguments; write: simctl xid GPU"},
		{"an argument too many", "print 0", "error: these are not its arguments; write: simctl print"},
		{"an unknown call", "fail 0 GetNam ERROR_UNKNOWN",
			`error: NVML has no device call "GetNam"; the calls are the methods of go-nvml's Device, such as GetName,`},
		{"an unknown error", "fail 0 GetName UNKNOWN", `error: error "UNKNOWN" is not one of ERROR_UNINITIALIZED, `},
		{"an unknown setting", "set 0 mode=x",
			`error: setting "mode=x": want compute-mode=DEFAULT|EXCLUSIVE_PROCESS|PROHIBITED, interval=Default|Short|Medium|Long or memory-used=BYTES`},
		{"set the interval", "set 0 interval=Long; print", "t4-x2 driver=580.95.05\n" + first +
			"Default interval=Long\n" + second},
		{"set the interval back", "set 0 interval=Long; set 0 interval=Default; print", "t4-x2 driver=580.95.05\n" +
			first + "Default\n" + second},
		{"an unknown interval", "set 0 interval=long",
			`error: time slice "long" is not one of Default, Short, Medium, Long`},
		{"an unknown mode", "set 0 compute-mode=x",
			`error: compute mode "x" is not one of DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED`},
		{"no number of bytes", "set 0 memory-used=much",
			`error: memory-used "much": want a number of bytes such as 5Gi, 512Mi or 0`},
		{"a part of a byte", "set 0 memory-used=500m", `error: memory-used "500m": want a number of bytes`},
		{"less than nothing", "set 0 memory-used=-1", `error: memory-used "-1": want a number of bytes`},
		{"more than there is", "set 0 memory-used=1Ti", "error: gpu-3b-00-0: 1099511627776 bytes used: at most " +
			"15639511040 of its memory are free for use\n"},
		{"nothing is set when one setting is wrong", "set 0 memory-used=1Gi compute-mode=x; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"a vGPU of a GPU that has none", "vgpu 0 T4-4Q 6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10", `error: vGPU type ` +
			`"T4-4Q" and UUID "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10" of gpu-3b-00-0: want a UUID, and a type of []` +
			"\n"},
		{"remove no vGPU", "vgpu remove 6d8ba0b6", "error: write bus/mdev/devices/6d8ba0b6/remove: no such file or " +
			"directory\n"},
		{"profiles", "profiles", "a16-x4       1x A16, a board of four GPUs with 16 GB each behind a PCIe " +
			"switch, with the driver for hosts of vGPUs\na30-x2       "},
		{"a profile", "profile t4-x2", "# SPDX-License-Identifier"},
		{"an unknown profile", "profile b200",
			`error: no profile "b200"; built in are a16-x4, a30-x2, dgx-a100, dgx-h100, dgx1-v100, gb200-nvl4, hgx-b200, hgx-h200, l40s-x4, mixed, rtx2080ti-x4, rtxpro6000-x2, t4-x2, vgpu-guest, workstation` + "\n"},
		{"fail for a while", "fail 0 GetName ERROR_UNKNOWN --after 3 --times 2; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\ngpu-3b-00-0 fails GetName ERROR_UNKNOWN after=3 times=2\n" +
				second},
		{"slow", "slow 1 all 1.5s; slow 1 GetUUID 2m --times 1; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second +
				"gpu-af-00-0 slow GetUUID 2m0s times=1\ngpu-af-00-0 slow all 1.5s\n"},
		{"slow and heal", "slow 1 all 1.5s; heal 1; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"no duration", "slow 1 all 5", `error: duration "5": want one such as 100ms, 3s or 1m` + "\n"},
		{"no time at all", "slow 1 all 0s", `error: duration "0s": want one such as 100ms, 3s or 1m` + "\n"},
		{"a negative number of calls", "slow 1 all 1s --times -1", "error: a fault is for so many calls after so " +
			"many others, both at least 0\n"},
		{"unplug", "unplug 0; print", "t4-x2 driver=580.95.05\n" + first + "Default unplugged\n" + second},
		{"unplug and plug", "unplug 0; plug gpu-3b-00-0; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" +
			second},
		{"add what is like nothing", "add", "error: required flag(s) \"like\" not set\n"},
		{"add at no place", "add --like 0 --pci 3c:00.0", `error: "3c:00.0" is no PCI address such as 0000:1b:00.0` +
			"\n"},
		{"order a crash", "crash --at 3; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second +
			"crash before step 3 of prepare or unprepare\n"},
		{"order another crash", "crash --at 3; crash --at 1 --verb unprepare --after; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second + "crash after step 1 of unprepare\n"},
		{"take an order back", "crash --at 3; crash --off; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" +
			second},
		{"order nothing", "crash", "error: at least one of the flags in the group [at off] is required\n"},
		{"order two things", "crash --at 3 --off", "error: if any flags in the group [off at] are set none of the " +
			"others can be; [at off] were all set\n"},
		{"no step", "crash --at 0", "error: step 0: steps are counted from 1\n"},
		{"no verb", "crash --at 1 --verb x", `error: verb "x" is not one of prepare, unprepare` + "\n"},
		{"no steps are recorded", "steps", `error: steps are not recorded; start with "simctl steps --record"` + "\n"},
		{"no steps yet", "steps --record; steps", "prepare 0\nunprepare 0\n"},
		{"steps no more", "steps --record; steps --off; steps", "error: steps are not recorded;"},
		{"a slow MPS daemon", "mps 0 slow=2s; print", "t4-x2 driver=580.95.05\n" + first +
			"Default\ngpu-3b-00-0 mps slow 2s\n" + second},
		{"a dead MPS daemon", "mps 0 slow=2s; mps 0 dead; print", "t4-x2 driver=580.95.05\n" + first +
			"Default\ngpu-3b-00-0 mps dead\n" + second},
		{"an MPS daemon is mended", "mps 0 refusing; mps 0 heal; print", "t4-x2 driver=580.95.05\n" + first +
			"Default\n" + second},
		{"slow by nothing", "mps 0 slow", `error: duration "": want one such as 100ms, 3s or 1m` + "\n"},
		{"an unknown fault of MPS", "mps 0 sick", `error: MPS "sick": want slow=DURATION, dead, refusing, wedged or heal` +
			"\n"},
		{"an XID", "xid 0 79", "0 reports XID 79\n"},
		{"many XIDs", "xid gpu-3b-00-0 31 --count 3 --rate 1000", "gpu-3b-00-0 reports XID 31, 3 times\n"},
		{"no XID", "xid 0 big", `error: XID "big": want a number from 1 to 1023` + "\n"},
		{"an XID too high", "xid 0 1024", "error: XID 1024: want a number from 1 to 1023\n"},
		{"less than one XID", "xid 0 79 --count 0", "error: --count must be at least 1, and --rate at least 0\n"},
		{"an XID of no partition", "xid 0/1g.5gb@0 79", "error: gpu-3b-00-0 has no partition 1g.5gb@0\n"},
		{"ECC errors", "ecc 0 double --count 2", "0 reports ecc double, 2 times\n"},
		{"an ECC error of another kind", "ecc 0 triple", `error: ecc "triple": want double or single` + "\n"},
		{"a license of no vGPU", "license 0 licensed",
			"error: gpu-3b-00-0 is no vGPU, and needs no license (ERROR_NOT_SUPPORTED)\n"},
		{"another state of a license", "license 0 expired",
			`error: license "expired": want licensed or unlicensed` + "\n"},
		{"PCIe errors of another kind", "aer gpu-3b-00-0 deadly",
			`error: PCIe error "deadly": want one of [fatal nonfatal correctable]` + "\n"},
		{"PCIe errors of no GPU", "aer gpu-3c-00-0 fatal",
			`error: no GPU "gpu-3c-00-0" on the PCI bus, which has [gpu-3b-00-0 gpu-af-00-0]` + "\n"},
		{"PCIe errors", "aer gpu-3b-00-0 fatal --count 2; aer 0000:3b:00.0 correctable; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\ngpu-3b-00-0 aer fatal=2 nonfatal=0 correctable=1\n" +
				second},
		{"clocks", "event 1 clocks", "1 reports event clocks\n"},
		{"another event", "event 1 xid", `error: event "xid": want clocks or pstate` + "\n"},
		{"health", "health 0 recovery-action=reset retired-pages=pending; print", "t4-x2 driver=580.95.05\n" + first +
			"Default\ngpu-3b-00-0 health recovery-action=reset retired-pages=pending\n" + second},
		{"what health does", "health 0 recovery-action=reset", "0 has recovery-action=reset\n"},
		{"health again", "health 0 retired-pages=pending; health 0 retired-pages=none; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"health of nothing", "health 0 heart=good", `error: health "heart=good": want recovery-action=none|reset|`},
		{"reset", "health 0 recovery-action=reset; set 0 interval=Long; reset 0; print", "t4-x2 driver=580.95.05\n" +
			first + "Default\n" + second},
		{"what reset does", "reset gpu-3b-00-0", "gpu-3b-00-0 was reset\n"},
		{"reset of a GPU in use", "process 0 add train; reset 0", "error: gpu-3b-00-0 is in use by another client: " +
			"process 4194305 train (ERROR_IN_USE)\n"},
		{"unload", "unload", "the driver is not loaded\n"},
		{"no driver", "unload; print", "t4-x2 driver=580.95.05 unloaded\n" + first + "Default\n" + second},
		{"load", "unload; load", "the driver is loaded\n"},
		{"loaded", "unload; load; print", "t4-x2 driver=580.95.05\n" + first + "Default\n" + second},
		{"the wait for events fails", "fail 0 EventSetWait ERROR_UNKNOWN; slow 0 RegisterEvents 1s; print",
			"t4-x2 driver=580.95.05\n" + first + "Default\ngpu-3b-00-0 fails EventSetWait ERROR_UNKNOWN\n" +
				"gpu-3b-00-0 slow RegisterEvents 1s\n" + second},
		{"an unknown command", "destroy", `error: unknown command "destroy" for "simctl"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := node.BuiltIn("t4-x2")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if _, err := node.Open(dir, p); err != nil {
				t.Fatal(err)
			}
			var got string
			for _, command := range strings.Split(tt.commands, "; ") {
				got = run(append([]string{"--dir", dir}, strings.Fields(command)...)...)
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

func TestPartitions(t *testing.T) {
	for _, tt := range []struct{ name, commands, want string }{
		{"MIG mode", "mig 0 on; mig 2 on", "0 mig=on\n2 mig=on\n"},
		{"MIG mode off", "mig 0 on; mig 0 off", ""},
		{"MIG mode of a GPU without", "mig 1 on", "error: gpu-61-00-0 has no MIG mode (ERROR_NOT_SUPPORTED)\n"},
		{"no mode", "mig 0 maybe", "error: MIG mode \"maybe\": want on or off\n"},
		{"a partition", "mig 0 on; partition 0 create 1g.10gb@4", "0 mig=on\n0/1g.10gb@4 gi=11 ci=0\n"},
		{"partitions somewhere", "mig 0 on; partition 0 create 3g.40gb; partition 0 create 2g.20gb; partition 0 " +
			"create 1g.10gb+me",
			"0 mig=on\n0/3g.40gb@0 gi=1 ci=0\n0/2g.20gb@4 gi=5 ci=0\n0/1g.10gb+me@6 gi=13 ci=0\n"},
		{"a partition is gone", "mig 0 on; partition 0 create 1g.10gb@4; partition 0 create 1g.10gb@5; process " +
			"0/1g.10gb@4 add train; partition 0 delete 1g.10gb@4",
			"0 mig=on\n0/1g.10gb@5 gi=12 ci=0\n"},
		{"all are gone", "mig 0 on; partition 0 create 1g.10gb@4; partition 0 create 1g.10gb@5; partition 0 delete " +
			"all; mig 0 off", ""},
		{"without MIG mode", "partition 0 create 1g.10gb",
			"error: gpu-NAME is not in MIG mode (ERROR_NOT_SUPPORTED)\n"},
		{"no profile", "mig 0 on; partition 0 create 1g.5gb", "error: gpu-NAME has no profile \"1g.5gb\"; it has " +
			"1g.10gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb, 1g.10gb+me, 1g.20gb\n"},
		{"no place", "mig 0 on; partition 0 create 3g.40gb@1", "error: gpu-NAME: 3g.40gb can start at 0, 4\n"},
		{"no room", "mig 0 on; partition 0 create 3g.40gb@0; partition 0 create 1g.10gb@2",
			"error: gpu-NAME: 3g.40gb at 0 is in the way (ERROR_INSUFFICIENT_RESOURCES)\n"},
		{"nothing to remove", "mig 0 on; partition 0 delete 1g.10gb@2", "error: gpu-NAME has no partition 1g.10gb@2\n"},
		{"any to remove", "mig 0 on; partition 0 delete 1g.10gb", "error: partition \"1g.10gb\": want PROFILE@START\n"},
		{"no verb", "partition 0 make 1g.10gb", "error: partition \"make\": want create or delete\n"},
		{"a process", "process 0 add dcgm-exporter --memory 1Gi", "0 used=1024MiB\n0 process 4194305 dcgm-exporter " +
			"memory=1024MiB threads=100%\n"},
		{"a process keeps the mode", "process 0 add dcgm-exporter; mig 0 on",
			"error: gpu-NAME is used by process 4194305 dcgm-exporter (ERROR_IN_USE)\n"},
		{"a process goes", "process 0 add a; process 0 add b; process 0 remove a",
			"0 process 4194306 b memory=0MiB threads=100%\n"},
		{"no process to go", "process 0 remove a", "error: 0 has no process a that somebody put there\n"},
		{"no verb for a process", "process 0 kill a", "error: process \"kill\": want add or remove\n"},
		{"no memory", "process 0 add a --memory much", "error: memory \"much\": want a number of bytes such as 5Gi, " +
			"512Mi or 0\n"},
		{"a process on a partition", "mig 0 on; partition 0 create 1g.10gb@4; process 0/1g.10gb@4 add train --memory " +
			"5Gi",
			"0 used=5120MiB mig=on\n0/1g.10gb@4 gi=11 ci=0\n0/1g.10gb@4 process 4194305 train memory=5120MiB " +
				"threads=100%\n"},
		{"too much for a partition", "mig 0 on; partition 0 create 1g.10gb@4; process 0/1g.10gb@4 add train --memory " +
			"10Gi", "error: gpu-NAME: out of memory: 10468982784 bytes are free\n"},
		{"partitions keep the mode", "mig 0 on; partition 0 create 1g.10gb@4; mig 0 off",
			"error: gpu-NAME has partitions (ERROR_IN_USE)\n"},
		{"the whole in MIG mode", "mig 0 on; process 0 add a", "error: gpu-NAME is in MIG mode: programs can use its " +
			"partitions only (ERROR_IN_USE)\n"},
		{"a partition that is none", "mig 0 on; process 0/1g.10gb@4 add a",
			"error: gpu-NAME has no partition 1g.10gb@4\n"},
		{"a call about partitions fails", "fail 0 GpuInstanceDestroy ERROR_UNKNOWN",
			"0 fails GpuInstanceDestroy ERROR_UNKNOWN\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := node.BuiltIn("mixed")
			must(t, err)
			n, err := node.Open(dir, p)
			must(t, err)
			var got string
			for _, command := range strings.Split(tt.commands, "; ") {
				got = run(append([]string{"--dir", dir}, strings.Fields(command)...)...)
			}
			v, err := n.View()
			must(t, err)
			if !strings.HasPrefix(got, "error") {
				got = partitioned(v)
			}
			if got = strings.ReplaceAll(got, v.GPUs[0].Name, "gpu-NAME"); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// partitioned is what the node prints of GPUs that are not as they were put in, with their indexes for their names.
func partitioned(v *node.View) string {
	var out strings.Builder
	for _, line := range strings.SplitAfter(v.String(), "\n")[1:] {
		for _, c := range v.GPUs {
			rest, ok := strings.CutPrefix(line, c.Name)
			if !ok {
				continue
			}
			if _, changed, first := strings.Cut(rest, "mode=Default"); first {
				rest = changed
			}
			if rest != "\n" {
				fmt.Fprintf(&out, "%d%s", c.Index, rest)
			}
		}
	}
	return out.String()
}

// A storm of a thousand events per second is no faster, and arrives.
func TestStorm(t *testing.T) {
	dir := t.TempDir()
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	n, err := node.Open(dir, p)
	must(t, err)
	events := n.Events()
	defer events.Close()
	start := time.Now()
	must(t, asError(run("--dir", dir, "xid", "0", "31", "--count", "500", "--rate", "1000")))
	if took := time.Since(start); took < 490*time.Millisecond {
		t.Errorf("500 events at 1000 per second took %s", took)
	}
	if got := len(events.Next()); got != 500 {
		t.Errorf("got %d events, want 500", got)
	}
}

func asError(text string) error {
	if strings.HasPrefix(text, "error") {
		return errors.New(text)
	}
	return nil
}

func TestRecordedSteps(t *testing.T) {
	dir := t.TempDir()
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	n, err := node.Open(dir, p)
	must(t, err)
	must(t, n.NoteSteps(node.Prepare, []string{"Put"})) // not yet
	if got := run("--dir", dir, "steps", "--record"); got != "" {
		t.Error(got)
	}
	must(t, n.NoteSteps(node.Prepare, []string{"Holders", "Access", "Put"}))
	must(t, n.NoteSteps(node.Unprepare, []string{"Put", "Delete"}))
	run("--dir", dir, "steps", "--record") // which forgets nothing
	if got, want := run("--dir", dir, "steps"), "prepare 3 Holders Access Put\nunprepare 2 Put Delete\n"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestAddAndRemove(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	dir := t.TempDir()
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	_, err = node.Open(dir, p)
	must(t, err)
	const added = "gpu-3c-00-0 Tesla T4 memory=15360MiB numa=0 root=pci0000:3a mode=Default\n"
	for _, tt := range []struct{ command, want string }{
		{"add --like 0", "gpu-3c-00-0\n"},
		{"add --like 0 --pci 0000:5e:00.0", "gpu-5e-00-0\n"},
		{"add --like 0 --pci 0000:5e:00.0", "error: add a GPU like gpu-3b-00-0: there is something at 0000:5e:00.0 " +
			"already\n"},
		{"remove gpu-5e-00-0", ""},
		{"remove 0", ""},
		{"remove gpu-3b-00-0",
			`error: no GPU "gpu-3b-00-0"; this node has gpu-3c-00-0, gpu-af-00-0 (an index from 0 to 1 or a UUID will also do)` + "\n"},
		{"print", "t4-x2 driver=580.95.05\n" + added + second},
	} {
		if got := run(append([]string{"--dir", dir}, strings.Fields(tt.command)...)...); got != tt.want {
			t.Errorf("%s: got:\n%s\nwant:\n%s", tt.command, got, tt.want)
		}
	}
	nodes, err := filepath.Glob(filepath.Join(node.DriverRoot(dir), "dev/nvidia[0-9]"))
	must(t, err)
	if got, want := len(nodes), 2; got != want {
		t.Errorf("%d device nodes, want %d: %q", got, want, nodes)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWithoutANode(t *testing.T) {
	dir := t.TempDir()
	want := fmt.Sprintf("error: attach to simulated node %s: no simulated node here: %s\n", dir, dir)
	for _, command := range []string{"print", "unplug 0", "slow 0 all 1s", "add --like 0", "remove 0", "crash --at 1",
		"steps"} {
		if got := run(append([]string{"--dir", dir}, strings.Fields(command)...)...); got != want {
			t.Errorf("%s: got %s, want %s", command, got, want)
		}
	}
}

func TestReload(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	dir := t.TempDir()
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	_, err = node.Open(dir, p)
	must(t, err)
	minors := func() string {
		n, err := node.Attach(dir)
		must(t, err)
		v, err := n.View()
		must(t, err)
		libraries, err := filepath.Glob(filepath.Join(node.LibraryDir(dir), "libcuda.so.*.*"))
		must(t, err)
		return fmt.Sprintln(v.GPUs[0].Minor, v.GPUs[1].Minor, v.GPUs[0].ComputeMode(), v.ModuleVersion(), libraries)
	}
	before := minors()
	uuids := run("--dir", dir, "print")
	for _, tt := range []struct{ command, want string }{
		{"set 0 compute-mode=EXCLUSIVE_PROCESS", ""},
		{"reload --driver 590", "error: driver version \"590\": want one such as 580.95.05\n"},
		{"reload --swap-minors 0", "error: GPUs to swap [\"0\"]: want two\n"},
		{"reload --driver 590.44.01 --swap-minors 0,1", ""},
		{"print", strings.Replace(uuids, "580.95.05", "590.44.01", 1)},
	} {
		if got := run(append([]string{"--dir", dir}, strings.Fields(tt.command)...)...); got != tt.want {
			t.Errorf("%s: got:\n%s\nwant:\n%s", tt.command, got, tt.want)
		}
	}
	after := minors()
	if !strings.HasPrefix(after, "1 0 ") || !strings.Contains(after, "libcuda.so.590.44.01]") ||
		!strings.Contains(after, "590.44.01  ") || strings.Contains(after, "580.95.05") {
		t.Errorf("got %s, after %s", after, before)
	}
	_, err = node.Open(dir, p) // as the plugin does when it starts
	must(t, err)
	if got := minors(); got != after {
		t.Errorf("opened again: got %s, want %s", got, after)
	}
	must(t, exec(dir, "reload", "--driver", "580.95.05", "--swap-minors", "1,0"))
	if got := minors(); !strings.HasPrefix(got, "0 1 ") {
		t.Errorf("reloaded again: got %s", got)
	}
}

func exec(dir string, args ...string) error {
	if text := run(append([]string{"--dir", dir}, args...)...); text != "" {
		return errors.New(text)
	}
	return nil
}
