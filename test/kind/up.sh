#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Starts the kind cluster of cluster.yaml unless it runs, loads the images of `make image`, and waits for its nodes.
# `make demo` and `make test-e2e` then only need its kubeconfig, as for any cluster.
#   KIND, KUBECTL     the commands
#   KIND_NODE_IMAGE   node image of another Kubernetes version, such as kindest/node:v1.36.1
set -eu
cd "$(dirname "$0")/../.."
: "${KIND:=kind}" "${KUBECTL:=kubectl}"
kubeconfig=_output/kind/kubeconfig

command -v "$KUBECTL" >/dev/null || { echo "kubectl is missing: install it, or name one with KUBECTL=" >&2; exit 1; }
clusters=$($KIND get clusters) # prints the reason if Docker does not answer
if echo "$clusters" | grep -qx gpu-dra; then
	$KIND export kubeconfig --name gpu-dra --kubeconfig $kubeconfig
else
	$KIND create cluster --config test/kind/cluster.yaml --kubeconfig $kubeconfig ${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"}
fi
$KIND load image-archive --name gpu-dra _output/images.tar
$KUBECTL --kubeconfig $kubeconfig wait --for=condition=Ready nodes --all --timeout=15m
cat <<end
The cluster is running. Next:
  make demo KUBECONFIG=$kubeconfig
  make test-e2e KUBECONFIG=$kubeconfig
  make kind-down
end
