// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"slices"
)

// action is an immediate action of NVIDIA's XID catalog, and what the driver makes of it.
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
type action struct {
	name   string
	rule   Rule
	advice string // for rows without advice of their own
}

var (
	ignore = action{"IGNORE", reported, "Nothing. If it comes back often, report it to NVIDIA."}
	// The catalog describes these XIDs and leaves their action empty.
	noAction       = action{"no action", reported, "Nothing."}
	restartApp     = action{"RESTART_APP", reported, "Restart the program. The GPU needs nothing."}
	resetGPU       = action{"RESET_GPU", untilReset, resetAdvice}
	restartNode    = action{"RESTART_BM", untilReboot, "Drain the node and reboot it."}
	restartVM      = action{"RESTART_VM", untilReboot, "Drain the node and restart its virtual machine."}
	contactSupport = action{"CONTACT_SUPPORT", untilManual, "Contact the vendor of the machine."}
	checkHardware  = action{"CHECK_MECHANICALS", untilManual, "Check the seat of the board and its cables."}
	updateSoftware = action{"UPDATE_SWFW", untilManual, "Update NVIDIA's software and firmware."}
	followXID154   = action{"XID_154", reported, "Nothing. The plugin asks NVML for the action."}
	checkUVM       = action{"CHECK_UVM", untilReset, resetAdvice}
	xid45          = action{"WORKFLOW_XID_45", reported, "Nothing. If the GPU has another XID, follow its advice."}
	xid48          = action{"WORKFLOW_XID_48", untilReset, resetAdvice}
	nvlink         = action{"WORKFLOW_NVLINK_ERR", untilReset,
		"Reset the GPUs at both ends. If it comes back, check the link: nvidia-smi nvlink -e."}
	// The registers that decide are in the kernel log, not in the event. If no reset is needed, NVML says so.
	nvlink5Reset  = action{"WORKFLOW_NVLINK5_ERR", untilReset, nvlink.advice}
	nvlink5Ignore = action{"WORKFLOW_NVLINK5_ERR", reported, ignore.advice}
)

// xidRow describes XIDs with the same meaning.
type xidRow struct {
	numbers []uint64
	meaning string
	action  action
	advice  string // empty: that of the action
	why     string // why the rule is that of the action, where the action leaves a choice
}

// xidRows is NVIDIA's catalog of September 2026 for Ampere and newer. It lacks the XIDs that the catalog calls
// unused, and those without an action whose description does not say what to do (166 to 170).
var xidRows = []xidRow{
	{numbers: []uint64{8}, meaning: "A channel of a program timed out.", action: restartApp},
	{numbers: []uint64{11, 25, 32}, meaning: "A program's stream of commands is invalid or corrupted.",
		action: restartApp},
	{numbers: []uint64{13}, meaning: "A program's kernel failed, mostly by an access out of bounds.",
		action: restartApp, advice: "Debug the program with Compute Sanitizer. If many programs fail, test the GPU."},
	{numbers: []uint64{14}, meaning: "An error that a program has injected.", action: ignore, advice: "Nothing."},
	{numbers: []uint64{31}, meaning: "A program accessed an invalid address of the GPU's memory.",
		action: restartApp, advice: "Debug the program with Compute Sanitizer. If many programs fail, test the GPU."},
	{numbers: []uint64{37, 38}, meaning: "The firmware for context switches reports an error.", action: ignore},
	{numbers: []uint64{39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135},
		meaning: "A copy engine failed for a program.", action: restartApp},
	{numbers: []uint64{43}, meaning: "A program failed and was ended. The GPU is healthy.", action: ignore,
		advice: "Debug the program. The GPU needs nothing."},
	{numbers: []uint64{44}, meaning: "The graphics engine failed during a context switch.", action: ignore},
	{numbers: []uint64{45}, meaning: "A program was ended, by a person or because of another error.", action: xid45,
		why: "another XID has the action, if any is needed"},
	{numbers: []uint64{46}, meaning: "The GPU stopped processing.", action: resetGPU},
	{numbers: []uint64{48}, meaning: "A memory error that could not be corrected.", action: xid48,
		why: "it asks for a reset"},
	{numbers: []uint64{54}, meaning: "The board lacks its auxiliary power.", action: checkHardware,
		advice: "Check the power cables of the board."},
	{numbers: []uint64{60}, meaning: "The video or security processor (SEC2) failed for a program.",
		action: restartApp},
	{numbers: []uint64{62}, meaning: "The power management controller of the GPU halted.", action: resetGPU},
	{numbers: []uint64{63}, meaning: "Damaged memory was recorded: it is replaced at the next reset.", action: ignore,
		advice: "Nothing. RowRemapPending or PageRetirementPending says whether a reset is due."},
	{numbers: []uint64{64}, meaning: "Damaged memory could not be recorded for replacement.", action: resetGPU,
		advice: "Reset the GPU. If RowRemapFailed follows, run NVIDIA's field diagnostics."},
	{numbers: []uint64{66, 67}, meaning: "NVIDIA's driver accessed a register that it may not access.",
		action: ignore},
	{numbers: []uint64{68, 83, 84, 88, 89, 96, 97, 98}, meaning: "A video decoder failed for a program.",
		action: restartApp},
	{numbers: []uint64{69}, meaning: "A program used a command that its graphics class does not have.",
		action: restartApp},
	{numbers: []uint64{74}, meaning: "An NVLink failed, at this GPU or at the other end.", action: nvlink,
		why: "registers of the kernel log decide; its text asks for a reset"},
	{numbers: []uint64{78}, meaning: "A vGPU could not start.", action: updateSoftware},
	{numbers: []uint64{79}, meaning: "The GPU has fallen off the PCIe bus.", action: restartNode,
		advice: "Drain the node and reboot it. If it comes back, check the GPU's seat and its PCIe link."},
	{numbers: []uint64{80}, meaning: "A program's commands arrived corrupted at the GPU.", action: restartApp},
	{numbers: []uint64{82, 99, 100, 101, 102, 103, 104, 105}, meaning: "A JPEG decoder failed for a program.",
		action: restartApp},
	{numbers: []uint64{86, 139}, meaning: "An optical flow accelerator failed for a program.", action: restartApp},
	{numbers: []uint64{92}, meaning: "Many memory errors were corrected.", action: ignore,
		advice: "Nothing. Watch for XID 48."},
	{numbers: []uint64{93}, meaning: "The limit for writes to the InfoROM is reached.", action: ignore,
		advice: "Nothing, if you have set the limit. Otherwise, report it to NVIDIA."},
	{numbers: []uint64{94}, meaning: "A memory error that ended one program and was contained to it.",
		action: restartApp, advice: "Restart the program. Reset the GPU when it suits you."},
	{numbers: []uint64{95}, meaning: "A memory error that was not contained to one program.", action: resetGPU},
	{numbers: []uint64{106, 107}, meaning: "A test message over the management bus.", action: ignore,
		advice: "Nothing."},
	{numbers: []uint64{108, 137}, meaning: "A program made an invalid access to another GPU over NVLink.",
		action: ignore, advice: "Debug the program with Compute Sanitizer."},
	{numbers: []uint64{109}, meaning: "A context switch timed out.", action: resetGPU},
	{numbers: []uint64{110}, meaning: "A security fault, mostly of failing hardware.", action: resetGPU,
		advice: "Reset the GPU. If it comes back, power-cycle the node and contact the vendor of the machine."},
	{numbers: []uint64{119}, meaning: "The GPU's system processor (GSP) did not answer NVIDIA's driver.",
		action: resetGPU, advice: "Reset the GPU. If it comes back, power-cycle the node."},
	{numbers: []uint64{120}, meaning: "The GPU's system processor (GSP) reports an error.", action: resetGPU,
		advice: "Reset the GPU. If it comes back, power-cycle the node."},
	{numbers: []uint64{121}, meaning: "Errors of the link to the CPU (C2C) were corrected.", action: ignore,
		advice: "Nothing. A reset, when it suits you, trains the link again."},
	{numbers: []uint64{136}, meaning: "The training of an NVLink failed.", action: resetGPU},
	{numbers: []uint64{140}, meaning: "A memory error that NVIDIA's driver could not handle.", action: resetGPU},
	{numbers: []uint64{141}, meaning: "The fast path of CUDA failed for a program.", action: ignore},
	{numbers: []uint64{142}, meaning: "A video encoder failed.", action: contactSupport},
	{numbers: []uint64{143}, meaning: "The GPU could not be initialized.", action: resetGPU},
	{numbers: []uint64{144, 145, 146}, meaning: "The NVLink unit of the GPU reports an error.", action: nvlink5Reset,
		why: "registers of the kernel log decide, some ask for a reset"},
	{numbers: []uint64{147, 148}, meaning: "The NVLink unit of the GPU reports an error that stops nothing.",
		action: nvlink5Ignore, why: "no register asks for an action"},
	{numbers: []uint64{149}, meaning: "An NVLink went down, or has many bit errors.", action: nvlink5Reset,
		why: "registers of the kernel log decide, most ask for a reset"},
	{numbers: []uint64{150}, meaning: "The NVLink firmware of the GPU failed.", action: nvlink5Reset,
		advice: resetAdvice, why: "every register asks for a reset"},
	{numbers: []uint64{151}, meaning: "A key of confidential computing could not be rotated.", action: restartVM},
	{numbers: []uint64{152, 153}, meaning: "A deep learning accelerator (DLA) failed.", action: ignore},
	{numbers: []uint64{154}, meaning: "The recovery action of the GPU changed.", action: followXID154,
		why: "announces the action for another XID"},
	{numbers: []uint64{155}, meaning: "An NVLink was taken down by software.", action: resetGPU},
	{numbers: []uint64{156}, meaning: "A resource of the GPU was retired.", action: resetGPU},
	{numbers: []uint64{157}, meaning: "A resource of the GPU could not be retired: no spare is left.",
		action: ignore, advice: "Programs can run. If it comes back, contact the vendor of the machine."},
	{numbers: []uint64{158}, meaning: "The GPU timed out and cannot continue.", action: resetGPU},
	{numbers: []uint64{159}, meaning: "The link to the CPU (C2C) reports an error.", action: checkUVM,
		why: "a reset if unified memory is in use, and CUDA programs use it"},
	{numbers: []uint64{160}, meaning: "A channel of the GPU was retired.", action: ignore,
		why: "an older list of NVIDIA says RESTART_BM"},
	{numbers: []uint64{161}, meaning: "A channel of the GPU could not be retired.", action: ignore},
	{numbers: []uint64{162}, meaning: "The hardware that smooths power is active again.", action: noAction,
		why: "the end of XID 163"},
	{numbers: []uint64{163}, meaning: "The hardware that smooths power is not active.", action: noAction,
		advice: "If you need power smoothing: cool the GPU, and reset it.",
		why:    "its text says that no reset is required"},
	{numbers: []uint64{164, 165}, meaning: "The hardware that smooths power is worn, or worn out.", action: noAction,
		advice: "If you need power smoothing: have the GPU replaced.", why: "its text asks to watch the power"},
	{numbers: []uint64{171, 172}, meaning: "Details of a memory error that could not be corrected.", action: noAction,
		advice: "Follow the advice of XID 48.", why: "comes with XID 48"},
}

// xids returns the defaults of all XIDs by number.
func xids() []Entry {
	type numbered struct {
		number uint64
		entry  Entry
	}
	var all []numbered
	for _, row := range xidRows {
		source := "catalog: " + row.action.name
		if row.why != "" {
			source += "; " + row.why
		}
		for _, number := range row.numbers {
			all = append(all, numbered{number, Entry{XIDCause(number), row.meaning,
				cmp.Or(row.advice, row.action.advice), row.action.rule, source}})
		}
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
	var entries []Entry
	for _, n := range all {
		entries = append(entries, n.entry)
	}
	return entries
}
