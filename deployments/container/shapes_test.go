// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"
)

func TestMoved(t *testing.T) {
	content, err := tarOf(moved([]entry{{path: "/etc/group", mode: 0o644, text: "g"}, {path: "/usr/lib64", mode: 0o755},
		{path: "/usr/lib/a", mode: 0o644, text: "a"}, {path: "/usr/bin/b", mode: 0o755, text: "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	const want = `etc 777 -> /other/etc
other/ 755
other/etc/ 755
other/etc/group 644 g
other/usr/ 755
other/usr/lib/ 755
other/usr/lib/a 644 a
other/usr/lib64/ 755
run 777 -> /other/run
usr/ 755
usr/bin/ 755
usr/bin/b 755 b
usr/lib 777 -> /other/usr/lib
usr/lib64 777 -> /other/usr/lib64
`
	if got := listing(t, bytes.NewReader(content)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The images of a release have no shapes.
func TestShapes(t *testing.T) {
	all, err := contents(native, programs(t, t.TempDir()), "v1")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[1].name != "gpu-dra-demo" {
		t.Fatalf("got %d images, want those of driver and demos", len(all))
	}
	for _, shape := range shapes(all[1]) {
		if _, err := newImage(t.TempDir(), shape); err != nil {
			t.Errorf("%s: %v", shape.name, err)
		}
	}
}
