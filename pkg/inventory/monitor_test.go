// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Two monitor devices must never look alike to matchAttribute and distinctAttribute.
func TestMonitorIdentityIsUnique(t *testing.T) {
	long := strings.Repeat("rack-7.", 10)
	for _, row := range []struct{ name, node, want string }{
		{"the node's name", "node-1", "monitor-node-1"},
		{"a name of the maximum length", strings.Repeat("n", 56), "monitor-" + strings.Repeat("n", 56)},
		{"a name too long for an attribute", long + "node-1", "monitor-9e8b78c860f7c29321eba0f248c790d7"},
		{"another name with the same beginning", long + "node-2", "monitor-790af388cbab50ab411f4e2ddb671ebf"},
	} {
		t.Run(row.name, func(t *testing.T) {
			device := monitorOf(t, row.node)
			for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID", "nvlinkDomain", "fabricDomain"} {
				if got := *device.Attributes[name].StringValue; got != row.want {
					t.Errorf("%s: got %q, want %q", name, got, row.want)
				}
			}
		})
	}
}

// The container is told of its devices what the slices say of them.
func TestPublishedAttributes(t *testing.T) {
	devices := discover(t, "t4-x2")
	for _, published := range poolOf(devices).Slices[0].Devices {
		got := inventory.New(devices).Attributes(nodeName, published.Name)
		if len(got) != len(published.Attributes) ||
			*got["uuid"].StringValue != *published.Attributes["uuid"].StringValue {
			t.Errorf("%s: got %v, want %v", published.Name, got, published.Attributes)
		}
	}
	if got := inventory.New(devices).Attributes(nodeName, "gpu-00-00-0"); got != nil {
		t.Errorf("an unknown device: got %v", got)
	}
}

func monitorOf(t *testing.T, node string) resourceapi.Device {
	t.Helper()
	devices := inventory.New([]gpu.Device{{Name: "gpu-01-00-0"}}).Pool(node).Slices[0].Devices
	last := devices[len(devices)-1]
	if last.Name != inventory.Monitor {
		t.Fatalf("got %s as the last device, want the monitor", last.Name)
	}
	return last
}
