#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# Builds the programs with the modules of the next Kubernetes, and runs the unit tests of the driver that can be built
# with them. It changes a copy of go.mod in _output/next. Go downloads what it needs, also a newer Go.
# usage: test-next.sh [ARGUMENTS OF go test]     which it runs instead
set -eu
cd "$(dirname "$0")/.."

next=v0.38.0-beta.0 # of the modules
export GOTOOLCHAIN=go1.27.4
now=$(go list -m -f '{{.Version}}' k8s.io/api)
dir=_output/next
rm -rf "$dir"
mkdir -p "$dir"
sed -E "s#^(	k8s.io/[a-z-]+) $now#\1 $next#; /google\/cel-go/d; s/^go .*/go 1.27.0/" go.mod >"$dir/go.mod"
cp go.sum "$dir/go.sum"
# Of the newer versions, one could not be downloaded, and one needs a module that could not. The older ones do.
go mod edit -replace sigs.k8s.io/structured-merge-diff/v7=sigs.k8s.io/structured-merge-diff/v7@v7.0.0 \
	-replace "k8s.io/apiextensions-apiserver=k8s.io/apiextensions-apiserver@$now" "$dir/go.mod"

folders="cmd internal pkg simulator kubectl-gpu convert test/fleet test/scale"

# CEL has another module path there.
separator=
printf '{"Replace":{' >"$dir/overlay.json"
for file in $(grep -rl --include='*.go' '"github.com/google/cel-go/' $folders); do
	copy=$dir/$(echo "$file" | tr / -)
	sed 's#"github.com/google/cel-go/#"cel.dev/cel-go/#' "$file" >"$copy"
	printf '%s"%s":"%s"' "$separator" "$PWD/$file" "$PWD/$copy"
	separator=,
done >>"$dir/overlay.json"
echo '}}' >>"$dir/overlay.json"

flags="-mod=mod -modfile=$dir/go.mod -overlay=$dir/overlay.json -tags=kubernetes1.38"
if [ $# -gt 0 ]; then
	exec go test $flags "$@"
fi
go build $flags ./cmd/... ./kubectl-gpu

# controller-runtime's client/fake does not build with these modules. internal/archtest judges files.
go list $flags -test -f '{{if .ForTest}}{{.ForTest}} {{join .Deps ","}}{{end}}' $(printf './%s/... ' $folders) >"$dir/deps"
awk '{ fake[$1] = fake[$1] || $2 ~ /controller-runtime\/pkg\/client\/fake/ }
	END { for (p in fake) print fake[p] ? "without" : "with", p }' "$dir/deps" | sort >"$dir/packages"
sed -n 's/^without /SKIPPED, as client\/fake does not build: /p' "$dir/packages"
go test $flags -vet=off $(sed -n 's/^with //p' "$dir/packages" | grep -v internal/archtest)
