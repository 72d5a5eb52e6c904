// SPDX-License-Identifier: Apache-2.0

// build compiles libnvidia-ml.so.1 for simulated GPUs. It reads NVML's header in go-nvml and adds a C function for each
// function there.
// usage: build FILE
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// library is the package of the library.
const library = "github.com/gpudra/gpu-dra-driver/simulator/libnvml"

func main() {
	if len(os.Args) != 2 || strings.HasPrefix(os.Args[1], "-") {
		fmt.Fprintln(os.Stderr, "usage: build FILE, such as libnvidia-ml.so.1")
		os.Exit(2)
	}
	if err := build(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// build compiles the library into the file.
func build(file string) error {
	header, err := list("-m", "{{.Dir}}/pkg/nvml/nvml.h", "github.com/NVIDIA/go-nvml")
	if err != nil {
		return err
	}
	dir, err := list("", "{{.Dir}}", library)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(header)
	if err != nil {
		return err
	}
	functions, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", header, err)
	}
	temporary, err := os.MkdirTemp("", "libnvml-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	overlay, err := writeOverlay(temporary, filepath.Join(dir, "functions.c"), source(header, functions))
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-overlay", overlay, "-ldflags",
		"-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1", "-o", file, library)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile %s: %w", file, err)
	}
	// the header that cgo writes beside it is of no use
	if err := os.Remove(cgoHeader(file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// cgoHeader returns the file that go build writes beside the library.
func cgoHeader(file string) string { return strings.TrimSuffix(file, filepath.Ext(file)) + ".h" }

// list returns what go list prints.
func list(flag, format, what string) (string, error) {
	args := []string{"list", "-f", format, what}
	if flag != "" {
		args = []string{"list", flag, "-f", format, what}
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// writeOverlay writes the source text and the file with which go build finds it at the path.
func writeOverlay(dir, path, text string) (string, error) {
	generated, overlay := filepath.Join(dir, "functions.c"), filepath.Join(dir, "overlay.json")
	content, err := json.Marshal(map[string]map[string]string{"Replace": {path: generated}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.WriteFile(generated, []byte(text), 0o600), os.WriteFile(overlay, content, 0o600))
}
