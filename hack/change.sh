#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints how many lines of Go, tests and pages a change adds and removes: since the commit $BASE or, without it, since
# twelve hours before the last commit. internal/archtest/budget.txt has the sums.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${BASE:-$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 12 * 3600))" HEAD)}
[ -n "$base" ] || exit 0 # there is nothing before
echo "lines since $(git log -1 --format='%h %s' "$base"):"
git diff --numstat --no-renames "$base" HEAD -- '*.go' '*.md' ':!*/testdata/*' | awk -F '\t' '
{
	split($3, path, "/")
	kind = $3 ~ /\.md$/ ? "pages" : $3 ~ /_test\.go$/ ? "tests" : \
		path[1] ~ /^(addons|cmd|convert|internal|kubectl-gpu|pkg)$/ ? "product" : "other Go"
	added[kind] += $1
	removed[kind] += $2
}
END {
	split("product,other Go,tests,pages", kinds, ",")
	for (i = 1; i <= 4; i++) {
		k = kinds[i]
		printf "  %-8s %+7d %+7d = %+d\n", k, added[k], -removed[k], added[k] - removed[k]
	}
}'
