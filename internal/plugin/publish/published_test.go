// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

var update = flag.Bool("update", false, "write the slices for test/allocators")

// TestPublishedForOldVersions compares what the driver publishes on versions of Kubernetes with the files that
// test/allocators gives to the allocators of these versions. The node has two GPUs whose partitions are made for
// claims, of two profiles each, so that the files are small.
func TestPublishedForOldVersions(t *testing.T) {
	devices := simtest.Discover(t, "dgx-h100")[:2]
	noPartition := func(gpu.Placement) bool { return false }
	for _, version := range []string{"v1.35.0", "v1.36.1", "v1.37.0"} {
		gates := learned(t, &oldServer{gates: []string{version}})
		inv := inventory.New(devices)
		for i := range inv {
			inv[i].Use = gates.Lacking().Limit(inv[i], nodeconfig.Config{}.For(inv[i]))
			if inv[i].Use.Partitions == gpu.PartitionsAuto { // of such a GPU
				inv[i].Use.Partitions = gpu.PartitionsDynamic
			}
			inv[i].MIG.Profiles = inv[i].MIG.Profiles[:2]
		}
		pools := inv.WithPartitions(noPartition).Pools("node")
		for name, pool := range pools {
			pools[name] = gates.fit(pool, gates.Lacking())
		}
		published, err := json.MarshalIndent(inventory.Slices(driver, "node", pools), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range devices { // each simulated machine has its own
			published = bytes.ReplaceAll(published, []byte(d.UUID), []byte("UUID-of-"+d.Name))
		}
		file := filepath.Join("../../../test/allocators/testdata", version+".json")
		if *update {
			if err := os.WriteFile(file, published, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if golden, err := os.ReadFile(file); err != nil || !bytes.Equal(golden, published) {
			t.Errorf("%s: got other slices than %s has (%v); -update writes it", version, file, err)
		}
	}
}
