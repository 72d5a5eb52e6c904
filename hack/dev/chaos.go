// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
)

// chaosCluster has GPUs for partitions, for virtual machines, for vGPUs, and of several models. Its scheduler logs what
// it allocates, and what it believes to be allocated.
var chaosCluster = cluster{name: "chaos", profiles: map[string]string{
	"node-1": "dgx-h100", "node-2": "l40s-x4", "node-3": "a16-x4",
}, flags: []string{"--scheduler-vmodule", "dynamicresources=5,extendeddynamicresources=5,dra_manager=5," +
	"allocateddevices=6,assume_cache=5,tracker=5,reflector=3"}}

// chaos breaks a fresh cluster in every way that test/chaos knows. CHAOS_FOR is for how long, CHAOS_SEED decides
// what happens, and CHAOS_FLAGS are more flags of the program.
func chaos(ctx context.Context) error {
	if err := keepEarlier(chaosCluster); err != nil {
		return err
	}
	return chaosCluster.fresh(ctx, program("chaos", "./test/chaos"), func(ctx context.Context, t target) error {
		// Idle pods stay, unlike those of the demos.
		if err := t.install(ctx, "--set", "idle.after=30m", "--set", "idle.eviction.enabled=false"); err != nil {
			return err
		}
		args := []string{bin + "/chaos", "-cluster", clusterProgram, "-name", chaosCluster.name, "-helm", t.helm,
			"-for", cmp.Or(os.Getenv("CHAOS_FOR"), "3m"), "-seed", cmp.Or(os.Getenv("CHAOS_SEED"), "1")}
		args = append(args, strings.Fields(os.Getenv("CHAOS_FLAGS"))...)
		return command{args: args, env: t.env()}.attach(ctx)
	})
}

// keepEarlier renames the directory with what is left of an earlier run that failed, which a new one would remove: a
// violation may not come again. The new name ends with its time.
func keepEarlier(c cluster) error {
	logs, err := c.logs()
	if err != nil {
		return err
	}
	info, err := os.Stat(logs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Rename(logs, logs+info.ModTime().UTC().Format("-20060102T150405"))
}
