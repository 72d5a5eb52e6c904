// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Cause says what is wrong with a GPU. It is CamelCase, so that it can be the reason of a condition or of an event.
type Cause string

// XIDCause returns the cause of an XID: "XID79".
func XIDCause(number uint64) Cause { return Cause(xidPrefix + strconv.FormatUint(number, 10)) }

const xidPrefix = "XID"

// XID returns the number of an XID; ok is false for every other cause.
func (c Cause) XID() (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(string(c), xidPrefix)
	number, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || XIDCause(number) != c {
		return 0, false
	}
	return number, true
}

// Title is the cause as people write it: "XID 79".
func (c Cause) Title() string {
	if number, ok := c.XID(); ok {
		return fmt.Sprintf("XID %d", number)
	}
	return string(c)
}

// The causes that are no XIDs. The GPU can be asked again about all but the last three: see answered.
const (
	RecoveryActionReset             Cause = recoveryActionPrefix + Cause(gpu.RecoveryReset)
	RecoveryActionReboot            Cause = recoveryActionPrefix + Cause(gpu.RecoveryReboot)
	RecoveryActionDrainP2P          Cause = recoveryActionPrefix + Cause(gpu.RecoveryDrainP2P)
	RecoveryActionDrainAndReset     Cause = recoveryActionPrefix + Cause(gpu.RecoveryDrainAndReset)
	RecoveryActionRecoverIMEXDomain Cause = recoveryActionPrefix + Cause(gpu.RecoveryIMEXDomain)
	RecoveryActionBusReset          Cause = recoveryActionPrefix + Cause(gpu.RecoveryBusReset)
	RecoveryActionSystemReboot      Cause = recoveryActionPrefix + Cause(gpu.RecoverySystemReboot)
	// RowRemapPending and the next two are about damaged memory.
	RowRemapPending       Cause = "RowRemapPending"
	RowRemapFailed        Cause = "RowRemapFailed"
	PageRetirementPending Cause = "PageRetirementPending"
	NVLinkDown            Cause = "NVLinkDown"
	FabricUnhealthy       Cause = "FabricUnhealthy"
	HardwareSlowdown      Cause = "HardwareSlowdown"
	// PCIeLinkDegraded and the next two are found by comparison: see silent.go.
	PCIeLinkDegraded  Cause = "PCIeLinkDegraded"
	NVLinkMissing     Cause = "NVLinkMissing"
	ECCOff            Cause = "ECCOff"
	DeviceNodeMissing Cause = "DeviceNodeMissing"
	// VGPUUnlicensed is about a vGPU in a virtual machine.
	VGPUUnlicensed Cause = "VGPUUnlicensed"
	// ComputeModeProhibited and the next one are the choice of an administrator.
	ComputeModeProhibited       Cause = "ComputeModeProhibited"
	ComputeModeExclusiveProcess Cause = "ComputeModeExclusiveProcess"
	// GPULost is the loss of a GPU while its events were awaited.
	GPULost Cause = "GPULost"
	// ResetRequired is the only answer of a GPU.
	ResetRequired Cause = "ResetRequired"
	// NotRestored is about what an ended claim has changed on the GPU.
	NotRestored Cause = "NotRestored"
	// ECCDoubleBit is an uncorrected memory error that NVML reports without an XID.
	ECCDoubleBit Cause = "ECCDoubleBit"
	// AERFatal and AERNonfatal are uncorrectable errors that the GPU has reported over PCIe.
	AERFatal    Cause = "AERFatal"
	AERNonfatal Cause = "AERNonfatal"
)

const recoveryActionPrefix Cause = "RecoveryAction"

// Effect is what a cause does to new and running pods. The words are those of Kubernetes' DeviceTaintEffect.
type Effect string

// The effects.
const (
	EffectNone       Effect = "None" // no taint: it is only reported
	EffectNoSchedule Effect = "NoSchedule"
	EffectNoExecute  Effect = "NoExecute" // also evicts running pods; never a default
)

// Recovery says what ends a condition.
type Recovery string

// The recoveries.
const (
	RecoveryQuietTime Recovery = "QuietTime" // it has not happened for Rule.QuietTime
	RecoveryReset     Recovery = "Reset"     // of the GPU
	RecoveryReboot    Recovery = "Reboot"    // of the node
	RecoveryManual    Recovery = "Manual"    // a person says so
)

// DefaultQuietTime is the quiet time of every default rule with RecoveryQuietTime.
const DefaultQuietTime = 10 * time.Minute

// Rule says what follows from a cause.
type Rule struct {
	Effect    Effect
	Recovery  Recovery
	QuietTime time.Duration // only with RecoveryQuietTime
}

// String formats a rule for people: "NoSchedule, QuietTime 10m".
func (r Rule) String() string {
	if r.Recovery != RecoveryQuietTime {
		return fmt.Sprintf("%s, %s", r.Effect, r.Recovery)
	}
	quiet := r.QuietTime.String()
	if short, ok := strings.CutSuffix(quiet, "m0s"); ok {
		quiet = short + "m"
	}
	if short, ok := strings.CutSuffix(quiet, "h0m"); ok {
		quiet = short + "h"
	}
	return fmt.Sprintf("%s, %s %s", r.Effect, r.Recovery, quiet)
}

// The rules of the table of defaults.
var (
	reported    = Rule{EffectNone, RecoveryQuietTime, DefaultQuietTime}
	untilQuiet  = Rule{EffectNoSchedule, RecoveryQuietTime, DefaultQuietTime}
	untilReset  = Rule{Effect: EffectNoSchedule, Recovery: RecoveryReset}
	untilReboot = Rule{Effect: EffectNoSchedule, Recovery: RecoveryReboot}
	untilManual = Rule{Effect: EffectNoSchedule, Recovery: RecoveryManual}
)

// Policy holds the rules of an administrator, which replace the defaults. The zero value is the defaults.
type Policy struct{ rules map[Cause]Rule }

// NewPolicy returns the policy with these rules, and the defaults for all other causes.
func NewPolicy(rules map[Cause]Rule) Policy { return Policy{maps.Clone(rules)} }

// For returns the rule for a cause.
func (p Policy) For(c Cause) Rule {
	if rule, ok := p.rules[c]; ok {
		return rule
	}
	if i, ok := position[c]; ok {
		return table[i].Rule
	}
	if _, ok := c.XID(); ok {
		return untilQuiet
	}
	return untilManual
}

// Overrides reports whether an administrator has set the rule for the cause.
func (p Policy) Overrides(c Cause) bool {
	_, ok := p.rules[c]
	return ok
}

// Entry is a row of the table of defaults.
type Entry struct {
	Cause   Cause
	Meaning string // what it is
	Advice  string // what a person can do
	Rule    Rule
	Source  string // where the rule comes from
}

// table is the table of defaults; position has the index of each cause in it.
var table, position = newTable()

func newTable() ([]Entry, map[Cause]int) {
	all := append(slices.Clone(conditions), xids()...)
	index := map[Cause]int{}
	for i, e := range all {
		index[e.Cause] = i
	}
	return all, index
}

// Defaults returns the table of defaults: first the causes that are no XIDs, then the XIDs by number.
func Defaults() []Entry { return slices.Clone(table) }

// OfGPU returns the advice with the name of the GPU for nvidia-smi: its UUID.
func OfGPU(advice, name string) string { return strings.ReplaceAll(advice, "INDEX", name) }

// Describe says what a cause is and what a person can do, also for causes that are not in the table.
func Describe(c Cause) (meaning, advice string) {
	if i, ok := position[c]; ok {
		return table[i].Meaning, table[i].Advice
	}
	if _, ok := c.XID(); ok {
		return "An XID for which the driver knows no action.",
			"Look it up in NVIDIA's XID catalog and in the kernel log."
	}
	return "A cause that this version of the driver does not know.", "Look into the log of the plugin."
}

// conditions are the defaults of the causes that are no XIDs.
var conditions = []Entry{
	{RecoveryActionReset, "NVIDIA's driver asks for a reset of the GPU.",
		resetAdvice, untilReset, recoveryActionSource},
	{RecoveryActionReboot, "NVIDIA's driver asks for a reboot of the node.", "Drain the node and reboot it.",
		untilReboot, recoveryActionSource},
	{RecoveryActionDrainP2P, "NVIDIA's driver asks to end all peer-to-peer traffic of the GPU.",
		"End the programs that use several GPUs. The driver then asks for another action, or for none.", untilManual,
		recoveryActionSource},
	{RecoveryActionDrainAndReset, "The GPU has less capacity. NVIDIA's driver asks for a reset once its programs end.",
		"Let the programs on the GPU end, then reset it: nvidia-smi -r -i INDEX.", untilReset, recoveryActionSource},
	{RecoveryActionRecoverIMEXDomain, "NVIDIA's driver asks for a recovery of the IMEX domain, not of this GPU.",
		"Recover the IMEX domain as NVIDIA's IMEX guide says.",
		Rule{Effect: EffectNone, Recovery: RecoveryManual},
		recoveryActionSource + "; NVIDIA's DRA driver does not taint either"},
	{RecoveryActionBusReset, "NVIDIA's driver asks for a reset of the GPU's PCIe bus.",
		"Drain the node, then reset the PCIe bus of the GPU or power-cycle the node.", untilReset,
		recoveryActionSource},
	{RecoveryActionSystemReboot, "NVIDIA's driver asks for a reboot of the whole system.",
		"Drain the node and reboot the machine.", untilReboot, recoveryActionSource},
	{RowRemapPending, "Damaged rows of memory are replaced at the next reset.",
		"Reset the GPU when it suits you. Programs can use it until then.",
		Rule{Effect: EffectNone, Recovery: RecoveryReset},
		"NVML: remapped rows, whose description says that new work is not affected (DCGM reports a failure)"},
	{RowRemapFailed, "The GPU could not replace a damaged row of memory.",
		"Run NVIDIA's field diagnostics. Have the GPU replaced if they fail.", untilManual,
		"NVML: remapped rows; NVIDIA's RMA policy"},
	{PageRetirementPending, "Damaged pages of memory stay in use until the next reset.",
		"Reset the GPU: nvidia-smi -r -i INDEX, or reboot the node.", untilReset, "NVML: retired pages"},
	{NVLinkDown, "An NVLink that was active is down.",
		"Reset the GPUs at both ends. If it stays down, check the link and its peer.", untilReset,
		"NVML: NVLink state; the catalog asks for a reset at XID 74"},
	{FabricUnhealthy, "The GPU is not registered with the NVLink fabric, or the fabric is unhealthy.",
		"Check the fabric manager and the NVSwitches.", untilManual, "NVML: fabric state and health"},
	{HardwareSlowdown, "The hardware slows the GPU down to protect it: it is too hot, or draws too much power.",
		"Check the cooling and the power supply. Programs run at half of the clocks or less.",
		Rule{Effect: EffectNone, Recovery: RecoveryManual},
		"NVML: clocks event reasons HW slowdown, HW thermal slowdown and HW power brake slowdown; two looks"},
	{PCIeLinkDegraded, "The PCIe link has fewer lanes or a lower generation than it had, or than other GPUs have.",
		"Reset the GPU or reboot the node. If it stays: check slot, riser and cables, or accept it (--clear).",
		untilReset, "NVML: current and maximum link width and generation, performance state; two looks"},
	{NVLinkMissing, "The GPU has fewer active NVLinks than the other GPUs of its model.",
		"Reset the GPUs of the node. If it stays, check the NVSwitches and the fabric manager.", untilReset,
		"NVML: NVLink state; two looks"},
	{ECCOff, "ECC is off: it was on, or is on at the other GPUs of the model. Errors of the memory stay unnoticed.",
		"Nothing, if it is meant (--clear). Else: nvidia-smi -i INDEX -e 1, then reset the GPU.",
		Rule{Effect: EffectNone, Recovery: RecoveryReset}, "NVML: ECC mode; two looks"},
	{DeviceNodeMissing, "A device node of the GPU has vanished.",
		"Create it again with nvidia-modprobe, and find out what removed it.", untilManual,
		"driver: containers cannot get the GPU"},
	{VGPUUnlicensed, "The vGPU has no license. NVIDIA's driver slows it down 20 minutes after the machine's start.",
		"Check the license server, and the log of nvidia-gridd. nvidia-smi -q shows the state.",
		Rule{Effect: EffectNone, Recovery: RecoveryManual},
		"NVML: licensable features; NVIDIA's licensing guide; a new machine gets its license after its start"},
	{ComputeModeProhibited, "The compute mode of the GPU admits no CUDA program.", modeAdvice, untilManual,
		"NVML: compute mode"},
	{ComputeModeExclusiveProcess, "The compute mode of the GPU admits one process at a time.", modeAdvice,
		Rule{Effect: EffectNone, Recovery: RecoveryManual}, "NVML: compute mode, while no claim holds the GPU"},
	{GPULost, "NVML has lost the GPU.",
		"Drain the node and reboot it. If the GPU is lost again, check its PCIe connection.", untilReboot,
		"NVML: GPU is lost; as XID 79"},
	{ResetRequired, "NVML answers only that the GPU must be reset before it can be used again.",
		resetAdvice, untilReset, "NVML: reset required"},
	{NotRestored, "What an ended claim has changed on the GPU cannot be undone.",
		"The event ReleaseFailed of the node says why. If it does not end, reset the GPU: nvidia-smi -r -i INDEX.",
		untilReset, "driver: the next claim would get the GPU as the last one has left it"},
	{ECCDoubleBit, "A memory error that could not be corrected, reported without an XID.",
		resetAdvice, untilReset,
		"NVML: event; as XID 48"},
	{AERFatal, "The GPU has reported a fatal PCIe error: its link was not reliable any more.",
		"End what uses the GPU, and reset it or reboot the node. " + linkAdvice, untilReset,
		"kernel: aer_dev_fatal of the PCI function"},
	{AERNonfatal, "The GPU has reported a PCIe error that could not be corrected and left the link usable.",
		"Nothing, if it happens once. " + linkAdvice, untilQuiet,
		"kernel: aer_dev_nonfatal of the PCI function"},
}

const (
	recoveryActionSource = "NVML: recovery action"
	linkAdvice           = "If it comes back, check the GPU's slot and power."
	modeAdvice           = "Nothing, if it is meant. Else: nvidia-smi -i INDEX -c DEFAULT."
	resetAdvice          = "End the programs on the GPU, and reset it: nvidia-smi -r -i INDEX."
)
