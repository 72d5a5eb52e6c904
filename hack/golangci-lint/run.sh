#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs golangci-lint on every Go module of the repository.
# usage: run.sh [flag of golangci-lint run]...
set -eu
cd "$(dirname "$0")/../.."
: "${GO:=go}"
lint=$(GO="$GO" hack/tool.sh golangci-lint)

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
