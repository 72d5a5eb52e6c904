// SPDX-License-Identifier: Apache-2.0

package hwprofile_test

import (
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// FuzzProfile parses profiles of any content. What is accepted is the same machine after it was written, and is
// written the same way again.
func FuzzProfile(f *testing.F) {
	f.Add(partitioned)
	f.Add(partitioned + "- *x\n")
	for _, name := range []string{"t4-x2", "l40s-x4"} { // TestFormatRoundTrip has all
		p, err := node.BuiltIn(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.YAML())
	}
	const head = "name: x\nsystem: {SystemGetDriverVersion: 580.95.05}\n"
	const one = "gpus: [{pci: {address: '0000:01:00.0', root: 'pci0000:00'}, calls: "
	for _, gpus := range []string{"gpus: []", "gpus: [{}]", "gpus: [null]", "gpus: &a [*a]", "gpus: [&a {pci: *a}]",
		"defaults: &d {calls: {GetMigMode: *d}}", "gpus: [{calls: {error: ERROR_UNKNOWN}}]",
		"gpus: [{pci: {address: '0000:01:00.0', root: 'pci0000:00', numaNode: 9e9}}]",
		"defaults: {gpuInstances: [{id: 0}]}\ngpus: [{pci: {address: '0000:01:00.0', root: 'pci0000:00'}}]",
		one + "{GetNvLinkState: {17-0: 1, 0-99999999999: 1}}}]",
		one + "{GetName: \"a\\nb: c\", GetSerial: '0x1'}}]", one + "{GetName: ~}}]"} {
		f.Add(head + gpus)
	}
	f.Add("---\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := hwprofile.ParseProfile([]byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "parse profile: ") {
				t.Errorf("got %q, want what was done", err)
			}
			return
		}
		if len(p.GPUs) > hwprofile.MaxGPUs || !hwprofile.IsDriverVersion(p.Driver()) {
			t.Errorf("accepted %d GPUs and version %q", len(p.GPUs), p.Driver())
		}
		out, err := hwprofile.Format(p)
		if err != nil {
			t.Fatalf("accepted, and cannot be written: %v", err)
		}
		again, err := hwprofile.ParseProfile(out)
		if err != nil {
			t.Fatalf("cannot be read again: %v\n%s", err, out)
		}
		if !p.Same(again) {
			t.Errorf("another machine:\n%s", out)
		}
		if second, err := hwprofile.Format(again); err != nil || string(second) != string(out) {
			t.Errorf("written again (%v):\n%s\nwant:\n%s", err, second, out)
		}
	})
}
