// SPDX-License-Identifier: Apache-2.0

package tmpfs

import "testing"

func TestLabelOption(t *testing.T) {
	for current, want := range map[string]string{
		"": "", "unconfined\n": "", "cri-containerd.apparmor.d (enforce)\n": "",
		"system_u:system_r:spc_t:s0\x00": ",context=system_u:object_r:container_file_t:s0",
	} {
		if got := labelOption(current); got != want {
			t.Errorf("%q: got %q, want %q", current, got, want)
		}
	}
}
