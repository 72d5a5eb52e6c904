// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
)

// partsOfCluster are the keys under which the processor time of programs is told.
var partsOfCluster = map[string]string{
	"kube-apiserver": "api", "etcd": "etcd", "kube-scheduler": "scheduler", "kube-controller-manager": "manager",
	"kubelet": "kubelet", "containerd": "containerd", program: "driver", "dra-controller": "driver", "floor": "floor",
}

// otherPrograms is the key of what no program among partsOfCluster has used.
const otherPrograms = "others"

// claimPrograms are the keys of the programs that work while claims are prepared and unprepared.
var claimPrograms = []string{"api", "etcd", "containerd", "driver", otherPrograms}

// processorTimes are samples of processor time, by the keys of programs.
type processorTimes map[string]samples

// during adds the processor time that the machine uses while do runs.
func (t processorTimes) during(do func() error) error {
	before, err := readProcessorTimes()
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := readProcessorTimes()
	for key := range after {
		t[key] = append(t[key], after[key]-before[key])
	}
	return err
}

// p50s returns the medians of the keys, 0 for a program that did not run.
func (t processorTimes) p50s(keys ...string) []float64 {
	var all []float64
	for _, key := range keys {
		all = append(all, t[key].p50())
	}
	return all
}

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
