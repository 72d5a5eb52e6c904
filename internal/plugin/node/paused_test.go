// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"
	"time"
)

// pauses is a Health that remembers why the driver is about to be replaced.
type pauses struct {
	Health
	why string
}

func (p *pauses) Paused(_ context.Context, why string) { p.why = why }

// TestPaused: the label of NVIDIA's driver manager is followed also while NVML is closed, so that no discovery works.
func TestPaused(t *testing.T) {
	l := newTestNode(t)
	health := &pauses{Health: l.Health}
	l.Health = health
	l.Discover = func(context.Context) (Look, error) { return Look{}, errors.New("NVML is closed") }
	for _, row := range []struct{ name, label, want string }{
		{"no label", "", ""},
		{"the driver is replaced", "paused-for-driver-upgrade",
			"the label nvidia.com/gpu.deploy.device-plugin of this node says paused-for-driver-upgrade"},
		{"the driver has been replaced", "true", ""},
	} {
		l.labels = map[string]string{"nvidia.com/gpu.deploy.device-plugin": row.label}
		l.config.expires = time.Now()
		if err := l.look(t.Context()); err == nil {
			t.Errorf("%s: got no error of a discovery that fails", row.name)
		}
		if health.why != row.want {
			t.Errorf("%s: got %q, want %q", row.name, health.why, row.want)
		}
	}
}
