// SPDX-License-Identifier: Apache-2.0

package node

// CreateForTest makes a state file with that content.
var CreateForTest = create

// ContentForTest is what the newest slot of a state file holds.
func ContentForTest(path string) ([]byte, error) {
	s, _, err := load(path, identity{})
	return s.content, err
}
