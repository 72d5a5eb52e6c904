// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// platform is a processor that programs and images are for, as Go names it. The system is always Linux.
type platform string

const (
	amd64 platform = "amd64"
	arm64 platform = "arm64"
	// native is that of this machine.
	native = platform(runtime.GOARCH)
)

// released are the platforms of a release.
var released = []platform{amd64, arm64}

// multiarch is the name of Debian's library directory, and the prefix of its compilers.
func (p platform) multiarch() string {
	return map[platform]string{amd64: "x86_64-linux-gnu", arm64: "aarch64-linux-gnu"}[p]
}

// environment selects the compilers.
func (p platform) environment() []string {
	if p == native {
		return nil
	}
	return []string{"GOARCH=" + string(p), "CC=" + p.multiarch() + "-gcc"}
}

// libraryDirs is where the libraries are: where the dynamic loader of this machine looks, Debian's and Red Hat's, or
// where Debian's cross compilers have them.
func (p platform) libraryDirs() []string {
	m := p.multiarch()
	if p != native {
		return []string{"/usr/" + m + "/lib"}
	}
	return []string{"/lib/" + m, "/usr/lib/" + m, "/lib64", "/usr/lib64", "/lib", "/usr/lib"}
}

// loaderFile is the file on this machine of the dynamic loader that programs name.
func (p platform) loaderFile(name string) string {
	if p != native {
		return filepath.Join(p.libraryDirs()[0], filepath.Base(name))
	}
	return name
}

func (p platform) oci() v1.Platform { return v1.Platform{OS: "linux", Architecture: string(p)} }
