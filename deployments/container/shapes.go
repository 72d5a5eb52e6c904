// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
)

// shapes are images for the end-to-end tests: the program of the demos in root file systems that other images have.
// They are in the archive only.
func shapes(demo content) []content {
	base, program := demo.layers[0], demo.layers[1:]
	shape := func(name string, layers ...[]entry) content {
		c := demo
		c.name, c.layers = "gpu-dra-shape-"+name, append(layers, program...)
		return c
	}
	return []content{
		shape("static"), // not even /etc
		shape("musl", []entry{{path: "/etc/alpine-release", mode: 0o644, text: "3.22.0\n"},
			{path: "/etc/ld-musl-x86_64.path", mode: 0o644, text: "/lib:/usr/lib\n"}}),
		shape("links", moved(base)),
	}
}

// moved are the entries below /other, with absolute links to what was moved.
func moved(entries []entry) []entry {
	all := slices.Clone(entries)
	for _, dir := range []string{"/etc", "/usr/lib", "/usr/lib64", "/run"} {
		for i, e := range all {
			if e.path == dir || strings.HasPrefix(e.path, dir+"/") {
				all[i].path = "/other" + e.path
			}
		}
		all = append(all, entry{path: dir, link: "/other" + dir})
	}
	return all
}
