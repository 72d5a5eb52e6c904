// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Drivers reads a function that is no GPU once, and whatever comes at its address.
func TestDriversReadsOthersOnce(t *testing.T) {
	k := newTree(t, `
		0000:00:1f.0 8086:7a04 060100 - -
		0000:3b:00.0 10de:26b5 030200 nvidia -
		0000:af:00.0 10de:22ba 040300 - -
		0000:b0:00.0 8086:56c0 030200 - -
		0000:d8:00.0 10de:26b5 030200 - -`)
	bus := k.bus()
	bus.Others = &Others{}
	require := func(what, want string) {
		t.Helper()
		if got := fmt.Sprint(bus.Drivers()); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	const two = "map[0000:3b:00.0:nvidia 0000:d8:00.0:]"
	require("at first", two)
	k.file("bus/pci/devices/0000:b0:00.0/vendor", "0x10de\n") // which Linux never does
	require("a function that is known", two)
	k.link("0000:d8:00.0/driver", "../../drivers/nvidia")
	require("a GPU gets a driver", "map[0000:3b:00.0:nvidia 0000:d8:00.0:nvidia]")
	k.link("0000:d8:00.0/physfn", "../0000:3b:00.0")
	require("a GPU turns out to be a virtual function", "map[0000:3b:00.0:nvidia]")

	devices := filepath.Join(k.dir, "bus/pci/devices")
	k.file("bus/pci/new/vendor", "0x10de\n")
	k.file("bus/pci/new/class", "0x030200\n")
	if err := os.Rename(filepath.Join(devices, "0000:b0:00.0"), filepath.Join(k.dir, "bus/pci/old")); err != nil {
		t.Fatal(err)
	}
	require("a function is removed", "map[0000:3b:00.0:nvidia]")
	if err := os.Rename(filepath.Join(k.dir, "bus/pci/new"), filepath.Join(devices, "0000:b0:00.0")); err != nil {
		t.Fatal(err)
	}
	require("a GPU comes at its address", "map[0000:3b:00.0:nvidia 0000:b0:00.0:]")
}

// A function whose files cannot be read is read again: it may just be coming.
func TestDriversReadsUnknownAgain(t *testing.T) {
	k := newTree(t, "0000:3b:00.0 10de:26b5 030200 nvidia -")
	bus := k.bus()
	bus.Others = &Others{}
	k.remove("bus/pci/devices/0000:3b:00.0/class")
	if got := bus.Drivers(); len(got) != 0 {
		t.Errorf("without its class: got %v", got)
	}
	k.file("bus/pci/devices/0000:3b:00.0/class", "0x030200\n")
	if got := bus.Drivers(); len(got) != 1 {
		t.Errorf("with its class: got %v, want the GPU", got)
	}
}

// What a look costs on a server with 8 GPUs and 192 other functions.
func BenchmarkDrivers(b *testing.B) {
	var functions strings.Builder
	for i := range 200 {
		vendor := "8086"
		if i%25 == 0 {
			vendor = "10de"
		}
		fmt.Fprintf(&functions, "0000:%02x:00.0 %s:26b5 030200 nvidia -\n", i, vendor)
	}
	k := newTree(b, functions.String())
	for name, others := range map[string]*Others{"all": nil, "known": {}} {
		b.Run(name, func(b *testing.B) {
			bus := k.bus()
			bus.Others = others
			for b.Loop() {
				if got := len(bus.Drivers()); got != 8 {
					b.Fatalf("got %d GPUs, want 8", got)
				}
			}
		})
	}
}
