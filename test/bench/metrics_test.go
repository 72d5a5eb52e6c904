// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
)

func TestSum(t *testing.T) {
	const text = `# HELP gpu_dra_gpu_xids_total XIDs
gpu_dra_gpu_xids_total{uuid="GPU-a",xid="142"} 6e+04
gpu_dra_gpu_xids_total{uuid="GPU-a",xid="79"} 7
gpu_dra_operation_duration_seconds_sum{operation="prepare"} 0.125
gpu_dra_operation_duration_seconds_sum{operation="unprepare"} 3
`
	for _, row := range []struct {
		prefix string
		want   float64
	}{
		{"gpu_dra_gpu_xids_total{", 60007},
		{`gpu_dra_operation_duration_seconds_sum{operation="prepare"}`, 0.125},
		{"gpu_dra_nothing", 0},
	} {
		if got, err := sum(text, row.prefix); got != row.want || err != nil {
			t.Errorf("%s: got %v, %v, want %v", row.prefix, got, err, row.want)
		}
	}
	if _, err := sum("a much\n", "a"); err == nil {
		t.Error("got no error of a value that is no number")
	}
}
