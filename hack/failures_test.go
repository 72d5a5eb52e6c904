// SPDX-License-Identifier: Apache-2.0

package hack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestFailures(t *testing.T) {
	const output = `building the programs
=== RUN   TestVerbose
=== RUN   TestVerbose/one
    x_test.go:3: got 1,
        want 2
        more 3
        more 4
        more 5
=== RUN   TestVerbose/two
    x_test.go:9: not a failure
=== NAME  TestVerbose
    x_test.go:11: the logs are kept
--- FAIL: TestVerbose (0.10s)
    --- FAIL: TestVerbose/one (0.10s)
    --- PASS: TestVerbose/two (0.10s)
FAIL
FAIL	example.com/x	0.1s
ok  	example.com/y	0.1s
--- FAIL: TestQuiet (0.00s)
    --- FAIL: TestQuiet/three (0.00s)
        z_test.go:4: got 3
FAIL
FAIL	example.com/z	0.1s
[  12.0s] stop etcd on node-1
[  13.0s] VIOLATION capacity: allocated to 2 claims
chaos: seed 1: 1 violations:
capacity: allocated to 2 claims
the ends of the logs
make: *** [Makefile:1: test] Error 1
`
	const want = `    x_test.go:3: got 1,
        want 2
        more 3
        more 4
        more 5
    x_test.go:11: the logs are kept
--- FAIL: TestVerbose (0.10s)
    --- FAIL: TestVerbose/one (0.10s)
--- FAIL: TestQuiet (0.00s)
    --- FAIL: TestQuiet/three (0.00s)
        z_test.go:4: got 3
[  13.0s] VIOLATION capacity: allocated to 2 claims
chaos: seed 1: 1 violations:
The same, shorter:
    x_test.go:3: got 1,
        want 2
        more 3
        more 4
    x_test.go:11: the logs are kept
--- FAIL: TestVerbose (0.10s)
    --- FAIL: TestVerbose/one (0.10s)
--- FAIL: TestQuiet (0.00s)
    --- FAIL: TestQuiet/three (0.00s)
        z_test.go:4: got 3
[  13.0s] VIOLATION capacity: allocated to 2 claims
chaos: seed 1: 1 violations:
`
	file := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(file, []byte(output), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := exec.CommandContext(t.Context(), "./failures.sh", file).CombinedOutput()
	if err != nil || string(got) != want {
		t.Errorf("got %v and\n%s\nwant\n%s", err, got, want)
	}
}
