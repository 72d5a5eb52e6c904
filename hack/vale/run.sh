#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks the words, the spelling and the length of sentences on the pages for users, by the rules in styles.
set -eu
cd "$(dirname "$0")/../.."
vale=$(hack/tool.sh vale)
exec "$vale" --config hack/vale/vale.ini README.md CONTRIBUTING.md SECURITY.md docs/README.md docs/start docs/use \
	docs/operate docs/migrate docs/options docs/reference docs/project/architecture.md docs/project/decisions.md \
	demo examples deployments
