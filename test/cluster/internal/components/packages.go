// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Package is a Debian package and path patterns. It is installed if one of them matches.
type Package struct {
	Name  string
	Paths []string
}

var (
	compiler       = Package{"gcc", []string{"/usr/bin/gcc", "/usr/local/bin/gcc"}}
	pkgConfig      = Package{"pkg-config", []string{"/usr/bin/pkg-config", "/usr/local/bin/pkg-config"}}
	seccompHeaders = Package{"libseccomp-dev", []string{"/usr/include/seccomp.h", "/usr/local/include/seccomp.h"}}
)

// Runtime are the packages that a running cluster needs: kube-proxy runs nft, and runc is linked to libseccomp.
var Runtime = []Package{
	{"nftables", []string{"/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft", "/usr/local/sbin/nft"}},
	{"libseccomp2", []string{"/usr/lib/*/libseccomp.so.2", "/usr/lib/libseccomp.so.2", "/usr/lib64/libseccomp.so.2"}},
}

// ErrMissingPackages means that Debian packages are missing that this process cannot install. The message names them.
var ErrMissingPackages = errors.New("missing packages")

// Ensure installs missing packages with apt-get, if this process is root on Debian, and prints one line about it.
// Otherwise it returns ErrMissingPackages.
func Ensure(ctx context.Context, out io.Writer, packages []Package) error {
	missing := absent(packages)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	apt, err := exec.LookPath("apt-get")
	if _, statErr := os.Stat("/etc/debian_version"); err != nil || statErr != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%w: please install %s (names as in Debian), then run this again", ErrMissingPackages, list)
	}
	fmt.Fprintf(out, "installing Debian packages: %s\n", list)
	install := append([]string{"install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"},
		missing...)
	if _, err := aptGet(ctx, apt, install); err == nil {
		return nil
	}
	// apt-get usually fails because its package list is old or empty.
	if text, err := aptGet(ctx, apt, []string{"update", "-q"}); err != nil {
		return fmt.Errorf("install %s: apt-get update: %w: %s", list, err, lastLine(text))
	}
	if text, err := aptGet(ctx, apt, install); err != nil {
		return fmt.Errorf("install %s: apt-get: %w: %s", list, err, lastLine(text))
	}
	return nil
}

func absent(packages []Package) []string {
	var names []string
	for _, p := range packages {
		if !p.present() {
			names = append(names, p.Name)
		}
	}
	return names
}

func (p Package) present() bool {
	for _, pattern := range p.Paths {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return true
		}
	}
	return false
}

func aptGet(ctx context.Context, apt string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, apt, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
