// SPDX-License-Identifier: Apache-2.0

package nvml

import "k8s.io/klog/v2"

// toolkitLog keeps what NVIDIA's toolkit says to itself for those who debug: it warns of every optional file that is not there.
// What matters is an error of its calls, or found by requireNodes.
type toolkitLog struct{}

const toolkitVerbosity = 5

func (toolkitLog) log(level, format string, args []any) {
	klog.V(toolkitVerbosity).Infof("nvidia-container-toolkit: "+level+": "+format, args...)
}

func (l toolkitLog) Debugf(format string, args ...any)   { l.log("debug", format, args) }
func (l toolkitLog) Infof(format string, args ...any)    { l.log("info", format, args) }
func (l toolkitLog) Warningf(format string, args ...any) { l.log("warning", format, args) }
func (l toolkitLog) Errorf(format string, args ...any)   { l.log("error", format, args) }
func (l toolkitLog) Tracef(format string, args ...any)   { l.log("trace", format, args) }
