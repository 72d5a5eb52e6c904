// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"path/filepath"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// hookSeparator is between the command lines of two hooks; cmd/cdi-hooks splits at it.
const hookSeparator = "--"

// combine makes one hook of the consecutive hooks that NVIDIA's program runs in the container's namespaces: starting a
// process takes longer than what most of them do.
func (t *Toolkit) combine(hooks []gpu.Hook) []gpu.Hook {
	var all []gpu.Hook
	for _, h := range hooks {
		combinable := t.CombinedHookPath != "" && h.Path == t.HookPath && h.Name == "createContainer" &&
			!slices.Contains(h.Args, hookSeparator)
		if !combinable {
			all = append(all, h)
			continue
		}
		h.Path = t.CombinedHookPath
		if last := len(all) - 1; last >= 0 && all[last].Path == h.Path && slices.Equal(all[last].Env, h.Env) {
			all[last].Args = slices.Concat(all[last].Args, []string{hookSeparator}, h.Args[1:])
			continue
		}
		h.Args = slices.Concat([]string{filepath.Base(h.Path)}, h.Args[1:])
		all = append(all, h)
	}
	return all
}
