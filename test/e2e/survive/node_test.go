//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// node is a node of the cluster.
type node struct {
	*suite
	name string
}

func (s *suite) node(name string) node { return node{s, name} }

// sh runs a script on the node.
func (n node) sh(t *testing.T, script string) string {
	t.Helper()
	return n.control(t, "exec", n.name, "--", "sh", "-c", script)
}

// disk returns the path on this machine of a file of the node's disk.
func (n node) disk(path string) string {
	return filepath.Join(filepath.Dir(n.kubeconfig), n.name, "disk", path)
}

// records returns the driver's records, sorted by file name.
func (n node) records(t *testing.T) []checkpoint.PreparedClaim {
	t.Helper()
	files, err := filepath.Glob(n.disk(pluginDir + "/claims/*.json"))
	must(t, err)
	var records []checkpoint.PreparedClaim
	for _, file := range files {
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // released since
		}
		must(t, err)
		var rec checkpoint.PreparedClaim
		must(t, json.Unmarshal(data, &rec))
		records = append(records, rec)
	}
	slices.SortFunc(records, func(a, b checkpoint.PreparedClaim) int {
		return strings.Compare(a.Claim.String(), b.Claim.String())
	})
	return records
}

// record returns the record of the pod's claim.
func (n node) record(t *testing.T, pod client.ObjectKey) checkpoint.PreparedClaim {
	t.Helper()
	claim := n.claim(t, pod)
	for _, rec := range n.records(t) {
		if rec.Claim.UID == claim.UID {
			return rec
		}
	}
	t.Fatalf("there is no record of the claim of pod %s", pod)
	return checkpoint.PreparedClaim{}
}

// left lists every file of claims on the node.
func (n node) left(t *testing.T) string {
	t.Helper()
	return n.sh(t, `cd `+pluginDir+` 2>/dev/null && find claims devices dra-device-metadata -mindepth 1 ! -type d ! -name .lock 2>/dev/null
		find /run/cdi -name '*_*-*-*' 2>/dev/null; true`)
}

// clean waits until no file of any claim is left.
func (n node) clean(t *testing.T) {
	t.Helper()
	eventually(t, soon, "nothing to be left of claims on "+n.name, func() string { return n.left(t) })
}

// specs returns the CDI specs of claims, including device metadata.
func (n node) specs(t *testing.T) string {
	t.Helper()
	return n.sh(t, "cd /run/cdi && ls | grep _ || true")
}

// plugin returns the plugin pod on the node when it is ready.
func (n node) plugin(t *testing.T) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	must(t, kube.Until(t.Context(), soon, "a ready plugin on "+n.name, func(ctx context.Context) (bool, string, error) {
		pods, err := n.Pods(ctx, release, kube.PluginLabels)
		state := fmt.Sprintf("%d pods of the plugin", len(pods))
		for i := range pods {
			if p := &pods[i]; p.Spec.NodeName == n.name && p.DeletionTimestamp == nil && ready(p) {
				found = p
			}
		}
		return found != nil, state, err
	}))
	return found
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// simctl changes the simulated GPUs of the node.
func (n node) simctl(t *testing.T, args ...string) string {
	t.Helper()
	output, err := n.Simctl(t.Context(), client.ObjectKeyFromObject(n.plugin(t)), args...)
	must(t, err)
	return output
}

// published returns the published devices of the node.
func (n node) published(t *testing.T) []resourceapi.Device {
	t.Helper()
	list, err := n.Slices(t.Context(), driver)
	must(t, err)
	var devices []resourceapi.Device
	for _, slice := range list {
		if ptr.Deref(slice.Spec.NodeName, "") == n.name {
			devices = append(devices, slice.Spec.Devices...)
		}
	}
	return devices
}

// inPool returns the names of the devices of the pool, with the effects of their taints.
func (n node) inPool(t *testing.T, pool string) []string {
	t.Helper()
	list, err := n.Slices(t.Context(), driver)
	must(t, err)
	var names []string
	for _, slice := range list {
		if slice.Spec.Pool.Name != pool {
			continue
		}
		for _, d := range slice.Spec.Devices {
			name := d.Name
			for _, taint := range d.Taints {
				name += " " + string(taint.Effect)
			}
			names = append(names, name)
		}
	}
	return names
}

// waitMonitor waits until the pool of the node and that of the monitor device have the monitor device like this; empty:
// not at all.
func (n node) waitMonitor(t *testing.T, inNode, inOwn string) {
	t.Helper()
	eventually(t, soon, "the monitor device to be in its pools", func() string {
		var got [2]string
		for i, pool := range []string{n.name, n.name + "/monitor"} {
			for _, name := range n.inPool(t, pool) {
				if strings.HasPrefix(name, "monitor") {
					got[i] = name
				}
			}
		}
		return is(fmt.Sprintf("%q", got), fmt.Sprintf("%q", [2]string{inNode, inOwn}))
	})
}

// poolOf returns the pool from which the pod's device was allocated.
func (s *suite) poolOf(t *testing.T, pod client.ObjectKey) string {
	t.Helper()
	return s.claim(t, pod).Status.Allocation.Devices.Results[0].Pool
}

// gpus returns the names of the published GPUs with their taints, one per line.
func (n node) gpus(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, d := range n.published(t) {
		if text(d, "type") != "gpu" {
			continue
		}
		line := d.Name
		for _, taint := range d.Taints {
			if taint.Effect == resourceapi.DeviceTaintEffectNone {
				continue // a GPU that hangs can hang the call for events, too: then none is watched
			}
			line += " " + taint.Key + ":" + string(taint.Effect)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// text returns a string attribute of a device.
func text(d resourceapi.Device, attribute string) string {
	if value := d.Attributes[resourceapi.QualifiedName(attribute)].StringValue; value != nil {
		return *value
	}
	return ""
}

// uuid returns the UUID of a published device.
func (n node) uuid(t *testing.T, device string) string {
	t.Helper()
	for _, d := range n.published(t) {
		if d.Name == device {
			return text(d, "uuid")
		}
	}
	t.Fatalf("%s is not published on %s", device, n.name)
	return ""
}

// logged returns the log of the pod's current container.
func (s *suite) logged(t *testing.T, pod client.ObjectKey) string {
	t.Helper()
	output, err := s.Log(t.Context(), pod)
	must(t, err)
	return output
}
