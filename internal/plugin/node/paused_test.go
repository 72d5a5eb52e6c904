// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"
	"time"
)

// TestPaused: the label of NVIDIA's driver manager is followed also while NVML is closed, so that no discovery works.
func TestPaused(t *testing.T) {
	l := newTestNode(t)
	l.failure = errors.New("NVML is closed")
	for _, row := range []struct{ name, label, want string }{
		{"no label", "", ""},
		{"the driver is replaced", "paused-for-driver-upgrade",
			"the label nvidia.com/gpu.deploy.device-plugin of this node says paused-for-driver-upgrade"},
		{"the driver has been replaced", "true", ""},
	} {
		l.labels = map[string]string{"nvidia.com/gpu.deploy.device-plugin": row.label}
		l.config.expires = time.Now()
		if err := l.look(); err == nil {
			t.Errorf("%s: got no error of a discovery that fails", row.name)
		}
		why := ""
		if len(l.Node.release) > 0 {
			why = <-l.Node.release
		} else if row.label != "" {
			t.Errorf("%s: nothing is done", row.name)
		}
		if why != row.want {
			t.Errorf("%s: got %q, want %q", row.name, why, row.want)
		}
	}
}
