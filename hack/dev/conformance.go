// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// conformanceCluster has one node, whose files the program reads and whose programs it restarts.
var conformanceCluster = cluster{name: "conformance", profiles: map[string]string{"node-1": "dgx-h100"}}

// conform runs dra-conformance with this driver on a fresh cluster.
func conform(ctx context.Context) error {
	build := program("dra-conformance", "./test/conformance/dra-conformance")
	return conformanceCluster.fresh(ctx, build, func(ctx context.Context, t target) error {
		if err := t.install(ctx); err != nil {
			return err
		}
		root, err := conformanceCluster.root(ctx, "node-1")
		if err != nil {
			return err
		}
		dir, err := tools(ctx)
		if err != nil {
			return err
		}
		version, err := os.ReadFile("VERSION")
		if err != nil {
			return err
		}
		kubectl := filepath.Join(dir, "kubectl") + " -n gpu-dra-driver "
		const plugin = "ds/gpu-dra-driver-kubelet-plugin"
		simulator := kubectl + "exec " + plugin + " -- /usr/bin/dra-kubelet-plugin-sim "
		args := []string{filepath.Join(bin, build.label), "-driver", "gpu.nvidia.com",
			"-image", "localhost/gpu-dra-demo:" + strings.TrimSpace(string(version)), "-args", "sleep",
			"-probe", "gpu-demo show", "-cat", "gpu-demo cat",
			"-socket", root + "/var/lib/kubelet/plugins/gpu.nvidia.com/dra*.sock", "-cdi-dir", root + "/run/cdi",
			"-restart-plugin", kubectl + "delete pod -l app.kubernetes.io/component=kubelet-plugin",
			"-restart-kubelet", clusterProgram + " restart --name " + conformanceCluster.name + " node-1/kubelet",
			"-upgrade-plugin", kubectl + "rollout restart " + plugin + " && " + kubectl + "rollout status " + plugin,
			"-sick", simulator + "simctl xid gpu-1b-00-0 79",
			"-well", simulator + "health --clear gpu-1b-00-0",
			"-accepts", gpuConfig(`{"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}`),
			"-refuses", gpuConfig(`{"strategy": "Nonsense"}`),
			"-service-account", "gpu-dra-driver:gpu-dra-driver-kubelet-plugin",
			"-claims", "admin-access,device-status,health,taints,extended-resource,metadata,share-id"}
		return command{args: args, env: t.env()}.attach(ctx)
	})
}

// gpuConfig returns parameters with the sharing.
func gpuConfig(sharing string) string {
	return `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": ` + sharing + `}`
}

// root returns the root directory of a node as this machine sees it. Links to absolute paths lead out of it.
func (c cluster) root(ctx context.Context, node string) (string, error) {
	status, err := command{args: []string{clusterProgram, "status", "--name", c.name}}.output(ctx)
	if err != nil {
		return "", err
	}
	pid, err := processOf(status, node)
	return "/proc/" + pid + "/root", err
}

// processOf returns the PID of a machine's first process in the output of the command status.
func processOf(status, machine string) (string, error) {
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(machine) + `\s.*\(process (\d+)\)`).FindStringSubmatch(status)
	if found == nil {
		return "", fmt.Errorf("the status of the cluster has no process of %s: %q", machine, status)
	}
	return found[1], nil
}
