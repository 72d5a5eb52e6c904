// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// FuzzExplain explains claims and pods that the API server has not validated, as fits does. Nothing panics, there is an
// answer, and no text of theirs moves the cursor of a terminal or begins a line of its own.
func FuzzExplain(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(randomClaim(rand.New(rand.NewPCG(seed, 0))), "{}")
	}
	for _, devices := range []string{"", "requests: [{}]", "requests: [{firstAvailable: [{}]}]",
		"requests: [{name: a, firstAvailable: [{name: b, deviceClassName: gpu.nvidia.com}]}, " +
			"{name: a, exactly: {deviceClassName: gpu.nvidia.com}}]", "requests: [{name: a, exactly: {}}]",
		"requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: -1}}]",
		"requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: x, " +
			"count: 9223372036854775807}}]",
		"requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{}, {cel: {expression: ''}}]}}]",
		"requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: -1, " +
			"'': 1e30}}}}]",
		"constraints: [{}, {matchAttribute: x}]", ask("device.capacity['gpu.nvidia.com'].memory.compareTo() >= 0", ""),
		ask("device.attributes['gpu.nvidia.com'].peakCompute >= 9223372036854775807", ""),
		ask("device.attributes['a']['b'] > quantity('x')", ""), ask("[[1]].all(x, x.all(y, y > 0))", ""),
		// Nothing may look like the second line of the answer, or clear the screen.
		ask(`device.attributes['gpu.nvidia.com'].productName == '\n\x1b[2J'`, ""),
		"requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: " +
			"\"1 +\\nsmallest change: \\x1b[2J\\x07\"}}]}}]",
		"requests: [{name: \"a\\nsmallest change: \\x1b[2J\", exactly: {deviceClassName: \"b\\n\\x1b[2J\"}}]",
	} {
		f.Add(devices, "{}")
	}
	for _, spec := range []string{"{nodeSelector: {a: b}}", "{containers: [{resources: {limits: " +
		"{nvidia.com/gpu: 9e18}}}, " +
		"{resources: {requests: {nvidia.com/gpu: 9e18, cpu: -1}}}]}", "{affinity: {nodeAffinity: {" +
		"requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: " +
		"[{operator: Gt}]}]}}}}",
		"{tolerations: [{}], overhead: {cpu: 1}, resources: {requests: {cpu: 1}}, resourceClaims: [{}]}"} {
		f.Add(gpus(""), spec)
	}
	s := fleet(f, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "t4-x2", Use: exclusive})
	before := advice.SearchAsked
	advice.SearchAsked = 30
	f.Cleanup(func() { advice.SearchAsked = before })
	f.Fuzz(func(t *testing.T, devices, spec string) {
		c := &resourceapi.ResourceClaim{}
		c.Namespace, c.Name = "ns", "c"
		p := pod("p", c)
		if yaml.Unmarshal([]byte(devices), &c.Spec.Devices) != nil || yaml.Unmarshal([]byte(spec), &p.Spec) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		for _, r := range Fit(ctx, s, Manifest{Pods: []*corev1.Pod{p}, Claims: []*resourceapi.ResourceClaim{c}}) {
			if r.Outcome == "" || r.Cause == "" || text(t, r) == "" {
				t.Errorf("got %+v, want an answer", r)
			}
			said := text(t, r)
			if i := strings.IndexFunc(said, func(c rune) bool { return unicode.IsControl(c) && c != '\n' }); i >= 0 {
				t.Errorf("%q has the control character %q", said, said[i])
			}
			for i, line := range strings.SplitN(said, "\n", 3) {
				if i < 2 && strings.HasPrefix(line, "smallest change: ") && line != r.Advice() {
					t.Errorf("%q is not advice, which is %q", line, r.Advice())
				}
			}
		}
	})
}
