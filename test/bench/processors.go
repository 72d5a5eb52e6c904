// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
)

// partsOfCluster are the keys under which the processor time of programs is told while pods start.
var partsOfCluster = map[string]string{
	"kube-apiserver": "api", "etcd": "etcd", "kube-scheduler": "scheduler", "kube-controller-manager": "manager",
	"kubelet": "kubelet", "containerd": "containerd", program: "driver", "dra-controller": "driver", "floor": "floor",
}

// otherPrograms is the key of what no program among partsOfCluster has used.
const otherPrograms = "others"

// readProcessorTimes returns how much processor time the machine has used so far, by the keys of programs.
func readProcessorTimes() (map[string]time.Duration, error) {
	total, err := busy()
	if err != nil {
		return nil, err
	}
	used := map[string]time.Duration{otherPrograms: total}
	for _, pid := range pids() {
		name, _, _ := strings.Cut(executable(pid), " ") // a program that was replaced is "name (deleted)"
		key, found := partsOfCluster[name]
		if !found {
			continue
		}
		if t, err := (process{pid: pid}).cpu(); err == nil { // otherwise it has ended
			used[key] += t
			used[otherPrograms] -= t
		}
	}
	return used, nil
}
