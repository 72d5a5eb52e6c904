#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Names the way with kind where a Docker engine answers, and says nothing elsewhere. For machines on which `make demo`
# cannot start its own cluster.
command -v docker >/dev/null && docker info >/dev/null 2>&1 || exit 0
echo "Docker works here. With kubectl, this needs neither root nor a compiled Kubernetes:
  make kind-up && make demo KUBECONFIG=_output/kind/kubeconfig" >&2
