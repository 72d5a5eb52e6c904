#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs golangci-lint, pinned by the go.mod of this folder, on every Go module of the repository. The first run builds it
# into ${XDG_CACHE_HOME:-~/.cache}/gpu-dra-driver. The Go version is in the name, because golangci-lint only reads
# packages of the Go that built it.
# usage: run.sh [flag of golangci-lint run]...
set -eu
cd "$(dirname "$0")/../.."
: "${GO:=go}"
module=github.com/golangci/golangci-lint/v2
version=$($GO list -C hack/golangci-lint -m -f '{{.Version}}' $module)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver/golangci-lint-$version-$($GO env GOVERSION)
lint=$dir/golangci-lint
if [ ! -x "$lint" ]; then
	echo "building golangci-lint $version, which takes minutes" >&2
	mkdir -p "$dir"
	build=$(mktemp -d "$dir/build.XXXXXX")
	trap 'rm -rf "$build"' EXIT
	$GO build -C hack/golangci-lint -trimpath -ldflags '-s -w' -o "$build/" $module/cmd/golangci-lint
	mv "$build/golangci-lint" "$lint" # in one step, because another run may build it too
fi

failed=0
for mod in $(git ls-files '*go.mod'); do
	dir=$(dirname "$mod")
	[ -n "$(find "$dir" -name '*.go' -print -quit)" ] || continue # only pins a tool
	if [ "$dir" = test/kueue ] && [ -z "${LINT_KUEUE:-}" ]; then
		echo "not checked: $dir, whose dependencies take minutes to compile; LINT_KUEUE=1 checks it" >&2
		continue
	fi
	if $GO list -C "$dir" -m 2>&1 >/dev/null | grep -q 'requires go >='; then
		echo "not checked: $dir, which needs a newer Go" >&2
		continue
	fi
	(cd "$dir" && "$lint" run "$@" ./...) || failed=1
done
exit $failed
