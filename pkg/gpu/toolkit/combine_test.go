// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

func TestCombine(t *testing.T) {
	hook := func(args string, env ...string) gpu.Hook {
		return gpu.Hook{Name: "createContainer", Path: "/h/nvidia-cdi-hook", Env: env,
			Args: strings.Fields("nvidia-cdi-hook " + args)}
	}
	runtime := hook("apply-cuda-memory-limits")
	runtime.Name = "createRuntime"
	foreign := hook("x")
	foreign.Path = "/usr/bin/other"
	for _, row := range []struct {
		name  string
		hooks []gpu.Hook
		want  string
	}{
		{"none", nil, ""},
		{"one", []gpu.Hook{hook("a --x y")}, "/h/cdi-hooks [cdi-hooks a --x y]"},
		{"several, in their order", []gpu.Hook{hook("a", "E=1"), hook("b --x", "E=1"), hook("a", "E=1")},
			"/h/cdi-hooks [cdi-hooks a -- b --x -- a] E=1"},
		{"another environment", []gpu.Hook{hook("a", "E=1"), hook("b", "E=2")},
			"/h/cdi-hooks [cdi-hooks a] E=1\n/h/cdi-hooks [cdi-hooks b] E=2"},
		{"a hook in the runtime's namespaces", []gpu.Hook{hook("a"), runtime, hook("b")},
			"/h/cdi-hooks [cdi-hooks a]\n/h/nvidia-cdi-hook [nvidia-cdi-hook apply-cuda-memory-limits]\n" +
				"/h/cdi-hooks [cdi-hooks b]"},
		{"another program", []gpu.Hook{foreign, hook("a")},
			"/usr/bin/other [nvidia-cdi-hook x]\n/h/cdi-hooks [cdi-hooks a]"},
		{"an argument that separates hooks", []gpu.Hook{hook("a -- b")},
			"/h/nvidia-cdi-hook [nvidia-cdi-hook a -- b]"},
	} {
		k := &Toolkit{HookPath: "/h/nvidia-cdi-hook", CombinedHookPath: "/h/cdi-hooks"}
		if got := lines(k.combine(row.hooks)); got != row.want {
			t.Errorf("%s:\ngot  %s\nwant %s", row.name, got, row.want)
		}
		k.CombinedHookPath = ""
		if got, want := lines(k.combine(row.hooks)), lines(row.hooks); got != want {
			t.Errorf("%s, switched off:\ngot  %s\nwant %s", row.name, got, want)
		}
	}
}

func lines(hooks []gpu.Hook) string {
	var all []string
	for _, h := range hooks {
		all = append(all, strings.TrimSpace(fmt.Sprint(h.Path, " ", h.Args, " ", strings.Join(h.Env, " "))))
	}
	return strings.Join(all, "\n")
}
