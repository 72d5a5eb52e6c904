// SPDX-License-Identifier: Apache-2.0

// Package machine runs one simulated machine: a process that is PID 1 of its own namespaces (network, mounts,
// processes, host name, IPC) and supervises a list of programs in them. Killing that process ends the whole machine,
// with its links and mounts. Packages controlplane and node build the Spec. Files: spec, start (on the host), init (PID
// 1), mounts, supervise, probe and forward (in PID 1), enter (exec).
package machine

// Paths inside a machine.
const (
	// Home is the machine's folder on the host's disk, as the machine sees it.
	Home = "/run/gpu-dra-cluster/machine"
	// Bin has one folder per component.
	Bin = "/run/gpu-dra-cluster/bin"
	// PKI holds the machine's certificates; CA is the one it trusts.
	PKI = Home + "/pki"
	CA  = PKI + "/ca.crt"
	// BootIDFile has the machine's boot ID, a new one at each start. The machine sees it at the usual path below /proc.
	// A container has its own /proc, so a hook mounts it there.
	BootIDFile = pretended + "/" + bootID

	pretended = "/run/gpu-dra-cluster/sysctl"
	bootID    = "kernel.random.boot_id"
)

// Spec describes a machine completely. It is stored as JSON in the machine's folder.
type Spec struct {
	Name string `json:"name"` // host name
	Dir  string `json:"dir"`  // the machine's folder on the host's disk

	// Components maps a component to its folder on the host; the folders appear below Bin.
	Components map[string]string `json:"components"`
	// Overlays are folders of the host that the machine can change for itself.
	Overlays []string `json:"overlays,omitempty"`
	// Fresh are folders that start empty, on the machine's own disk.
	Fresh []string `json:"fresh,omitempty"`
	// Mounts maps a folder to the component whose programs it shows.
	Mounts map[string]string `json:"mounts,omitempty"`
	// Folders are created and Files are written after mounting.
	Folders []string          `json:"folders,omitempty"`
	Files   map[string]string `json:"files,omitempty"`

	// Pretend sets host-wide sysctls to values that only this machine sees. Set sets sysctls of the machine's own
	// namespaces.
	Pretend map[string]string `json:"pretend,omitempty"`
	Set     map[string]string `json:"set,omitempty"`

	// Forward is the target of connections to the listener passed to Start.
	Forward string `json:"forward,omitempty"`

	Steps []Step `json:"steps"`
}

// Step is a program to run. It starts when all conditions in After hold, and is restarted whenever it ends; with Once
// only until it has succeeded.
type Step struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// After lists conditions: a URL that must return 200, the path of a Unix socket that must accept (unix:PATH), or a
	// step with Once that must have succeeded (step:NAME).
	After []string `json:"after,omitempty"`
	Once  bool     `json:"once,omitempty"`
	// Optional steps may end at once as often as they like: the machine goes on without them.
	Optional bool `json:"optional,omitempty"`
}

// searchPath is the PATH of all programs in a machine.
const searchPath = Bin + "/kubernetes:" + Bin + "/containerd:" + Bin + "/runc:" + Bin + "/etcd" +
	":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is minimal, so that a proxy of the user's shell does not affect the cluster.
var environment = []string{"PATH=" + searchPath, "HOME=/root"}
