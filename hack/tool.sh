#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints the path of a tool that the go.mod of hack/NAME pins. The first run builds it into
# ${XDG_CACHE_HOME:-~/.cache}/gpu-dra-driver. The Go version is in the name, because golangci-lint only reads packages
# of the Go that built it.
# usage: tool.sh NAME
set -eu
cd "$(dirname "$0")/$1"
: "${GO:=go}"
package=$($GO list -f '{{.ImportPath}}' tool)
version=$($GO list -m -f '{{.Version}}' "$($GO list -f '{{.Module.Path}}' tool)")
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver/$1-$version-$($GO env GOVERSION)
if [ ! -x "$dir/$1" ]; then
	echo "building $1 $version, which takes minutes" >&2
	mkdir -p "$dir"
	build=$(mktemp -d "$dir/build.XXXXXX")
	trap 'rm -rf "$build"' EXIT
	$GO build -trimpath -ldflags '-s -w' -o "$build/" "$package" >&2
	mv "$build/$1" "$dir/$1" # in one step, because another run may build it too
fi
echo "$dir/$1"
