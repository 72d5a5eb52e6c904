#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Ends what up.sh has started, whole or not.
set -eu
cd "$(dirname "$0")/../.."
${KIND:-kind} delete cluster --name gpu-dra --kubeconfig _output/kind/kubeconfig
rm -rf _output/kind
