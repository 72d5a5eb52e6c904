// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// The files testdata/state-N.so are state files of format N, truncated after the newest state. They never change.
func TestDecodeAllFormats(t *testing.T) {
	for _, tt := range []struct{ name, file, text, uuids string }{
		{"format 1", "state-1.so", "state-1.txt", "GPU-0c95ed9a-ddc8-4010-9a0b-899979bfee78 " +
			"GPU-77a6a475-9199-40aa-a750-3935d8dc4369"},
		{"format 2", "state-2.so", "state-2.txt",
			"GPU-80c15793-26e6-4819-9266-6e95cb021fce GPU-0d1301c1-cc8d-471e-a894-fa3758596cd6 " +
				"GPU-f89c2c4e-3fcc-468b-a5e9-6b1d7b46de36"},
		{"format 3", "state-3.so", "state-3.txt", "GPU-a2ac5117-4046-402e-9cb0-20587442209d " +
			"GPU-f6c56917-cd99-467e-a5ab-e51e2b6b022e"},
		{"format 4", "state-4.so", "state-4.txt", "GPU-d5e82df6-f6fa-4339-aae3-53afd4ffd7a4 " +
			"GPU-09762b53-744e-4c89-b58a-c5bc97c85411"},
		{"format 6", "state-6.so", "state-6.txt", "GPU-15a00661-1403-4f97-8006-581643e3e278 " +
			"GPU-1cfae411-cfcd-4c51-8623-058e1788c0ab"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", tt.file))
			must(t, err)
			dir := tmpfs.Dir(t)
			path := node.LibraryPath(dir, "580.95.05")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, b, 0o644))
			n, err := node.Attach(dir)
			must(t, err)
			golden(t, tt.text, n.String())
			if got := uuids(t, n); got != tt.uuids {
				t.Errorf("UUIDs %s, want %s", got, tt.uuids)
			}
			v, err := n.View()
			must(t, err)
			if v.Major != 120 {
				t.Errorf("major %d, want 120", v.Major)
			}
			must(t, n.SetMemoryUsed("0", 7<<20)) // and it can be changed
			if got := n.String(); !strings.Contains(got, "used=7MiB") {
				t.Errorf("changed, got:\n%s", got)
			}
			if got := uuids(t, open(t, dir, v.Profile)); got != tt.uuids {
				t.Errorf("opened, UUIDs %s, want %s", got, tt.uuids)
			}
		})
	}
}

// content1 is the content that the program of format 1 accepted.
type content1 struct {
	Format int
	Seed   string
	State  struct {
		Major int
		GPUs  []struct {
			ComputeMode int
			MemoryUsed  uint64
			Faults      map[string]string
		}
	}
	Profile string
}

// Containers keep the nvidia-smi of their start, and a downgrade brings an older driver back.
func TestEncodeOldestFormat(t *testing.T) {
	for _, tt := range []struct {
		name     string
		do, undo func(n *node.Node) error // undo brings format 1 back, when there is a way
		want     int
	}{
		{"an unplugged GPU", func(n *node.Node) error { return n.Unplug("0") },
			func(n *node.Node) error { return n.Plug("0") }, 2},
		{"a removed GPU", func(n *node.Node) error { return n.RemoveGPU("0") }, nil, 2},
		{"an added GPU", func(n *node.Node) error { return do(n, "add 0") }, nil, 2},
		{"a slow call", func(n *node.Node) error { return n.Slow("0", "GetName", time.Second) },
			func(n *node.Node) error { return n.Heal("0") }, 2},
		{"a fault that counts", func(n *node.Node) error {
			return n.Inject("0", "GetName", node.Fault{Error: "ERROR_UNKNOWN", Times: 1})
		}, func(n *node.Node) error { return n.Heal("0") }, 2},
		{"an order to crash", func(n *node.Node) error { return n.OrderCrash(node.Crash{At: 1}) },
			(*node.Node).CancelCrash, 2},
		{"recorded steps", (*node.Node).RecordSteps, (*node.Node).ForgetSteps, 2},
		{"a time slice", func(n *node.Node) error { return n.SetTimeSlice("0", 3) },
			func(n *node.Node) error { return n.SetTimeSlice("0", 0) }, 3},
		{
			"a process", func(n *node.Node) error {
				return n.SetProcesses("0", []node.Process{{PID: 7, Memory: 1 << 20}})
			},
			func(n *node.Node) error { return n.SetProcesses("0", nil) }, 3,
		},
		{
			"a fault of MPS", func(n *node.Node) error { return n.BreakMPS("0", node.MPSFault{Dead: true}) },
			func(n *node.Node) error { return n.HealMPS("0") }, 3,
		},
		{
			"a process that somebody put there", func(n *node.Node) error { return n.AddProcess("0", "x", 0) },
			func(n *node.Node) error { return n.RemoveProcess("0", "x") }, 4,
		},
		{"health", func(n *node.Node) error { return setHealth(n, "0", "retired-pages=pending") },
			func(n *node.Node) error { return setHealth(n, "0", "retired-pages=none") }, 6},
		{"a PCIe error", func(n *node.Node) error { return n.CountAER("gpu-3b-00-0", "fatal", 1) },
			func(n *node.Node) error { return n.CountAER("gpu-3b-00-0", "fatal", -1) }, 8},
		{"a wedged MPS server", func(n *node.Node) error { return n.BreakMPS("0", node.MPSFault{Wedged: true}) },
			func(n *node.Node) error { return n.HealMPS("0") }, 9},
		{"an unloaded driver", (*node.Node).Unload, (*node.Node).Load, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			n := open(t, dir, profile(t, "t4-x2"))
			must(t, n.Fail("1", "GetName", "ERROR_UNKNOWN"))
			must(t, n.SetComputeMode("1", hwprofile.ComputeModeExclusiveProcess))
			requireFormat(t, dir, 1)
			must(t, tt.do(n))
			requireFormat(t, dir, tt.want)
			if tt.undo != nil {
				must(t, tt.undo(n))
				requireFormat(t, dir, 1)
			}
		})
	}
}

func requireFormat(t *testing.T, dir string, want int) {
	t.Helper()
	b, err := node.ContentForTest(node.LibraryPath(dir, "580.95.05"))
	must(t, err)
	var c content1
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err = d.Decode(&c)
	if c.Format != want || want == 1 && (err != nil || c.State.GPUs[1].Faults["GetName"] != "ERROR_UNKNOWN") {
		t.Errorf("format %d, want %d (%v)", c.Format, want, err)
	}
}

func TestStateDoesNotFitProfile(t *testing.T) {
	p := profile(t, "t4-x2")
	const gpu, added = `{"ComputeMode":0,"MemoryUsed":0}`,
		`{"ComputeMode":0,"MemoryUsed":0,"Added":{"Like":%d,"PCI":{"Address":"0000:3c:00.0"}}}`
	for _, tt := range []struct{ name, gpus, want string }{
		{"too few GPUs", gpu, "state of 1 GPUs, the profile has 2"},
		{"one too many", gpu + "," + gpu + "," + gpu, "GPU 2 of the state is neither one of the 2 of the profile nor " +
			"like one of them"},
		{"an added one in the place of another", gpu + "," + fmt.Sprintf(added, 0), "GPU 1 of the state is neither"},
		{"like one that does not exist", gpu + "," + gpu + "," + fmt.Sprintf(added, 2),
			"GPU 2 of the state is neither"},
		{"an address that is none", gpu + "," + gpu +
			`,{"ComputeMode":0,"MemoryUsed":0,"Added":{"PCI":{"Address":"x"}}}`, `"x" is no PCI address`},
		{"a fault that is none", `{"ComputeMode":0,"MemoryUsed":0,"Faults":{"GetName":{"Delays":1}}}`,
			`unknown field "Delays"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			text, err := json.Marshal(p.YAML())
			must(t, err)
			content := fmt.Sprintf(`{"Format":2,"Seed":"x","State":{"Major":0,"GPUs":[%s]},"Profile":%s}`, tt.gpus,
				text)
			must(t, node.CreateForTest(node.LibraryPath(dir, p.Driver()), []byte(content)))
			if _, err := node.Attach(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}
