#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Deletes the cluster of up.sh, also after a failed start.
set -eu
cd "$(dirname "$0")/../.."
${KIND:-kind} delete cluster --name gpu-dra --kubeconfig _output/kind/kubeconfig
rm -rf _output/kind
