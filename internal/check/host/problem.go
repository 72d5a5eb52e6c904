// SPDX-License-Identifier: Apache-2.0

// Package host checks the environment of the driver on a node: container runtime, cgroups, file systems. It needs no
// GPU.
package host

import "fmt"

// Severity is the effect of a problem.
type Severity string

const (
	// Error problems keep pods from using GPUs.
	Error Severity = "error"
	// Warning problems affect only some pods, or should be looked at.
	Warning Severity = "warning"
)

// Problem is a problem of the node, and its remedy.
type Problem struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Remedy   string   `json:"remedy"`
}

// ProblemKind is a kind of problem. Its ID never changes.
type ProblemKind struct {
	ID       string
	Severity Severity
	Remedy   string
}

// Found returns the problem as found on this machine.
func (k ProblemKind) Found(format string, args ...any) Problem {
	return Problem{ID: k.ID, Severity: k.Severity, What: fmt.Sprintf(format, args...), Remedy: k.Remedy}
}

// The problems of a host.
var (
	CDIOff = ProblemKind{"cdi-off", Error,
		"in the section of the CRI plugin of containerd's configuration set enable_cdi = true, and restart containerd"}
	CDIUnsupported = ProblemKind{"cdi-unsupported", Error,
		"use CRI-O, or containerd: there CDI came with 1.7, and is on by default since 2.0"}
	CDIDirUnread = ProblemKind{"cdi-dir-unread", Error,
		"give the driver a directory that the runtime reads (--cdi-dir, cdiDir of the chart), or add its directory " +
			"to the runtime's cdi_spec_dirs"}
	RuntimeUnknown = ProblemKind{"runtime-unknown", Warning,
		"name the root of the host (--host-root), or make sure that the container runtime has CDI on: containerd 2 " +
			"or CRI-O, or enable_cdi = true in containerd 1.7"}
	RuntimeConfig = ProblemKind{"runtime-config", Warning,
		"mend the file: the runtime itself will not read it at its next start"}
	CgroupV1 = ProblemKind{"cgroup-v1", Warning, "start the machine with cgroup v2: memory limits by control group " +
		"(isolation: cgroup) need it"}
	ReadOnly = ProblemKind{"read-only", Error, "give the driver a directory on a file system that can be written to " +
		"(--cdi-dir, --plugin-dir; cdiDir, kubeletDir of the chart)"}
	HooksClosed = ProblemKind{"hooks-closed", Warning,
		"for pods with hostUsers: false, give the driver a directory that " +
			"all users can run programs from, with every directory above it (--hooks-dir, hooksDir of the chart)"}
	PIDNamespace = ProblemKind{"pid-namespace", Warning,
		"for metrics of containers, and to see who keeps a GPU from being partitioned, run in the host's PID " +
			"namespace (metrics.containers.usage of the chart)"}
	DevicePlugin = ProblemKind{"device-plugin", Warning,
		"if it offers the GPUs of this driver, remove it from the node: " +
			"neither knows which GPUs the other has given out"}
	OtherDriver = ProblemKind{"other-driver", Error,
		"decide which of them has the GPUs of the node; with NVIDIA's chart, set resources.gpus.enabled=false, or " +
			"keep it from this node"}
)

// AllKinds are all kinds of problems of a host.
var AllKinds = []ProblemKind{CDIOff, CDIUnsupported, CDIDirUnread, RuntimeUnknown, RuntimeConfig, CgroupV1, ReadOnly,
	HooksClosed, PIDNamespace, DevicePlugin, OtherDriver}
