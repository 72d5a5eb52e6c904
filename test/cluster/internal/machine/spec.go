// SPDX-License-Identifier: Apache-2.0

// Package machine runs one simulated machine: a process that is PID 1 of
// namespaces of its own (network, mounts, processes, host name, IPC) and keeps
// a list of programs running in them. Killing that one process ends the whole
// machine, with its links and mounts.
//
// A Spec is decided by packages controlplane and node; this package only
// carries it out. Files: spec (what), start (the outside), init (PID 1),
// mounts, supervise, probe and forward (what PID 1 does), enter (exec).
package machine

// Where things are inside a machine.
const (
	// Home is where the machine sees its own folder on the host's disk.
	Home = "/run/gpu-dra-cluster/machine"
	// Bin has one folder per component.
	Bin = "/run/gpu-dra-cluster/bin"
	// PKI holds the machine's certificates; CA is the one it trusts.
	PKI = Home + "/pki"
	CA  = PKI + "/ca.crt"
	// BootIDFile holds the machine's boot id: another one at each start, and
	// not the host's. The machine sees it at the usual place below /proc; a
	// container, which has a /proc of its own, has to be shown it.
	BootIDFile = pretended + "/" + bootID

	pretended = "/run/gpu-dra-cluster/sysctl"
	bootID    = "kernel.random.boot_id"
)

// Spec describes a machine completely; it is stored as JSON in the machine's
// folder.
type Spec struct {
	Name string `json:"name"` // host name
	Dir  string `json:"dir"`  // the machine's folder on the host's disk

	// Components maps a component to the host's folder with its programs; they
	// appear below Bin.
	Components map[string]string `json:"components"`
	// Overlays are folders the machine sees as the host has them, and may
	// change for itself.
	Overlays []string `json:"overlays,omitempty"`
	// Fresh are folders that start empty, on the machine's own disk.
	Fresh []string `json:"fresh,omitempty"`
	// Mounts maps a folder to the component whose programs it shows.
	Mounts map[string]string `json:"mounts,omitempty"`
	// Folders are made, Files written, after mounting.
	Folders []string          `json:"folders,omitempty"`
	Files   map[string]string `json:"files,omitempty"`

	// Pretend gives sysctls of the whole host a value that only this machine
	// sees. Set sets sysctls of the machine's own namespaces.
	Pretend map[string]string `json:"pretend,omitempty"`
	Set     map[string]string `json:"set,omitempty"`

	// Forward is where connections to the listener that was handed to Start go.
	Forward string `json:"forward,omitempty"`

	Steps []Step `json:"steps"`
}

// Step is a program to run. It is started when everything in After holds, and
// again whenever it ends; one with Once only until it has succeeded.
type Step struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// After lists conditions: a URL that must answer with 200, the path of a
	// Unix socket that must accept (unix:PATH), or a step with Once that must
	// have succeeded (step:NAME).
	After []string `json:"after,omitempty"`
	Once  bool     `json:"once,omitempty"`
}

// searchPath is PATH for everything in a machine.
const searchPath = Bin + "/kubernetes:" + Bin + "/containerd:" + Bin + "/runc:" + Bin + "/etcd" +
	":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is minimal on purpose: a proxy set in the user's shell must not
// reach the cluster.
var environment = []string{"PATH=" + searchPath, "HOME=/root"}
