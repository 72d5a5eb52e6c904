#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints what the failed tests wrote, of the output of go test in a file. Of each test it prints the first lines.
set -euo pipefail

awk -v most=25 '
# The first reading finds the failed tests, the second prints their lines.
FNR == 1 { reading++; name = "" }
match($0, /^ *--- FAIL: /) {
	name = $3
	if (reading == 1) failed[name]
}
reading == 1 { next }
/^=== (RUN|NAME|CONT) / { name = $3; next }
/^ *--- FAIL: / { print; next }
/^ *--- (PASS|SKIP): / || /^(ok|FAIL|PASS|\?|make)/ { name = ""; next }
name in failed && lines[name]++ < most
' "$1" "$1"
