//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
)

// registryAddress is on the loopback interface of a node, where containerd needs no TLS.
const registryAddress = "127.0.0.1:5000"

// serve serves the driver's image to the nodes of the cluster. It returns the repository and the digest of the index.
func (s *suite) serve(t *testing.T, image v1.ImageIndex) (repository, digest string) {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	here := httptest.NewServer(handler)
	defer here.Close()
	tag, err := name.NewTag(strings.TrimPrefix(here.URL, "http://") + strings.TrimPrefix(releaseRegistry,
		registryAddress) + "/gpu-dra-driver")
	must(t, err)
	must(t, remote.WriteIndex(tag, image))
	hash, err := image.Digest()
	must(t, err)
	for i := range s.profiles {
		listener := s.node(nodeName(i)).listen(t, registryAddress)
		t.Cleanup(func() { _ = listener.Close() })
		go func() { _ = http.Serve(listener, handler) }()
	}
	return releaseRegistry + "/gpu-dra-driver", hash.String()
}

// listen listens in the network namespace of the node.
func (n node) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	namespace := n.network(t)
	defer namespace.Close()
	var listener net.Listener
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			listener, err = net.Listen("tcp", address)
		}
		errs <- err
	}()
	must(t, <-errs)
	return listener
}

// network opens the network namespace of the node.
func (n node) network(t *testing.T) *os.File {
	t.Helper()
	want := strings.TrimSpace(n.sh(t, "readlink /proc/self/ns/net"))
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	must(t, err)
	for _, link := range links {
		if got, err := os.Readlink(link); err == nil && got == want {
			file, err := os.Open(link)
			must(t, err)
			return file
		}
	}
	t.Fatalf("no process of %s is in its network namespace, %s", n.name, want)
	return nil
}
