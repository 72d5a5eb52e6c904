// SPDX-License-Identifier: Apache-2.0

package gpu

import "errors"

// ErrUnmeasured means that the GPU cannot tell what processes use of it. That is how it is made, and no failure.
var ErrUnmeasured = errors.New("the GPU does not say what processes use of it")

// Unmeasured is the figure of a process that the GPU does not tell.
const Unmeasured = -1

// Process is a process that uses a GPU.
type Process struct {
	PID         int   // in the PID namespace of the one who asks
	Memory      int64 // bytes of the GPU that it holds, or Unmeasured
	Utilization int   // percent of the time of the last seconds in which its kernels ran, or Unmeasured
}
