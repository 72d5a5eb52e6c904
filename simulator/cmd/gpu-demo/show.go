// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hostDevices is the directory with the container's device nodes.
const hostDevices = "/dev"

// show prints what the container sees in one write, so that a reader of the log never sees half of it.
func show(ctx context.Context, devices string, out io.Writer) error {
	var b bytes.Buffer
	b.WriteString(listing(ctx))
	nodes, err := deviceNodes(devices)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		b.WriteString("no GPU device node in " + devices + "\n")
	}
	for _, node := range nodes {
		fmt.Fprintf(&b, "%s: %s\n", node, verdict(openNode(node)))
	}
	_, err = out.Write(b.Bytes())
	return err
}

// listing is the output of nvidia-smi -L, or a line with the reason why there is none.
func listing(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a real nvidia-smi may have to wake its GPUs
	defer cancel()
	path, err := exec.LookPath("nvidia-smi")
	if errors.Is(err, exec.ErrNotFound) {
		return "no nvidia-smi in this container\n"
	}
	if err != nil {
		return fmt.Sprintf("nvidia-smi: %v\n", err)
	}
	text, err := exec.CommandContext(ctx, path, "-L").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("nvidia-smi -L: %v\n%s", err, text)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return "nvidia-smi -L lists no GPU\n"
	}
	return strings.TrimRight(string(text), "\n") + "\n"
}

// deviceNodes returns the nodes of GPUs, /dev/nvidiaN, ordered by N, and then those of partitions,
// /dev/nvidia-caps/nvidia-capN.
func deviceNodes(dir string) ([]string, error) {
	var out []string
	for _, pattern := range []string{"nvidia[0-9]*", "nvidia-caps/nvidia-cap[0-9]*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, fmt.Errorf("list device nodes: %w", err)
		}
		slices.SortFunc(paths, func(a, b string) int { return nodeNumber(a) - nodeNumber(b) })
		out = append(out, paths...)
	}
	return out, nil
}

func nodeNumber(path string) int {
	n, err := strconv.Atoi(strings.TrimLeft(filepath.Base(path), "-abcdefghijklmnopqrstuvwxyz"))
	if err != nil {
		return -1
	}
	return n
}
