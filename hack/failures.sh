#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints what the failed tests wrote, of the output of make test in a file: the first lines of each test, and then fewer
# of them, because of a long text often only the end is kept. Chaos is no test of Go: what it found is a line each.
set -euo pipefail

awk '
# The first reading finds the failed tests, the others print their lines.
FNR == 1 { reading++; most = reading == 2 ? 25 : 4; name = ""; delete lines }
FNR == 1 && reading == 3 { print "The same, shorter:" }
match($0, /^ *--- FAIL: /) {
	name = $3
	if (reading == 1) failed[name]
}
reading == 1 { next }
/^\[ *[0-9.]+s\] VIOLATION/ || /^chaos: / { print; next }
/^=== (RUN|NAME|CONT) / { name = $3; next }
/^ *--- FAIL: / { print; next }
/^ *--- (PASS|SKIP): / || /^(ok|FAIL|PASS|\?|make)/ { name = ""; next }
name in failed && lines[name]++ < most
' "$1" "$1" "$1"
