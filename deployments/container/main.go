// SPDX-License-Identifier: Apache-2.0

// Command container builds the images of the driver and of the demos as one OCI archive, without Docker, without a base
// image and without a registry. The same sources on the same machine give the same bytes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// maxArchive keeps the archive something one can copy to a machine: bytes.
const maxArchive = 100 << 20

func main() {
	output := flag.String("output", "_output", "directory for the programs, the layers and images.tar")
	version := flag.String("version", "", "tag of the images; empty: the content of the file VERSION")
	registry := flag.String("push", "", "also push the images below this prefix, such as registry.example.com/team, with the login of docker login")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *output, *version, *registry)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, output, version, registry string) error {
	start := time.Now()
	if version == "" {
		text, err := os.ReadFile("VERSION")
		if err != nil {
			return fmt.Errorf("read the version (run this in the repository root): %w", err)
		}
		version = strings.TrimSpace(string(text))
	}
	bin := filepath.Join(output, "bin")
	if err := buildPrograms(ctx, bin); err != nil {
		return err
	}
	images, err := newImages(bin, filepath.Join(output, "layers"), version)
	if err != nil {
		return err
	}
	if err := prune(filepath.Join(output, "layers"), images); err != nil {
		return err
	}
	archive := filepath.Join(output, "images.tar")
	size, err := writeArchive(archive, images)
	if err != nil {
		return err
	}
	if size > maxArchive {
		return fmt.Errorf("%s has %d MiB, more than the %d MiB allowed", archive, size>>20, maxArchive>>20)
	}
	fmt.Printf("%s: %.1f MiB, %.1f s\n", archive, float64(size)/(1<<20), time.Since(start).Seconds())
	for _, image := range images {
		fmt.Printf("  %s\n", image.name)
	}
	if registry == "" {
		return nil
	}
	return push(ctx, registry, images)
}
