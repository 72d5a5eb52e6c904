// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/cuda"
	"github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		size string
		want uint64
	}{{"1024", 1024}, {"1Ki", 1024}, {"512Mi", 512 << 20}, {"5Gi", 5 << 30}, {"1Ti", 1 << 40}} {
		if got, err := parseSize(tt.size); err != nil || got != tt.want {
			t.Errorf("%s: got %d, %v; want %d", tt.size, got, err, tt.want)
		}
	}
	for _, size := range []string{"", "Gi", "5G", "-1", "1.5Gi", "99999999Ti"} {
		if got, err := parseSize(size); err == nil {
			t.Errorf("%s: got %d", size, got)
		}
	}
}

// machine is a simulated machine with a daemon of MPS on its first GPU.
func machine(t *testing.T) (n *simulator.Node, uuid string, stop func()) {
	t.Helper()
	return machineOf(t, "t4-x2", func(n *simulator.Node) string {
		v, err := n.View()
		must(t, err)
		return v.GPUs[0].UUID
	})
}

// partitioned is a simulated machine with a daemon of MPS on the only partition of its first GPU.
func partitioned(t *testing.T) (n *simulator.Node, uuid string) {
	t.Helper()
	n, uuid, _ = machineOf(t, "dgx-h100", func(n *simulator.Node) string {
		must(t, n.SwitchMIG("0", hwprofile.Enabled))
		_, err := n.CreatePartition("0", "1g.10gb@4")
		must(t, err)
		v, err := n.View()
		must(t, err)
		return v.GPUs[0].Partitions()[0].Compute.UUID
	})
	return n, uuid
}

// machineOf is a simulated machine with a daemon of MPS on what prepare returns.
func machineOf(t *testing.T, profile string, prepare func(*simulator.Node) string) (n *simulator.Node, uuid string,
	stop func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	n, err = simulator.Open(t.TempDir(), p)
	must(t, err)
	must(t, n.LayOut(simulator.Programs{}))
	uuid = prepare(n)
	pipe := t.TempDir()
	t.Setenv(mps.PipeVariable, pipe)
	env := map[string]string{mps.PipeVariable: pipe, "CUDA_VISIBLE_DEVICES": uuid}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int)
	go func() {
		done <- mps.Program{
			Path: filepath.Join(n.DriverRoot(), "usr/bin/x"), Args: []string{"-f"},
			Env: func(name string) string { return env[name] }, Err: &bytes.Buffer{},
		}.Run(ctx)
	}()
	ended := false
	stop = func() {
		if !ended {
			ended = true
			cancel()
			<-done
		}
	}
	t.Cleanup(stop)
	for {
		if _, err := os.Stat(filepath.Join(pipe, "nvidia-cuda-mps-control.pid")); err == nil {
			return n, uuid, stop
		}
		time.Sleep(time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAlloc(t *testing.T) {
	for _, tt := range []struct {
		name, args, threads, memory string
		do                          func(n *simulator.Node) error
		want                        string
		exit                        int
	}{
		{"through MPS", "5Gi", "", "", nil, "granted 5120MiB of UUID, limit all, threads 100%\n", 0},
		{"within its limits", "5Gi", "30", "0=6000M", nil, "granted 5120MiB of UUID, limit 6000MiB, threads 30%\n", 0},
		{"above its limit", "5Gi", "30", "0=5000M", nil, "CUDA_ERROR_OUT_OF_MEMORY: more than the limit of the " +
			"client: limit 5000MiB, held 0MiB", 2},
		{"without its limits", "5Gi --unset-limits", "30", "0=5000M", nil,
			"granted 5120MiB of UUID, limit all, threads 100%\n", 0},
		{"above what the card has", "20Gi", "", "", nil, "CUDA_ERROR_OUT_OF_MEMORY: more than the GPU has left", 2},
		{"without MPS", "5Gi --unset-mps", "30", "0=5000M", nil, "granted 5120MiB of UUID, limit all, threads 100%\n",
			0},
		{"without MPS, above what the card has", "15Gi --unset-mps", "", "", nil,
			"CUDA_ERROR_OUT_OF_MEMORY: the GPU has 14915MiB left", 2},
		{"without MPS on an exclusive card", "1Mi --unset-mps", "", "",
			func(n *simulator.Node) error { return n.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess) },
			"CUDA_ERROR_DEVICE_UNAVAILABLE: the compute mode of the GPU is Exclusive_Process", 46},
		{"on an exclusive card", "1Mi", "", "", func(n *simulator.Node) error {
			return n.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess)
		},
			"granted 1MiB of UUID, limit all, threads 100%\n", 0},
		{"a device that the daemon has not", "1Mi --device=1", "", "", nil,
			"CUDA_ERROR_INVALID_DEVICE: device 1: the daemon has 1", 101},
		{"no device node", "1Mi", "", "", func(n *simulator.Node) error {
			return os.Remove(filepath.Join(n.DriverRoot(),
				"dev/nvidia0"))
		},
			"CUDA_ERROR_NO_DEVICE: device 0 of the daemon is UUID, which cannot be opened here", 100},
		{"no size", "--stay", "", "", nil, `size "": want a number of bytes such as 5Gi or 512Mi`, 1},
		{"two sizes", "1Gi 2Gi", "", "", nil, "unknown arguments", 1},
		{"a device that is no number", "1Gi --device=x", "", "", nil, `device "x": want a number`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, uuid, _ := machine(t)
			t.Setenv(mps.ThreadsVariable, tt.threads)
			t.Setenv(mps.MemoryVariable, tt.memory)
			if tt.do != nil {
				must(t, tt.do(n))
			}
			var out strings.Builder
			err := alloc(t.Context(), strings.Fields(tt.args), smi.Machine{Roots: []string{n.DriverRoot()}}, &out)
			got, exit := out.String(), 0
			if err != nil {
				got, exit = err.Error(), exitCode(err)
			}
			if got = strings.ReplaceAll(got, uuid, "UUID"); !strings.HasPrefix(got, tt.want) || exit != tt.exit {
				t.Errorf("got %d %s, want %d %s", exit, got, tt.exit, tt.want)
			}
		})
	}
}

func TestAllocOnAPartition(t *testing.T) {
	for _, tt := range []struct {
		name, args, memory string
		do                 func(n *simulator.Node) error
		want               string
		exit               int
	}{
		{"without MPS", "9Gi --unset-mps", "", nil, "granted 9216MiB of UUID, limit 9984MiB, threads 100%\n", 0},
		{"without MPS, above what it has", "10Gi --unset-mps", "", nil,
			"CUDA_ERROR_OUT_OF_MEMORY: the partition has 9984MiB left", 2},
		{"through MPS", "9Gi", "", nil, "granted 9216MiB of UUID, limit 9984MiB, threads 100%\n", 0},
		{"through MPS, above what it has", "10Gi", "", nil, "CUDA_ERROR_OUT_OF_MEMORY: more than the GPU has left", 2},
		{"above the limit", "2Gi", "0=1G", nil, "CUDA_ERROR_OUT_OF_MEMORY: more than the limit of the client: limit " +
			"1024MiB, held 0MiB", 2},
		{"an exclusive GPU", "1Gi --unset-mps", "", func(n *simulator.Node) error {
			return n.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess)
		},
			"granted 1024MiB of UUID, limit 9984MiB, threads 100%\n", 0},
		{"no partition any more", "1Gi --unset-mps", "", func(n *simulator.Node) error {
			return n.DeletePartition("0",
				"")
		},
			"CUDA_ERROR_INVALID_DEVICE: device 7: there are 7", 101},
		{"none any more, through MPS", "1Gi", "", func(n *simulator.Node) error { return n.DeletePartition("0", "") },
			"CUDA_ERROR_NO_DEVICE: device 0 of the daemon is UUID, which cannot be opened here", 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, uuid := partitioned(t)
			t.Setenv(mps.MemoryVariable, tt.memory)
			if tt.do != nil {
				must(t, tt.do(n))
			}
			args := strings.Fields(tt.args)
			if tt.exit == 101 {
				args = append(args, "--device=7") // the partition was the first of eight devices
			}
			var out strings.Builder
			err := alloc(t.Context(), args, smi.Machine{Roots: []string{n.DriverRoot()}}, &out)
			got, exit := out.String(), 0
			if err != nil {
				got, exit = err.Error(), exitCode(err)
			}
			if got = strings.ReplaceAll(got, uuid, "UUID"); !strings.HasPrefix(got, tt.want) || exit != tt.exit {
				t.Errorf("got %d %s, want %d %s", exit, got, tt.exit, tt.want)
			}
		})
	}
}

func TestProbeOfAPartition(t *testing.T) {
	n, _ := partitioned(t)
	t.Setenv(mps.PipeVariable, "")
	var out strings.Builder
	must(t, probe(t.Context(), smi.Machine{Roots: []string{n.DriverRoot()}}, &out))
	want := "may use 100% of the multiprocessors\n9984 MiB: granted\n9985 MiB: CUDA_ERROR_OUT_OF_MEMORY\n"
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestAllocStays(t *testing.T) {
	n, _, stop := machine(t)
	hold := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			done <- alloc(ctx, []string{"1Gi", "--stay"}, smi.Machine{Roots: []string{n.DriverRoot()}},
				&strings.Builder{})
		}()
		for !strings.Contains(n.String(), fmt.Sprintf("process %d ", os.Getpid())) {
			time.Sleep(time.Millisecond)
		}
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := hold(ctx)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("told to end: %v", err)
	}
	for strings.Contains(n.String(), "process") {
		time.Sleep(time.Millisecond)
	}
	done = hold(t.Context())
	stop()
	var e *cuda.Error
	if err := <-done; !errors.As(err, &e) || e.Name != "CUDA_ERROR_MPS_RPC_FAILURE" {
		t.Errorf("the daemon has gone: %v", err)
	}
}
