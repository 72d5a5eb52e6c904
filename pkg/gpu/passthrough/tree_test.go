// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// tree is sysfs and a kernel behind it.
type tree struct {
	t       *testing.T
	dir     string
	mu      sync.Mutex
	writes  []string                      // since they were taken, in order, also those that fail
	refuse  func(file, text string) error // before a write has effect; nil: never
	ignored bool                          // writes have no effect
}

// newTree creates functions from lines like "0000:3b:00.0 10de:26b5 030200 nvidia 42 reset": address, IDs, class,
// driver or "-", IOMMU group or "-", and more files. Drivers are registered if a function has them, and as named.
func newTree(t *testing.T, functions string, drivers ...string) *tree {
	t.Helper()
	k := &tree{t: t, dir: t.TempDir()}
	for _, d := range drivers {
		k.file("bus/pci/drivers/"+d+"/bind", "")
		k.file("bus/pci/drivers/"+d+"/unbind", "")
	}
	for line := range strings.Lines(functions) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		vendor, device, _ := strings.Cut(f[1], ":")
		for name, text := range map[string]string{"vendor": "0x" + vendor, "device": "0x" + device,
			"class": "0x" + f[2], "driver_override": "(null)"} {
			k.file("bus/pci/devices/"+f[0]+"/"+name, text+"\n")
		}
		if f[3] != "-" {
			k.file("bus/pci/drivers/"+f[3]+"/bind", "")
			k.file("bus/pci/drivers/"+f[3]+"/unbind", "")
			k.link(f[0]+"/driver", "../../drivers/"+f[3])
		}
		if f[4] != "-" {
			k.link(f[0]+"/iommu_group", "../../../../kernel/iommu_groups/"+f[4])
		}
		for _, name := range f[5:] {
			k.file("bus/pci/devices/"+f[0]+"/"+name, "")
		}
	}
	return k
}

func (k *tree) bus() Bus {
	return Bus{Sysfs: k.dir, Dev: filepath.Join(k.dir, "dev"), Write: k.write}
}

func (k *tree) file(name, text string) {
	k.t.Helper()
	path := filepath.Join(k.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *tree) link(name, to string) {
	k.t.Helper()
	if err := os.Symlink(to, filepath.Join(k.dir, "bus/pci/devices", name)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *tree) remove(name string) {
	k.t.Helper()
	if err := os.RemoveAll(filepath.Join(k.dir, name)); err != nil {
		k.t.Fatal(err)
	}
}

// state writes the function as text: its driver, then what driver_override says.
func (k *tree) state(at string) string {
	driver, err := os.Readlink(filepath.Join(k.dir, "bus/pci/devices", at, "driver"))
	if err != nil {
		driver = "none"
	}
	override, _ := os.ReadFile(filepath.Join(k.dir, "bus/pci/devices", at, "driver_override"))
	return filepath.Base(driver) + " " + strings.TrimSpace(string(override))
}

// write does what Linux does with the text.
func (k *tree) write(file, text string) error {
	name, err := filepath.Rel(filepath.Join(k.dir, "bus/pci"), file)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.writes = append(k.writes, strings.TrimSpace(name+" "+text))
	k.mu.Unlock()
	if k.refuse != nil {
		if err := k.refuse(name, text); err != nil {
			return err
		}
	}
	if !exists(file) {
		return syscall.ENOENT
	}
	if k.ignored {
		return nil
	}
	parts := strings.Split(name, "/")
	link := filepath.Join("bus/pci/devices", text, "driver")
	switch what := parts[2]; what {
	case "driver_override":
		k.file("bus/pci/"+name, map[string]string{"\n": "(null)"}[text]+strings.TrimSpace(text)+"\n")
	case "unbind":
		if bound, err := os.Readlink(filepath.Join(k.dir, link)); err != nil || filepath.Base(bound) != parts[1] {
			return syscall.ENODEV
		}
		k.remove(link)
	case "bind":
		_, override, _ := strings.Cut(k.state(text), " ")
		if exists(filepath.Join(k.dir, link)) || override != parts[1] && (override != "(null)" || parts[1] == Driver) {
			return syscall.ENODEV
		}
		k.link(text+"/driver", "../../drivers/"+parts[1])
	}
	return nil
}

// written takes the writes.
func (k *tree) written() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	writes := k.writes
	k.writes = nil
	return writes
}

// text writes GPUs as a reader sees them.
func text(gpus []GPU) string {
	var b strings.Builder
	for _, g := range gpus {
		fmt.Fprintf(&b, "%s group %d:", g.PCI, g.Group)
		for _, f := range g.Own {
			fmt.Fprintf(&b, " %d %s:%s %06x %q", f.PCI.Function, f.Vendor, f.Device, f.Class, f.Driver)
		}
		fmt.Fprintln(&b, "", g.Refusal)
	}
	return b.String()
}

func address(t *testing.T, s string) gpu.PCIAddress {
	t.Helper()
	at, err := gpu.ParsePCIAddress(s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
