// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// start is the time 0s of all scripts.
var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// place is a partition with one memory slice of the only GPU.
func place(start int) *gpu.Placement {
	return &gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Start: start, Size: 1}
}

// machine is a State that runs scripts, and what has begun and ended.
type machine struct {
	*testing.T
	State
	bootID string
	policy Policy
	off    map[uint8]bool // GPUs whose NVLinks are off, by PCI bus
	log    []string
}

func (m *machine) linked(at gpu.PCIAddress) bool { return !m.off[at.Bus] }

// link reads a PCIe link: "x16g5".
func (m *machine) link(text string) gpu.PCIeLink {
	m.Helper()
	width, generation, _ := strings.Cut(strings.TrimPrefix(text, "x"), "g")
	return gpu.PCIeLink{Width: m.number(width), Generation: m.number(generation)}
}

// play runs a script: steps that begin with their time, and are separated by ";".
//
//	see CAUSE [START]     an event of the GPU, or of its partition at START
//	answer WORD...        what the GPU answers: see health; "asked TIME": it was asked earlier
//	count FATAL NONFATAL  the PCIe errors that the kernel has counted
//	lapse, reset, clear   Elapsed, Reset, Clear
//	boot ID               the machine starts again
//	off BUS, on BUS       the GPU with the PCI bus goes to a virtual machine or into MIG mode, and is back
func (m *machine) play(script string) {
	m.Helper()
	for step := range strings.SplitSeq(script, ";") {
		words := strings.Fields(step)
		if len(words) < 2 {
			m.Fatalf("step %q: want a time and a verb", step)
		}
		now, changed := start.Add(m.duration(words[0])), []Condition(nil)
		policies := func(gpu.UUID) Policy { return m.policy }
		switch verb, args := words[1], words[2:]; verb {
		case "see":
			about := Subject{GPU: "GPU-0"}
			if len(args) > 1 {
				about.Partition = place(m.number(args[1]))
			}
			changed = m.See(now, m.bootID, about, Cause(args[0]), "")
		case "answer":
			changed = m.Answered(now, m.bootID, "GPU-0", m.health(now, args), m.linked, policies)
		case "count":
			changed = m.Counted(now, m.bootID, "GPU-0", gpu.AER{Fatal: uint64(m.number(args[0])),
				Nonfatal: uint64(m.number(args[1]))})
		case "lapse":
			changed = m.Elapsed(now, policies)
		case "reset":
			changed = m.Reset(now, "GPU-0", policies)
		case "clear":
			changed = m.Clear(now, "GPU-0")
		case "off", "on":
			if m.off == nil {
				m.off = map[uint8]bool{}
			}
			m.off[uint8(m.number(args[0]))] = verb == "off"
		case "boot":
			m.bootID = args[0]
			changed = m.Booted(now, m.bootID, policies)
		default:
			m.Fatalf("step %q: unknown verb", step)
		}
		for _, c := range changed {
			m.log = append(m.log, words[0]+" "+change(c))
		}
	}
}

// change says what became of a condition.
func change(c Condition) string {
	text := string(c.Cause)
	if c.Partition != nil {
		text += fmt.Sprintf(" at %d", c.Partition.Start)
	}
	if !c.Active() {
		return fmt.Sprintf("%s ended (%s)", text, c.End)
	}
	text += " began"
	if c.Detail != "" {
		text += " (" + c.Detail + ")"
	}
	if c.Returns > 0 {
		text += fmt.Sprintf(" again, %d", c.Returns)
	}
	return text
}

// health reads what a GPU answers: "None", "Reset", "rows", "hot", "registering", "unregistered", "PROHIBITED",
// "EXCLUSIVE_PROCESS", "claimed", "links=0,1", "links=", and "links=0@7", which leads to the GPU with PCI bus 7. Of
// silent faults: "link=x8g5" and "max=x16g5" of PCIe, "resting", "slot" (another one), "ecc=Enabled", and last
// "others", whose answers are separated by "|".
func (m *machine) health(now time.Time, words []string) gpu.Health {
	m.Helper()
	is := gpu.Health{At: now}
	for i := 0; i < len(words); i++ {
		links, ok := strings.CutPrefix(words[i], "links=")
		switch {
		case ok:
			is.LinksUp, is.LinkPeers = []int{}, map[int]gpu.PCIAddress{}
			for link := range strings.SplitSeq(links, ",") {
				link, peer, direct := strings.Cut(link, "@")
				if link != "" {
					is.LinksUp = append(is.LinksUp, m.number(link))
				}
				if direct {
					is.LinkPeers[m.number(link)] = gpu.PCIAddress{Bus: uint8(m.number(peer))}
				}
			}
		case strings.HasPrefix(words[i], "link="):
			is.Link = m.link(strings.TrimPrefix(words[i], "link="))
		case strings.HasPrefix(words[i], "max="):
			is.LinkMax = m.link(strings.TrimPrefix(words[i], "max="))
		case words[i] == "resting":
			is.Resting = true
		case words[i] == "slot":
			is.Slot.Bus = 1
		case strings.HasPrefix(words[i], "ecc="):
			is.ECC = gpu.ECCMode(strings.TrimPrefix(words[i], "ecc="))
		case words[i] == "others":
			for other := range strings.SplitSeq(strings.Join(words[i+1:], " "), "|") {
				is.Others = append(is.Others, m.health(now, strings.Fields(other)))
			}
			return is
		case words[i] == "healthy":
		case words[i] == "rows":
			is.RowsFailed = true
		case words[i] == "hot":
			is.Slowdown = "temperature"
		case words[i] == string(gpu.Prohibited), words[i] == string(gpu.ExclusiveProcess):
			is.ComputeMode = gpu.ComputeMode(words[i])
		case words[i] == "claimed":
			is.Claimed = true
		case words[i] == "registering":
			is.FabricUnknown = true
		case words[i] == "unregistered":
			is.Fabric = "not started"
		case words[i] == "asked":
			i++
			is.At = start.Add(m.duration(words[i]))
		default:
			is.RecoveryAction = gpu.RecoveryAction(words[i])
		}
	}
	return is
}

func (m *machine) duration(text string) time.Duration {
	m.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		m.Fatal(err)
	}
	return d
}

func (m *machine) number(text string) int {
	m.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		m.Fatal(err)
	}
	return n
}

// rulings is the policy of an administrator: XID 31 for an hour, 48 by hand, 79 after a reset, 109 evicts.
func rulings() Policy {
	return NewPolicy(map[Cause]Rule{
		"XID31":  {EffectNoSchedule, RecoveryQuietTime, time.Hour},
		"XID48":  {Effect: EffectNoSchedule, Recovery: RecoveryManual},
		"XID79":  {Effect: EffectNoSchedule, Recovery: RecoveryReset},
		"XID109": {Effect: EffectNoExecute, Recovery: RecoveryReset},
	})
}

func TestConditionsBeginAndEnd(t *testing.T) {
	for _, row := range []struct{ name, script, want string }{
		{"a quiet time ends it", "0s see XID31; 5m see XID31; 14m59s lapse; 15m lapse; 16m lapse",
			"0s XID31 began\n15m XID31 ended (quiet)"},
		{"a GPU that admits no program", "0s answer PROHIBITED claimed; 1m answer PROHIBITED; 2m answer healthy",
			"0s ComputeModeProhibited began\n2m ComputeModeProhibited ended (healthy again)"},
		{"a free GPU that admits one process, until a claim needs that", "0s answer EXCLUSIVE_PROCESS; " +
			"1m answer EXCLUSIVE_PROCESS claimed; 2m answer healthy claimed; 3m answer healthy",
			"0s ComputeModeExclusiveProcess began\n3m ComputeModeExclusiveProcess ended (healthy again)"},
		{"a GPU that admits only its claim's process", "0s answer EXCLUSIVE_PROCESS claimed; 1m answer healthy", ""},
		{"a GPU that registers with the fabric, again after a restart of the plugin", "0s answer registering; " +
			"5m answer unregistered; 6m answer registering; 11m answer unregistered; 12m answer healthy",
			"5m FabricUnhealthy began (not started)\n12m FabricUnhealthy ended (healthy again)"},
		{"the quiet time is that of an unknown XID, too", "0s see XID999; 10m lapse",
			"0s XID999 began\n10m XID999 ended (quiet)"},
		{"the quiet time doubles when it comes back", "0s see XID31; 10m lapse; 20m see XID31; 39m lapse; 40m lapse; " +
			"50m see XID31; 89m lapse; 90m lapse",
			"0s XID31 began\n10m XID31 ended (quiet)\n20m XID31 began again, 1\n40m XID31 ended (quiet)\n" +
				"50m XID31 began again, 2\n90m XID31 ended (quiet)"},
		{"what comes back after a day is new", "0s see XID31; 10m lapse; 24h10m see XID31; 24h20m lapse",
			"0s XID31 began\n10m XID31 ended (quiet)\n24h10m XID31 began\n24h20m XID31 ended (quiet)"},
		{"what comes back within a day is not", "0s see XID31; 10m lapse; 24h9m see XID31; 24h28m lapse; 24h29m lapse",
			"0s XID31 began\n10m XID31 ended (quiet)\n24h9m XID31 began again, 1\n24h29m XID31 ended (quiet)"},
		{"no time ends what waits for a reset", "0s see XID48; 1000h lapse", "0s XID48 began"},
		{"a reset ends it", "0s see XID48; 0s see ECCDoubleBit; 0s see XID31; 0s see XID79; 0s see XID54; 1m reset",
			"0s XID48 began\n0s ECCDoubleBit began\n0s XID31 began\n0s XID79 began\n0s XID54 began\n" +
				"1m XID48 ended (reset)\n1m ECCDoubleBit ended (reset)"},
		{"a reset does not end what NVML reports", "0s answer Reset rows; 1m reset",
			"0s RecoveryActionReset began\n0s RowRemapFailed began"},
		{"a boot ends all but what a person ends", "0s see XID48; 0s see XID79; 0s see XID31; 0s see XID54; 1m boot b",
			"0s XID48 began\n0s XID79 began\n0s XID31 began\n0s XID54 began\n" +
				"1m XID48 ended (reboot)\n1m XID79 ended (reboot)\n1m XID31 ended (reboot)"},
		{"a boot does not end what NVML reports", "0s answer Reboot; 1m boot b; 2m answer None",
			"0s RecoveryActionReboot began\n2m RecoveryActionReboot ended (healthy again)"},
		{"a boot ends nothing of the same boot", "0s boot b; 1s see XID79; 2s boot b", "1s XID79 began"},
		{"what was seen in this boot stays", "0s see XID79; 1m boot b; 2m see XID79; 3m boot b",
			"0s XID79 began\n1m XID79 ended (reboot)\n2m XID79 began again, 1"},
		{"a person ends everything", "0s see XID54; 0s answer Reset; 1m clear",
			"0s XID54 began\n0s RecoveryActionReset began\n" +
				"1m XID54 ended (cleared)\n1m RecoveryActionReset ended (cleared)"},
		{"what is still wrong begins again", "0s answer Reset; 1m clear; 2m answer Reset",
			"0s RecoveryActionReset began\n1m RecoveryActionReset ended (cleared)\n" +
				"2m RecoveryActionReset began again, 1"},
		{"no recovery is needed", "0s see XID48; 0s see XID79; 0s see XID54; 0s see XID31; 5s answer None",
			"0s XID48 began\n0s XID79 began\n0s XID54 began\n0s XID31 began\n" +
				"5s XID48 ended (healthy again)\n5s XID79 ended (healthy again)"},
		{"the driver needs a while to say so", "0s see XID48; 4s answer None; 4s see XID48; 8s answer None",
			"0s XID48 began"},
		{"an answer of before counts for nothing", "0s see XID48; 30s answer None asked 4s; 31s answer None asked 30s",
			"0s XID48 began\n31s XID48 ended (healthy again)"},
		{"a driver that says nothing ends nothing", "0s see XID48; 1m answer healthy", "0s XID48 began"},
		{"a recovery is needed", "0s see XID48; 1m answer Reset; 2m answer Reset; 3m answer None",
			"0s XID48 began\n1m RecoveryActionReset began\n" +
				"3m RecoveryActionReset ended (healthy again)\n3m XID48 ended (healthy again)"},
		{"another recovery is needed", "0s answer DrainP2P; 1m answer Reset",
			"0s RecoveryActionDrainP2P began\n1m RecoveryActionReset began\n" +
				"1m RecoveryActionDrainP2P ended (healthy again)"},
		{"a lost GPU answers again", "0s see GPULost; 1h lapse; 2h reset; 3h answer healthy",
			"0s GPULost began\n3h GPULost ended (healthy again)"},
		{"a slowdown ends by itself", "0s answer hot; 30s answer hot; 60s answer healthy",
			"30s HardwareSlowdown began (temperature)\n60s HardwareSlowdown ended (healthy again)"},
		{"a slowdown of a moment is none", "0s answer hot; 30s answer healthy; 60s answer hot; " +
			"70s answer hot asked 60s", ""},
		{"a problem that flaps must be gone for a while", "0s answer rows; 10s answer healthy; 20s answer rows; " +
			"30s answer healthy; 40s answer rows; 99s answer healthy; 100s answer healthy; " +
			"110s answer rows; 229s answer healthy; 230s answer healthy",
			"0s RowRemapFailed began\n10s RowRemapFailed ended (healthy again)\n20s RowRemapFailed began again, 1\n" +
				"30s RowRemapFailed ended (healthy again)\n40s RowRemapFailed began again, 2\n" +
				"100s RowRemapFailed ended (healthy again)\n110s RowRemapFailed began again, 3\n" +
				"230s RowRemapFailed ended (healthy again)"},
		{"an XID that comes back must be gone for a while, although no recovery is needed",
			"0s see XID149; 5s answer None; 1m see XID149; 65s answer None; 2m see XID149; 179s answer None; " +
				"3m see XID149; 239s answer None; 240s answer None; 5m see XID149; 419s answer None; 420s answer None",
			"0s XID149 began\n5s XID149 ended (healthy again)\n1m XID149 began again, 1\n" +
				"65s XID149 ended (healthy again)\n2m XID149 began again, 2\n240s XID149 ended (healthy again)\n" +
				"5m XID149 began again, 3\n420s XID149 ended (healthy again)"},
		{"a reset ends an XID that comes back only when it has been gone for a while",
			"0s see XID48; 1s reset; 1m see XID48; 61s reset; 2m see XID48; 121s reset; 179s lapse; 180s lapse; " +
				"4m see XID48; 241s reset; 242s see XID48; 1h lapse; 2h reset",
			"0s XID48 began\n1s XID48 ended (reset)\n1m XID48 began again, 1\n61s XID48 ended (reset)\n" +
				"2m XID48 began again, 2\n180s XID48 ended (quiet)\n4m XID48 began again, 3\n" +
				"2h XID48 ended (reset)"},
		{"PCIe errors of before the first look are old", "0s count 3 4; 1s count 3 4; 2s boot b; 3s count 5 6", ""},
		{"a fatal one waits for a reset, or until none is needed",
			"0s count 0 0; 1s count 2 0; 2s count 2 0; 1h lapse; 2h reset; 3h count 3 0; 4h answer None",
			"1s AERFatal began (the kernel has counted 2)\n2h AERFatal ended (reset)\n" +
				"3h AERFatal began (the kernel has counted 3) again, 1\n4h AERFatal ended (healthy again)"},
		{"another one must not come back", "0s count 0 0; 1s count 0 1; 5m1s count 0 2; 5m2s reset; 10m1s lapse; " +
			"15m1s lapse", "1s AERNonfatal began (the kernel has counted 1)\n15m1s AERNonfatal ended (quiet)"},
		{"a GPU that the kernel finds anew is counted anew", "0s count 9 9; 1s count 0 0; 2s count 1 0",
			"2s AERFatal began (the kernel has counted 1)"},
		{"partitions have conditions of their own",
			"0s see XID95 0; 1s see XID95 2; 2s see XID95; 3s see XID95 2; 1m reset",
			"0s XID95 at 0 began\n1s XID95 at 2 began\n2s XID95 began\n" +
				"1m XID95 at 0 ended (reset)\n1m XID95 at 2 ended (reset)\n1m XID95 ended (reset)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := &machine{T: t, bootID: "a"}
			m.play(row.script)
			if got := strings.Join(m.log, "\n"); got != row.want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

func TestAdministratorsRules(t *testing.T) {
	for _, row := range []struct{ name, script, want string }{
		{"another quiet time", "0s see XID31; 59m lapse; 60m lapse", "0s XID31 began\n60m XID31 ended (quiet)"},
		{"neither NVML nor a reset nor a boot ends what a person ends",
			"0s see XID48; 1m answer None; 2m reset; 3m boot b; 4m clear", "0s XID48 began\n4m XID48 ended (cleared)"},
		{"a reset instead of a boot", "0s see XID79; 1m answer None; 2m reset",
			"0s XID79 began\n2m XID79 ended (reset)"},
		{"NVML ends what has only another effect", "0s see XID109; 1m answer None",
			"0s XID109 began\n1m XID109 ended (healthy again)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := &machine{T: t, bootID: "a", policy: rulings()}
			m.play(row.script)
			if got := strings.Join(m.log, "\n"); got != row.want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

func TestNVLinks(t *testing.T) {
	for _, row := range []struct{ name, script, want string }{
		{"a link that was never active is not down", "0s answer links=; 1m answer links=1; 2m answer links=1", ""},
		{"links that were active are down", "0s answer links=0,1,2; 1m answer links=1; 2m answer links=1; " +
			"3m answer links=0,1,2", "1m NVLinkDown began (links 0, 2)\n3m NVLinkDown ended (healthy again)"},
		{"all are down", "0s answer links=0,1; 1m answer links=", "1m NVLinkDown began (links 0, 1)"},
		{"links that appear later count", "0s answer links=0; 1m answer links=0,1; 2m answer links=0",
			"2m NVLinkDown began (links 1)"},
		{"MIG mode begins nothing and ends nothing", "0s answer links=0,1; 1m answer None; 2m answer links=0; " +
			"3m answer None; 4m answer links=0,1",
			"2m NVLinkDown began (links 1)\n4m NVLinkDown ended (healthy again)"},
		{"a person accepts the links that are up",
			"0s answer links=0,1; 1m answer links=0; 2m clear; 3m answer links=0",
			"1m NVLinkDown began (links 1)\n2m NVLinkDown ended (cleared)"},
		{"the peer goes to a virtual machine, three times", "0s answer links=0@7,1@7; " +
			"1m off 7; 1m answer links=; 2m answer links=; 3m on 7; 3m answer links=0@7,1@7; " +
			"4m off 7; 4m answer links=; 5m on 7; 5m answer links=0@7,1@7; 6m off 7; 6m answer links=", ""},
		{"a link to an ordinary peer breaks", "0s answer links=0@7,1@7; 1m answer links=0@7",
			"1m NVLinkDown began (links 1)"},
		{"and one to a switch", "0s answer links=0,1; 1m off 7; 1m answer links=0", "1m NVLinkDown began (links 1)"},
		{"a link to one peer breaks while another is in a virtual machine", "0s answer links=0@7,1@8; " +
			"1m off 8; 1m answer links=", "1m NVLinkDown began (links 0)"},
		{"a link is broken when the peer is back", "0s answer links=0@7,1@7; 1m off 7; 1m answer links=; " +
			"2m on 7; 2m answer links=0@7", "2m NVLinkDown began (links 1)"},
		{"the peer goes while a link is down", "0s answer links=0@7; 1m answer links=; 2m off 7; 2m answer links=",
			"1m NVLinkDown began (links 0)\n2m NVLinkDown ended (healthy again)"},
		{"links whose ends an earlier version did not save", "0s answer links=0; 1m answer links=0@7; 2m off 7; " +
			"2m answer links=", ""},
		{"an address that the machine does not have", "0s off 7; 0s answer links=0@7; 1m answer links=",
			"1m NVLinkDown began (links 0)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := &machine{T: t}
			m.play(row.script)
			if got := strings.Join(m.log, "\n"); got != row.want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

func TestAffects(t *testing.T) {
	partition := func(parent gpu.UUID, start, size int) gpu.Device {
		return gpu.Device{Partition: &gpu.Partition{Placement: gpu.Placement{Parent: parent, Start: start, Size: size}}}
	}
	devices := []struct {
		name string
		gpu.Device
	}{
		{"GPU", gpu.Device{UUID: "GPU-0"}}, {"0-4", partition("GPU-0", 0, 4)}, {"0-1", partition("GPU-0", 0, 1)},
		{"2-3", partition("GPU-0", 2, 1)}, {"other GPU", gpu.Device{UUID: "GPU-1"}},
		{"2-3 of other GPU", partition("GPU-1", 2, 1)},
	}
	for _, row := range []struct {
		name  string
		about Subject
		want  string
	}{
		{"a GPU is sick with all its partitions", Subject{GPU: "GPU-0"}, "GPU; 0-4; 0-1; 2-3"},
		{"a partition is sick with its GPU, and with what overlaps it", Subject{GPU: "GPU-0", Partition: place(2)},
			"GPU; 0-4; 2-3"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var affected []string
			for _, d := range devices {
				if row.about.Affects(d.Device) {
					affected = append(affected, d.name)
				}
			}
			if got := strings.Join(affected, "; "); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestConditionsOfDevice(t *testing.T) {
	m := &machine{T: t}
	m.play("2s see XID48; 1s see XID95 0; 0s see XID79 2; 0s see XID31; 10m lapse")
	for _, row := range []struct {
		name string
		d    gpu.Device
		want string
	}{
		{"the GPU, in order of time", gpu.Device{UUID: "GPU-0"}, "XID79 XID95 XID48, 10m0s"},
		{"a partition has those of the GPU", gpu.Device{Partition: &gpu.Partition{Placement: *place(2)}},
			"XID79 XID48, 10m0s"},
		{"another GPU", gpu.Device{UUID: "GPU-1"}, ", never"},
	} {
		var causes []string
		for _, c := range m.Of(row.d) {
			causes = append(causes, string(c.Cause))
		}
		ended := "never"
		if last := m.LastEnded(row.d); !last.IsZero() {
			ended = last.Sub(start).String()
		}
		if got := strings.Join(causes, " ") + ", " + ended; got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

func TestQuiet(t *testing.T) {
	quiet := Rule{EffectNoSchedule, RecoveryQuietTime, 10 * time.Minute}
	for _, row := range []struct {
		name string
		Condition
		rule Rule
		want string
	}{
		{"the first time", Condition{Cause: "XID31"}, quiet, "10m0s"},
		{"the third time", Condition{Cause: "XID31", Returns: 2}, quiet, "40m0s"},
		{"never longer than a day", Condition{Cause: "XID31", Returns: 1000}, quiet, "24h0m0s"},
		{"an answer or a reset ends it at once", Condition{Cause: "XID48", Returns: 1}, untilReset, "0s"},
		{"but later when it has come back", Condition{Cause: "XID48", Returns: 2}, untilReset, "1m0s"},
		{"no time ends what a person ends", Condition{Cause: "XID54", Returns: 2}, untilManual, "0s"},
		{"NVML ends it at once", Condition{Cause: NVLinkDown}, untilReset, "0s"},
		{"NVML ends it later when it has come back", Condition{Cause: NVLinkDown, Returns: 4}, untilReset, "4m0s"},
		{"though never later than a day", Condition{Cause: NVLinkDown, Returns: 1000}, quiet, "24h0m0s"},
	} {
		if got := row.Quiet(row.rule).String(); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

// An NVLink with bit errors: an XID each minute, while NVIDIA's driver says that the GPU needs no recovery.
func TestAnXIDEachMinute(t *testing.T) {
	for _, cause := range []Cause{XIDCause(149), XIDCause(79), XIDCause(200), ECCDoubleBit} {
		m := &machine{T: t}
		began := 0
		for i := range 360 { // an hour of discoveries
			now := start.Add(time.Duration(i) * 10 * time.Second)
			if i%6 == 0 {
				began += len(m.See(now, "a", Subject{GPU: "GPU-0"}, cause, ""))
			}
			policies := func(gpu.UUID) Policy { return Policy{} }
			m.Answered(now, "a", "GPU-0", gpu.Health{At: now, RecoveryAction: gpu.RecoveryNone}, nil, policies)
			m.Elapsed(now, policies)
		}
		if began > 3 {
			t.Errorf("%s began %d times in an hour, want 3 at most", cause, began)
		}
	}
}

func TestEndsWhen(t *testing.T) {
	for _, row := range []struct {
		cause Cause
		rule  Rule
		want  string
	}{
		{"XID31", untilQuiet, "it has not occurred for 10m0s"},
		{"XID48", untilReset, "the GPU has been reset, or NVIDIA's driver says that the GPU needs no recovery"},
		{"XID48", untilReboot, "the node has been rebooted"}, // a rule of the administrator
		{"XID79", untilReboot, "the node has been rebooted, or NVIDIA's driver says that the GPU needs no recovery"},
		{"XID54", untilManual, "a person clears it"},
		{NVLinkDown, untilReset, "the GPU no longer reports it"},
		{NVLinkDown, untilQuiet, "the GPU no longer reports it"},
	} {
		if got := (Condition{Cause: row.cause}).EndsWhen(row.rule); got != row.want {
			t.Errorf("%s, %s: got until %s, want %s", row.cause, row.rule, got, row.want)
		}
	}
}

// TestClamp: a clock that is set back, while the program runs (its times are monotonic) or before it started.
func TestClamp(t *testing.T) {
	var s State
	now := time.Now()
	s.See(now, "a", Subject{GPU: "GPU-0"}, "XID48", "")
	s.See(now.Add(time.Hour), "a", Subject{GPU: "GPU-1"}, "XID48", "")
	s.See(now.Add(time.Hour).Round(0), "a", Subject{GPU: "GPU-2"}, "XID48", "")
	s.Clear(now.Add(2*time.Hour), "GPU-2")
	if !s.Clamp(now) || s.Clamp(now) {
		t.Error("want a change, once")
	}
	for _, c := range s.Conditions {
		if !c.Since.Equal(now) || !c.Last.Equal(now) || !c.Active() && !c.Ended.Equal(now) {
			t.Errorf("got %+v, want no time after %s", c, now)
		}
	}
}

// TestStorm: a hundred thousand events of one cause are one condition, which began once.
func TestStorm(t *testing.T) {
	m := &machine{T: t}
	began := 0
	for i := range 100_000 {
		now := start.Add(time.Duration(i) * time.Millisecond)
		began += len(m.See(now, "a", Subject{GPU: "GPU-0", Partition: place(2)}, "XID95", ""))
	}
	c := m.Conditions[0]
	got := fmt.Sprintf("%d began, %d remembered, %d times, last %s", began, len(m.Conditions), c.Count,
		c.Last.Sub(start))
	if want := "1 began, 1 remembered, 100000 times, last 1m39.999s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	for _, row := range []struct {
		name   string
		script func(m *machine)
		want   string
	}{
		{"the oldest ended ones are forgotten", func(m *machine) {
			for i := range 2 * maxConditions {
				m.play(fmt.Sprintf("%ds see XID%d; %ds clear", i, i, i))
			}
		}, "500 from XID500 to XID999"},
		{"active ones are not", func(m *machine) {
			for i := range maxConditions + 10 {
				m.play(fmt.Sprintf("%ds see XID%d", i, i))
			}
		}, "510 from XID0 to XID509"},
		{"ended ones are forgotten after a day", func(m *machine) {
			m.play("0s see XID48; 0s see XID54; 1s reset; 24h1s see XID31")
		}, "2 from XID54 to XID31"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := &machine{T: t}
			row.script(m)
			all := m.Conditions
			got := fmt.Sprintf("%d from %s to %s", len(all), all[0].Cause, all[len(all)-1].Cause)
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestJSONRoundTrip(t *testing.T) {
	m := &machine{T: t, bootID: "a"}
	m.play("0s see XID95 2; 0s see XID31; 10m lapse; 10m answer links=0,1@7; 11m answer links=1 Reset")
	data, err := json.Marshal(m.State)
	if err != nil {
		t.Fatal(err)
	}
	var got State
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, m.State) {
		t.Errorf("\ngot\n%+v\nwant\n%+v", got, m.State)
	}
	if strings.Contains(string(data), `"ended":"0001`) {
		t.Errorf("got %s, want no end of active conditions", data)
	}
}

// A GPU that was taken out answers no more, so what it could be asked about ends. An XID stays: it may come back.
func TestGone(t *testing.T) {
	var s State
	for _, cause := range []Cause{GPULost, RowRemapFailed, XIDCause(48)} {
		s.See(start, "a", Subject{GPU: "GPU-0"}, cause, "")
		s.See(start, "a", Subject{GPU: "GPU-1"}, cause, "")
	}
	var got []string
	for _, c := range s.Gone(start.Add(time.Minute), func(id gpu.UUID) bool { return id == "GPU-1" }) {
		got = append(got, fmt.Sprintf("%s %s %s", c.GPU, c.Cause, c.End))
	}
	const want = "GPU-0 GPULost the GPU is gone, GPU-0 RowRemapFailed the GPU is gone"
	if got := strings.Join(got, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
