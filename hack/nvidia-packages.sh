#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Downloads NVIDIA's user-space programs of three driver branches from Debian (component non-free) and unpacks them into
# SUITE/root below a directory of the cache, ${XDG_CACHE_HOME:-~/.cache}/gpu-dra-driver. Nothing is installed. Prints the
# directory; exits with 1 where the packages cannot be had.
set -euo pipefail
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
packages=(nvidia-cuda-mps nvidia-smi libcuda1 libnvidia-ml1 libnvidia-cfg1 libnvidia-ptxjitcompiler1
	libnvcuvid1 libnvidia-encode1)
key=$(echo "${packages[@]}" | sha256sum)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver/nvidia-packages-${key:0:10}

fetch() { # SUITE
	local work
	work=$(mktemp -d "$dir/.$1.XXXXXX")
	trap 'rm -rf "$work"' RETURN
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
	echo "deb [signed-by=$keyring] $mirror $1 non-free" >"$work/sources.list"
	local options=(-qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Acquire::Languages=none
		-o APT::Sandbox::User=root)
	apt-get "${options[@]}" update >&2
	(cd "$work" && apt-get "${options[@]}" download "${packages[@]}" >&2)
	for package in "$work"/*.deb; do
		dpkg -x "$package" "$work/root"
	done
	mkdir "$dir/$1" && mv "$work/root" "$dir/$1/root"
}

mkdir -p "$dir"
for suite in bookworm trixie experimental; do
	if [ ! -d "$dir/$suite/root" ]; then
		rm -rf "${dir:?}/$suite"
		fetch "$suite"
	fi
done
echo "$dir"
