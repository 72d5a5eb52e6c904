// SPDX-License-Identifier: Apache-2.0

package host

import (
	"runtime/debug"
	"testing"
)

func TestVersionOfABinary(t *testing.T) {
	module := func(path, version string) debug.Module { return debug.Module{Path: path, Version: version} }
	k3s := module("github.com/k3s-io/containerd/v2", "v2.1.5-k3s1")
	api := module("github.com/containerd/containerd/api", "v1.8.0")
	for _, row := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"set by the linker", debug.BuildInfo{Main: module("github.com/containerd/containerd", "(devel)"),
			Settings: []debug.BuildSetting{{Key: "-ldflags",
				Value: "-X github.com/containerd/containerd/version.Version=v1.7.24 -s"}}}, "1.7.24"},
		{"of the module", debug.BuildInfo{Main: module("github.com/containerd/containerd/v2", "v2.0.4")}, "2.0.4"},
		{"only the major one", debug.BuildInfo{Main: module("github.com/containerd/containerd/v2", "(devel)")}, "2"},
		{"only the major one of an old one", debug.BuildInfo{Main: module("github.com/containerd/containerd",
			"(devel)")}, "1"},
		{"in another program", debug.BuildInfo{Main: module("github.com/k3s-io/k3s", "(devel)"),
			Deps: []*debug.Module{&api, &k3s}}, "2.1.5-k3s1"},
		{"not at all", debug.BuildInfo{Main: module("example.com/x", "v1.0.0"), Deps: []*debug.Module{&api}}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := versionIn(&row.info); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
