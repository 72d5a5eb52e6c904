// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A node without idle CPU has stranded GPUs, as long as pods with GPUs were seen within a day.
func TestStranded(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b", Profile: "t4-x2"})
	w.setCPU("b", 7)
	if got := testutil.CollectAndCount(stranded{w.Extender}); got != 0 {
		t.Errorf("got %d metrics before a pod was seen, want none", got)
	}
	w.Prioritize(t.Context(), w.exists(w.pod("whole", 8, oneGPU)), w.nodes)
	const want = `
# HELP gpu_dra_placement_stranded_gpus Of gpu_dra_placement_idle_gpus, what fits no pod like those of the last 24 hours: too little is left of the GPU, or the node has too few such GPUs or too little idle CPU. Each replica knows only the pods that it was asked for: take the minimum.
# TYPE gpu_dra_placement_stranded_gpus gauge
gpu_dra_placement_stranded_gpus{model="Tesla T4"} 2
# HELP gpu_dra_placement_idle_gpus GPUs that no claim holds and idle parts of the others, in whole GPUs. Each replica of the controller that a scheduler has asked exports it: take the maximum.
# TYPE gpu_dra_placement_idle_gpus gauge
gpu_dra_placement_idle_gpus{model="Tesla T4"} 4
`
	if err := testutil.CollectAndCompare(stranded{w.Extender}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	w.now = w.now.Add(shapesLifetime + time.Second)
	if got := testutil.CollectAndCount(stranded{w.Extender}); got != 0 {
		t.Errorf("got %d metrics a day later, want none", got)
	}
}
