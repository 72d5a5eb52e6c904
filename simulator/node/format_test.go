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

// The file testdata/state-1.so is a state file of format 1, truncated after the newest state. It never changes.
func TestDecodeFirstFormat(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "state-1.so"))
	must(t, err)
	dir := tmpfs.Dir(t)
	path := node.LibraryPath(dir, "580.95.05")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, b, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o644)) // each version has made it first
	n, err := node.Attach(dir)
	must(t, err)
	golden(t, "state-1.txt", n.String())
	const want = "GPU-0c95ed9a-ddc8-4010-9a0b-899979bfee78 GPU-77a6a475-9199-40aa-a750-3935d8dc4369"
	if got := uuids(t, n); got != want {
		t.Errorf("UUIDs %s, want %s", got, want)
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
	if got := uuids(t, open(t, dir, v.Profile)); got != want {
		t.Errorf("opened, UUIDs %s, want %s", got, want)
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

// A downgrade brings the first release back, which knows format 1 only.
func TestEncodeFirstFormat(t *testing.T) {
	for _, tt := range []struct {
		name     string
		do, undo func(n *node.Node) error // undo brings format 1 back, when there is a way
	}{
		{"a removed GPU", func(n *node.Node) error { return n.RemoveGPU("0") }, nil},
		{"a slow call", func(n *node.Node) error { return n.Slow("0", "GetName", time.Second) },
			func(n *node.Node) error { return n.Heal("0") }},
		{"a fault that counts", func(n *node.Node) error {
			return n.Inject("0", "GetName", node.Fault{Error: "ERROR_UNKNOWN", Times: 1})
		}, func(n *node.Node) error { return n.Heal("0") }},
		{"recorded steps", (*node.Node).RecordSteps, (*node.Node).ForgetSteps},
		{"a process", func(n *node.Node) error {
			return n.SetProcesses("0", []node.Process{{PID: 7, Memory: 1 << 20}})
		}, func(n *node.Node) error { return n.SetProcesses("0", nil) }},
		{"a wedged MPS server", func(n *node.Node) error { return n.BreakMPS("0", node.MPSFault{Wedged: true}) },
			func(n *node.Node) error { return n.HealMPS("0") }},
		{"a PCIe error", func(n *node.Node) error { return n.CountAER("gpu-3b-00-0", "fatal", 1) },
			func(n *node.Node) error { return n.CountAER("gpu-3b-00-0", "fatal", -1) }},
		{"an unloaded driver", (*node.Node).Unload, (*node.Node).Load},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			n := open(t, dir, profile(t, "t4-x2"))
			must(t, n.Fail("1", "GetName", "ERROR_UNKNOWN"))
			must(t, n.SetComputeMode("1", hwprofile.ComputeModeExclusiveProcess))
			requireFormat(t, dir, 1)
			must(t, tt.do(n))
			requireFormat(t, dir, 10)
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
			content := fmt.Sprintf(`{"Format":9,"Seed":"x","State":{"Major":0,"GPUs":[%s]},"Profile":%s}`, tt.gpus,
				text)
			must(t, node.CreateForTest(node.LibraryPath(dir, p.Driver()), []byte(content)))
			if _, err := node.Attach(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}
