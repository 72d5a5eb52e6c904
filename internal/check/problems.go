// SPDX-License-Identifier: Apache-2.0

package check

import "github.com/gpudra/gpu-dra-driver/internal/check/host"

// The problems of the driver and of GPUs.
var (
	noLibrary = host.ProblemKind{ID: "no-library", Severity: host.Error,
		Remedy: "install NVIDIA's driver on the node, or name the directory that has it (--driver-root, driverRoot " +
			"of the chart): /run/nvidia/driver with the GPU operator's driver container, /home/kubernetes/bin/nvidia " +
			"on GKE"}
	noModule = host.ProblemKind{ID: "no-module", Severity: host.Error,
		Remedy: "load NVIDIA's kernel module (modprobe nvidia); if there is none for this kernel, dmesg and dkms " +
			"status say why"}
	versionMismatch = host.ProblemKind{ID: "version-mismatch", Severity: host.Error,
		Remedy: "restart the machine; or drain the node, stop what has the GPUs open, this driver included, and load " +
			"the kernel module again (rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia; modprobe nvidia), so that " +
			"module and libraries are of one version"}
	noNVML = host.ProblemKind{ID: "nvml-fails", Severity: host.Error,
		Remedy: "run nvidia-smi on the node: it says the same; dmesg says why"}
	driverTooOld = host.ProblemKind{ID: "driver-too-old", Severity: host.Error,
		Remedy: "install a newer branch of NVIDIA's driver on the node"}
	noPermission = host.ProblemKind{ID: "no-permission", Severity: host.Error,
		Remedy: "run as root, in a privileged container that sees the device nodes /dev/nvidia*"}
	noGPU = host.ProblemKind{ID: "no-gpu", Severity: host.Error,
		Remedy: "lspci -d 10de: shows whether the machine has one; dmesg says why the driver does not use it; on a " +
			"machine without GPUs, do not run the driver"}
	gpuLost = host.ProblemKind{ID: "gpu-lost", Severity: host.Error,
		Remedy: "stop what has it open, and reset it (nvidia-smi -r); or restart the machine, or replace the card: " +
			"dmesg has the Xid; the other GPUs are published"}
	gpuUnreadable = host.ProblemKind{ID: "gpu-unreadable", Severity: host.Error,
		Remedy: "send a recording (dra-kubelet-plugin record --mask) with a bug report; the other GPUs are published"}
	gpuSick = host.ProblemKind{ID: "gpu-sick", Severity: host.Warning,
		Remedy: "dra-kubelet-plugin health says what to do, and what was wrong before; " +
			"docs/operate/health.md has the rules"}
	driverFiles = host.ProblemKind{ID: "driver-files", Severity: host.Error,
		Remedy: "make the device nodes (nvidia-modprobe -u -c=0), and install the driver's libraries for computing"}
	twoVersions = host.ProblemKind{ID: "two-versions", Severity: host.Warning,
		Remedy: "remove the older one: programs in containers may find either"}
	symlink = host.ProblemKind{ID: "driver-root-symlink", Severity: host.Warning,
		Remedy: "name the directory that the link leads to: the pods of the driver mount its parent, where an " +
			"absolute link leads nowhere"}
	oddVersion = host.ProblemKind{ID: "odd-version", Severity: host.Warning,
		Remedy: "nothing, unless selectors compare driverVersion: they see what is published"}
	callFails = host.ProblemKind{ID: "call-fails", Severity: host.Warning,
		Remedy: "what rests on these calls is published as 0 or empty; a newer driver may help; send a recording " +
			"(dra-kubelet-plugin record --mask) with a bug report"}
	noSMI = host.ProblemKind{ID: "no-nvidia-smi", Severity: host.Warning,
		Remedy: "install the driver's programs: without nvidia-smi time slices cannot be set"}
	noMPS = host.ProblemKind{ID: "no-mps", Severity: host.Warning,
		Remedy: "install the driver's compute utilities (nvidia-cuda-mps-control, nvidia-cuda-mps-server): without " +
			"them shares cannot be limited by MPS"}
	oldForMPS = host.ProblemKind{ID: "no-mps-limits", Severity: host.Warning,
		Remedy: "let it be used as a whole, or in replicas (sharing: exclusive, replicated): MPS limits shares from " +
			"Volta on"}
	mpsDaemon = host.ProblemKind{ID: "mps-daemon", Severity: host.Warning,
		Remedy: "look at the log of the MPS supervisor's pod on this node; where containers hang at their start, end " +
			"the daemon's server, as docs/use/sharing.md says (a killed client can stop the GPU)"}
	vgpuUnlicensed = host.ProblemKind{ID: "vgpu-unlicensed", Severity: host.Warning,
		Remedy: "check the license server, and the log of nvidia-gridd on the node (nvidia-smi -q shows the state): " +
			"20 minutes after its start, an unlicensed machine has a slow GPU"}
	noHook = host.ProblemKind{ID: "no-cdi-hook", Severity: host.Warning,
		Remedy: "nothing on the node itself: the driver's image brings it; elsewhere name it (--cdi-hook)"}
	noCapabilities = host.ProblemKind{ID: "no-mig-device-nodes", Severity: host.Warning,
		Remedy: "load the kernel modules with nvidia-modprobe: without them partitions cannot be given to containers"}
	migUnreadable = host.ProblemKind{ID: "mig-unreadable", Severity: host.Warning,
		Remedy: "nothing, if the profile is not needed: it is left out, and all others are offered; else use a newer " +
			"version of this driver, or send a recording (dra-kubelet-plugin record --mask) with a bug report"}
	prohibited = host.ProblemKind{ID: "compute-mode-prohibited", Severity: host.Warning,
		Remedy: "nothing, if CUDA programs are to be kept off the GPU, which is tainted; else nvidia-smi -c DEFAULT"}
	noPersistence = host.ProblemKind{ID: "no-persistence", Severity: host.Warning,
		Remedy: "run nvidia-persistenced, or nvidia-smi -pm 1: else the driver lets go of an idle GPU, and the first " +
			"program waits seconds for it"}
)

// AllKinds are all problems that a check can find. docs/reference/check.md describes each.
var AllKinds = append([]host.ProblemKind{
	noLibrary, noModule, versionMismatch, noNVML, driverTooOld, noPermission, noGPU, gpuLost, gpuUnreadable, gpuSick,
	driverFiles, twoVersions, symlink, oddVersion, callFails, noSMI, noMPS, oldForMPS, noHook, noCapabilities,
	migUnreadable, prohibited, noPersistence, vgpuUnlicensed, mpsDaemon,
}, host.AllKinds...)
