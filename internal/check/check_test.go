// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/internal/check"
	"github.com/gpudra/gpu-dra-driver/internal/check/host"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testNode is a simulated node and the configuration of its check.
type testNode struct {
	*simulator.Node
	config check.Target
	t      *testing.T
}

// newTestNode returns a node without problems, except those of the test's own environment.
func newTestNode(t *testing.T, p simulator.Profile) *testNode {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	n, err := simulator.Open(t.TempDir(), p)
	must(t, err)
	program := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(program, nil, 0o600))
	must(t, n.LayOut(simulator.Programs{NvidiaSMI: program, MPSControl: program}))
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "etc/containerd"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc/containerd/config.toml"), []byte("version = 3\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600))
	return &testNode{n, check.Target{
		Machine: nvml.MachineConfig{Library: n.NVML(), Sysfs: filepath.Join(n.DriverRoot(), "sys"), Proc: n.Proc(),
			Driver: driverroot.Root{Host: n.DriverRoot(), Here: n.DriverRoot()}, Timeout: simtest.Patience},
		DriverName: "gpu.nvidia.com", NodeName: "n", CDIDir: "/var/run/cdi", CDIHook: program,
		Host: host.Root(root), Cgroups: root,
		Writable: func(string) error { return nil },
	}, t}
}

// problems returns the IDs of the problems, except those of the test's environment.
func problems(r check.Report) string {
	var ids []string
	for _, p := range r.Problems {
		if p.ID != host.PIDNamespace.ID {
			ids = append(ids, p.ID)
		}
	}
	return strings.Join(ids, " ")
}

// daemon requests an MPS daemon, about which a supervisor that runs reports this.
func (n *testNode) daemon(s mps.DaemonState) error {
	n.config.PluginDir = n.t.TempDir()
	dir := mps.Below(n.config.PluginDir)
	if err := dir.Request(mps.Daemon{ID: "g0"}); err != nil {
		return err
	}
	requested, err := dir.Requested()
	if err != nil {
		return err
	}
	s.Digest = requested[0].Digest
	supervisor, err := os.Open(string(dir))
	if err != nil {
		return err
	}
	n.t.Cleanup(func() { _ = supervisor.Close() })
	return errors.Join(unix.Flock(int(supervisor.Fd()), unix.LOCK_EX), dir.Report("g0", s))
}

// brokenLibrary fails to initialize.
type brokenLibrary struct {
	nvmllib.Interface
	ret nvmllib.Return
}

func (b brokenLibrary) InitWithFlags(uint32) nvmllib.Return { return b.ret }

func (p *testNode) file(name string) string {
	return filepath.Join(p.DriverRoot(), "usr/lib/x86_64-linux-gnu", name)
}

func (p *testNode) broken(ret nvmllib.Return) error {
	p.config.Machine.Library = brokenLibrary{p.config.Machine.Library, ret}
	return nil
}

// oldLibrary is that of an older driver.
type oldLibrary struct{ nvmllib.Interface }

func (oldLibrary) SystemGetDriverVersion() (string, nvmllib.Return) {
	return "460.106.00", nvmllib.SUCCESS
}

func (p *testNode) module(version string) error {
	file := filepath.Join(p.Proc(), "driver/nvidia/version")
	if version == "" {
		return os.Remove(file)
	}
	must(p.t, os.Remove(file))
	return os.WriteFile(file, []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version+
		"  Wed Jan  1 00:00:00 UTC 2025\n"), 0o600)
}

func TestProblems(t *testing.T) {
	for _, row := range []struct {
		name, profile string
		change        func(p *testNode) error
		want          string   // the problems, errors first
		says          []string // in what is printed
	}{
		{"nothing is wrong", "t4-x2", func(*testNode) error { return nil }, "",
			[]string{"GPU 1 gpu-af-00-0", "0 errors, "}},
		{"partitions can be made", "hgx-h200", func(*testNode) error { return nil }, "",
			[]string{"changes without a reset", "1g.18gb+me"}},
		{"no library", "t4-x2", func(p *testNode) error {
			p.config.Machine.Library = nil
			return os.Remove(p.file("libnvidia-ml.so.1"))
		}, "no-library", []string{"libnvidia-ml.so.1 is in no library directory below", "--driver-root"}},
		{"a library and no GPU", "t4-x2", func(p *testNode) error {
			for range 2 {
				must(p.t, p.Remove("0"))
			}
			return nil
		}, "no-gpu", []string{"NVML counts no GPU", "lspci"}},
		{"the module is not loaded", "t4-x2", func(p *testNode) error {
			return errors.Join(p.module(""), p.broken(nvmllib.ERROR_DRIVER_NOT_LOADED))
		}, "no-module", []string{"modprobe nvidia"}},
		{"module and libraries differ", "t4-x2", func(p *testNode) error {
			return errors.Join(p.module("570.124.06"), p.broken(nvmllib.ERROR_LIB_RM_VERSION_MISMATCH))
		}, "version-mismatch", []string{"the kernel module has version 570.124.06, the libraries have 580.95.05",
			"rmmod"}},
		{"module and libraries differ, and the file does not say it", "t4-x2", func(p *testNode) error {
			return p.broken(nvmllib.ERROR_LIB_RM_VERSION_MISMATCH)
		}, "version-mismatch", []string{"initialise NVML"}},
		{"NVML fails for no known reason", "t4-x2", func(p *testNode) error { return p.broken(nvmllib.ERROR_UNKNOWN) },
			"nvml-fails", nil},
		{"the driver is too old", "t4-x2", func(p *testNode) error {
			p.config.Machine.Library = oldLibrary{p.config.Machine.Library}
			return nil
		}, "driver-too-old", []string{"driver 460.106.00: NVIDIA's driver is too old: R470", "install a newer branch"}},
		{"no permission", "t4-x2", func(p *testNode) error { return p.broken(nvmllib.ERROR_NO_PERMISSION) },
			"no-permission", []string{"privileged"}},
		{"a GPU is lost", "t4-x2", func(p *testNode) error { return p.Unplug("0") }, "gpu-lost",
			[]string{"GPU 0: get handle: ", "GPU 1 gpu-af-00-0"}},
		{"a GPU is lost, and has a handle", "t4-x2", func(p *testNode) error {
			return p.Fail("0", node.AllCalls, hwprofile.LostGPU)
		}, "gpu-lost", nil},
		{"a GPU must be reset", "t4-x2", func(p *testNode) error {
			return p.Fail("0", node.AllCalls, "ERROR_RESET_REQUIRED")
		}, "gpu-lost call-fails", []string{"nvidia-smi -r"}},
		{"every call of a GPU fails", "t4-x2", func(p *testNode) error {
			return p.Fail("0", node.AllCalls,
				"ERROR_UNKNOWN")
		},
			"gpu-unreadable call-fails", []string{"GetName (ERROR_UNKNOWN), "}},
		{"a call is not supported", "t4-x2", func(p *testNode) error {
			return p.Fail("0", "GetNumGpuCores", hwprofile.NotSupported)
		}, "", []string{"not supported"}},
		{"a call answers an unknown error", "t4-x2", func(p *testNode) error {
			return p.Fail("0", "GetNumGpuCores",
				"ERROR_UNKNOWN")
		},
			"call-fails", []string{"GPU 0 gpu-3b-00-0: calls fail: GetNumGpuCores (ERROR_UNKNOWN)", "record --mask"}},
		{"a call is not permitted", "t4-x2", func(p *testNode) error {
			return p.Fail("0", "GetComputeRunningProcesses",
				"ERROR_NO_PERMISSION")
		},
			"call-fails", []string{"GetComputeRunningProcesses (ERROR_NO_PERMISSION)"}},
		{"a GPU admits no CUDA program", "t4-x2", func(p *testNode) error {
			return p.SetComputeMode("0", hwprofile.ComputeModeProhibited)
		}, "compute-mode-prohibited", []string{"GPU 0 gpu-3b-00-0: its compute mode admits no CUDA program"}},
		{"a GPU admits one process, as that of a claim", "t4-x2", func(p *testNode) error {
			return p.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess)
		}, "", nil},
		{"the plugin knows a GPU to be sick", "t4-x2", func(p *testNode) error {
			p.config.PluginDir = p.t.TempDir()
			saved := health.Saved{GPUs: []health.SavedGPU{{Name: "gpu-3b-00-0", UUID: "a"}, {UUID: "b"}}}
			saved.Conditions = []health.Condition{{Subject: health.Subject{GPU: "a"}, Cause: health.XIDCause(48)},
				{Subject: health.Subject{GPU: "b"}, Cause: health.XIDCause(31), Ended: time.Now()},
				{Subject: health.Subject{GPU: "b"}, Cause: health.GPULost}}
			return saved.Save(p.config.PluginDir)
		}, "gpu-sick", []string{"gpu-3b-00-0: XID 48"}},
		{"an MPS daemon that serves", "t4-x2", func(p *testNode) error {
			return p.daemon(mps.DaemonState{Ready: true})
		}, "", nil},
		{"an MPS daemon that does not serve", "t4-x2", func(p *testNode) error {
			return p.daemon(mps.DaemonState{Message: "no libcuda.so.1"})
		}, "mps-daemon", []string{"MPS daemon g0: no libcuda.so.1", "hang at their start"}},
		{"an MPS daemon whose servers have failed", "t4-x2", func(p *testNode) error {
			return p.daemon(mps.DaemonState{Ready: true, ServerFailures: 2, ServerFailure: "Server 12 exited"})
		}, "mps-daemon", []string{"MPS daemon g0: 2 of its servers have failed, and their clients with them; the " +
			"last: Server 12 exited"}},
		{"the driver root is a link", "t4-x2", func(p *testNode) error {
			link := filepath.Join(p.t.TempDir(), "driver")
			p.config.Machine.Driver = driverroot.Root{Host: link, Here: link}
			return os.Symlink(p.DriverRoot(), link)
		}, "driver-root-symlink", []string{"is a symbolic link to"}},
		{"the driver root is a link, and seen at another place", "t4-x2", func(p *testNode) error {
			link := filepath.Join(p.t.TempDir(), "driver")
			p.config.Machine.Driver = driverroot.Root{Host: "/run/nvidia/driver", Here: link}
			return os.Symlink(p.DriverRoot(), link)
		}, "driver-root-symlink", nil},
		{"two drivers in the root", "t4-x2", func(p *testNode) error {
			return errors.Join(os.WriteFile(p.file("libnvidia-ml.so.570.124.06"), nil, 0o600),
				os.WriteFile(p.file("libcuda.so.570.124.06"), nil, 0o600))
		}, "two-versions", []string{"570.124.06, 580.95.05"}},
		{"no nvidia-smi, no MPS, no hook", "t4-x2", func(p *testNode) error {
			p.config.CDIHook = "/nowhere/nvidia-cdi-hook"
			return os.RemoveAll(filepath.Join(p.DriverRoot(), "usr/bin"))
		}, "no-nvidia-smi no-mps no-cdi-hook", nil},
		{"a device node is missing", "t4-x2", func(p *testNode) error {
			return os.Remove(filepath.Join(p.DriverRoot(),
				"dev/nvidia-uvm"))
		},
			"driver-files", []string{"/dev/nvidia-uvm is not a character device", "nvidia-modprobe -u -c=0"}},
		{"no device nodes for partitions", "hgx-h200",
			func(p *testNode) error { return os.RemoveAll(filepath.Join(p.Proc(), "driver/nvidia-caps")) },
			"no-mig-device-nodes", nil},
		{"containerd without CDI", "t4-x2", func(p *testNode) error {
			return os.WriteFile(filepath.Join(string(p.config.Host), "etc/containerd/config.toml"),
				[]byte("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = false\n"), 0o600)
		}, "cdi-off", []string{"enable_cdi = true"}},
		{"read-only /etc and /usr", "t4-x2", func(p *testNode) error {
			p.config.Writable = readOnly("/etc", "/usr")
			return nil
		}, "", nil},
		{"a read-only directory for CDI specs", "t4-x2", func(p *testNode) error {
			p.config.Writable, p.config.CDIDir = readOnly("/etc"), "/etc/cdi"
			return nil
		}, "read-only", []string{"/etc/cdi cannot be written to"}},
		{"a directory of hooks that is for root", "t4-x2", func(p *testNode) error {
			p.config.HooksDir = "/var/private/gpu"
			return os.MkdirAll(filepath.Join(string(p.config.Host), "var/private"), 0o750)
		}, "hooks-closed", []string{"mode 0750 of /var/private keeps other users from /var/private/gpu"}},
		{"cgroup v1", "t4-x2", func(p *testNode) error {
			return os.Remove(filepath.Join(p.config.Cgroups,
				"cgroup.controllers"))
		}, "cgroup-v1", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			profile, err := simulator.BuiltIn(row.profile)
			must(t, err)
			p := newTestNode(t, profile)
			must(t, row.change(p))
			r := check.Run(p.config)
			if got := problems(r); got != row.want {
				t.Errorf("found %q, want %q: %v", got, row.want, r.Problems)
			}
			var out strings.Builder
			must(t, r.Print(&out))
			for _, want := range row.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not in:\n%s", want, out.String())
				}
			}
		})
	}
}

func readOnly(dirs ...string) func(string) error {
	return func(dir string) error {
		if slices.ContainsFunc(dirs, func(d string) bool { return strings.Contains(dir, d+"/") }) {
			return fmt.Errorf("%s: read-only file system", dir)
		}
		return nil
	}
}

// The version of a driver need not be a semantic version.
func TestDriverVersionNoSemver(t *testing.T) {
	profile, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	odd, err := simulator.ParseProfile([]byte(strings.ReplaceAll(profile.YAML(), "580.95.05", "580.95.05-grid.1")))
	must(t, err)
	r := check.Run(newTestNode(t, odd).config)
	if got := problems(r); got != "odd-version" || r.GPUs[0].Attributes["driverVersion"] != "580.95.5" {
		t.Errorf("found %q, published %v: %v", got, r.GPUs[0].Attributes["driverVersion"], r.Problems)
	}
}

// A known GPU is lost, and comes back.
func TestGPULostLater(t *testing.T) {
	profile, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	p := newTestNode(t, profile)
	before := check.Run(p.config)
	must(t, p.Unplug("1"))
	lost := check.Run(p.config)
	if problems(lost) != "gpu-lost" || lost.Healthy() || len(lost.GPUs) != 2 || lost.GPUs[1].Error == "" {
		t.Errorf("found %q of %+v", problems(lost), lost.GPUs)
	}
	must(t, p.Plug("1"))
	var texts []string
	for _, r := range []check.Report{before, check.Run(p.config)} {
		var out strings.Builder
		must(t, r.Print(&out))
		texts = append(texts, out.String())
	}
	if texts[0] != texts[1] {
		t.Errorf("afterwards:\n%s\nbefore:\n%s", texts[1], texts[0])
	}
}

func TestEveryProblemHasAnIDAndARemedy(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range check.AllKinds {
		if seen[k.ID] || k.ID == "" || k.Remedy == "" || k.Severity != host.Error && k.Severity != host.Warning {
			t.Errorf("%+v", k)
		}
		seen[k.ID] = true
	}
}

func TestPrintNothing(t *testing.T) {
	var out strings.Builder
	must(t, check.Report{}.Print(&out))
	if title := "What would be published"; strings.Contains(out.String(), title) {
		t.Errorf("%q is in:\n%s", title, out.String())
	}
}

// failing is a writer that always fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestPrintError(t *testing.T) {
	if err := (check.Report{}).Print(failing{}); err != io.ErrClosedPipe { //nolint:errorlint // it is that one
		t.Errorf("got %v", err)
	}
}
