// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// space is a configuration space with capabilities from 0x40 on. Each begins with its ID and the next one.
func space(capabilities string) string {
	head := make([]byte, 0x40)
	head[0x06], head[0x34] = 0x10, 0x40
	return string(head) + capabilities + strings.Repeat("\x00", 256-0x40-len(capabilities))
}

func TestHostDriver(t *testing.T) {
	const version = "\x00\x16460.16\x00\x00\x00\x00r460_00\x00\x00\x00" // a record, as of a real vGPU
	const msi = "\x05\x44\x00\x00"
	for _, row := range []struct{ name, config, want string }{
		{"a vGPU", space("\x09\x00\x1bVF" + version), "460.16"},
		{"another capability before it", space(msi + "\x09\x00\x1bVF" + version), "460.16"},
		{"another record before it", space("\x09\x00\x1eVF\x07\x03x" + version), "460.16"},
		{"a capability of somebody else", space("\x09\x00\x1bXX" + version), ""},
		{"no capability", space(msi), ""},
		{"capabilities in a loop", space("\x05\x40\x00\x00"), ""},
		{"a record without an end", space("\x09\x00\x1bVF\x07\x00" + version), ""},
		{"a capability that is too long", space("\x09\x00\xffVF" + version), ""},
		{"the first 64 bytes, as all users may read them", space("")[:64], ""},
		{"no list", strings.Repeat("\x00", 256), ""},
	} {
		k := newTree(t, given, Driver)
		k.file("bus/pci/devices/"+at+"/config", row.config)
		pci, err := gpu.ParsePCIAddress(at)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.bus().HostDriver(pci); got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
		gpus, err := k.bus().GPUs()
		if err != nil || len(gpus) == 0 {
			t.Fatal(gpus, err)
		}
		if got := strings.Contains(gpus[0].Refusal, "it is a vGPU"); got != (row.want != "") {
			t.Errorf("%s: got the refusal %q", row.name, gpus[0].Refusal)
		}
	}
	if got := newTree(t, given).bus().HostDriver(gpu.PCIAddress{}); got != "" {
		t.Errorf("no such function: got %q", got)
	}
}
