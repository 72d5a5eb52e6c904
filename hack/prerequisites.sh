#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks what `make demo` and `make test` cannot install themselves, and prints a sentence for each missing item.
# usage: prerequisites.sh [root|dist|arm64]     "root" also requires root, "dist" a compiler for arm64, "arm64" that and
# an emulator

go_minor=26
missing=0
say() {
	echo "$1" >&2
	missing=1
}

if [ "$1" = root ] && [ "$(id -u)" != 0 ]; then
	say "This needs root, because it starts a Kubernetes cluster out of network and mount namespaces: run it with sudo or in a root shell."
fi
[ "$(uname -s)" = Linux ] || say "This needs Linux, because the cluster consists of Linux namespaces and cgroups."
command -v git >/dev/null || say "git is missing: install it with 'apt-get install git'."
command -v make >/dev/null || say "make is missing: install it with 'apt-get install make'."
if ! command -v gcc >/dev/null; then
	say "gcc is missing, which compiles the bindings to NVIDIA's library: install it with 'apt-get install gcc libc6-dev'."
fi
if [ "$1" = arm64 ] && ! command -v qemu-aarch64 >/dev/null; then
	say "qemu-aarch64 is missing, which runs programs for arm64: install it with 'apt-get install qemu-user'."
fi
if { [ "$1" = dist ] || [ "$1" = arm64 ]; } && ! command -v aarch64-linux-gnu-gcc >/dev/null; then
	say "aarch64-linux-gnu-gcc is missing, which compiles for arm64: install it with 'apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross'."
fi
if ! command -v go >/dev/null; then
	say "Go is missing: install version 1.$go_minor or newer from https://go.dev/dl."
else
	# GOTOOLCHAIN=local: the installed version, not one that go would download.
	version=$(GOTOOLCHAIN=local go env GOVERSION)
	minor=${version#go1.}
	minor=${minor%%[!0-9]*}
	case $version in
	go1.*) [ "${minor:-0}" -ge $go_minor ] || say "Go is too old ($version): install version 1.$go_minor or newer from https://go.dev/dl." ;;
	esac
fi
exit $missing
