// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"net"
	"path/filepath"
	"strings"
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

// NVIDIA's driver registers under the same name, without a UID. Its socket outlives it if it is killed.
func TestAnotherDriver(t *testing.T) {
	s := Sockets{DriverName: "gpu.nvidia.com", PluginDir: t.TempDir(), RegistryDir: t.TempDir(), PodUID: "new"}
	other, err := net.Listen("unix", filepath.Join(s.RegistryDir, "gpu.nvidia.com-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "serve the kubelet: another driver of this node is registered as gpu.nvidia.com ("
	if _, err := Serve(t.Context(), s, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	other.(*net.UnixListener).SetUnlinkOnClose(false) // as SIGKILL does
	_ = other.Close()
	if err := s.unique(); err != nil {
		t.Errorf("after its end: got %v", err)
	}
}
