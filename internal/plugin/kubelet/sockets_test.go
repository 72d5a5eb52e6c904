// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"net"
	"path/filepath"
	"testing"
)

// TestAlone: an instance that is killed leaves its socket, which nobody serves.
func TestAlone(t *testing.T) {
	c := Sockets{DriverName: "gpu.nvidia.com", PluginDir: t.TempDir(), RegistryDir: t.TempDir(), PodUID: "new"}
	listen := func(name string) *net.UnixListener {
		t.Helper()
		l, err := net.Listen("unix", filepath.Join(c.PluginDir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l.(*net.UnixListener)
	}
	want := func(want bool, when string) {
		t.Helper()
		if got := c.Alone(); got != want {
			t.Errorf("%s: got alone %t, want %t", when, got, want)
		}
	}
	want(true, "nobody serves yet")
	old := listen("dra-old.sock")
	want(false, "only another instance serves yet")
	listen(c.socketName())
	want(false, "both serve")
	old.SetUnlinkOnClose(false) // as SIGKILL does
	_ = old.Close()
	want(true, "the other was killed")
	c.RemoveDeadSockets(t.Context())
	want(true, "its socket is removed")
	listen("dra.sock")
	want(false, "an instance without a UID serves")
}
