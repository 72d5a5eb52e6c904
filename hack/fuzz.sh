#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzzes each target of this module, one after the other. Go keeps an input that fails in testdata/fuzz of its package,
# where `go test` replays it from then on.
# usage: fuzz.sh DURATION [PATTERN]     DURATION is for each target; PATTERN selects some of "PACKAGE TARGET"
set -euo pipefail
cd "$(dirname "$0")/.."

targets=$(git grep --untracked -o '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's|/[^/]*:func | |' | sort |
	grep -e "${2:-}") || { echo "no fuzz target matches ${2:-}" >&2 && exit 1; }
failed=()
while read -r package target; do
	echo "== $package $target"
	# By default Go may minimize one input for a minute, in place of trying others.
	${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "$1" -fuzzminimizetime 1s "./$package" ||
		failed+=("$package $target")
done <<<"$targets"
if [ ${#failed[@]} -gt 0 ]; then
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
