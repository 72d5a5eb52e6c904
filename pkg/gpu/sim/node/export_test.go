// SPDX-License-Identifier: Apache-2.0

package node

// CreateForTest makes a state file with that content.
var CreateForTest = create
