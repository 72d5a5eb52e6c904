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

// development ends the content of the file VERSION until that version is released.
const development = "-dev"

// options are the command line.
type options struct {
	output, version, registry, rootfs, release string
	only                                       string // processor of a release; empty: all
}

func main() {
	var o options
	flag.StringVar(&o.output, "output", "_output", "directory for the programs, the layers and images.tar")
	flag.StringVar(&o.version, "version", "", "tag of the images; empty: the content of the file VERSION, "+
		"of a release without "+development)
	flag.StringVar(&o.registry, "push", "", "also push the images below this prefix, such as "+
		"registry.example.com/team, with the login of docker login")
	flag.StringVar(&o.rootfs, "rootfs", "", "make no images, but write what is in each into a folder of its name in "+
		"this directory; the Dockerfile does that")
	flag.StringVar(&o.release, "release", "", "make no archive, but a release for amd64 and arm64, in the directory "+
		"dist, whose images and chart are for this prefix; -push with the same prefix also pushes them")
	flag.StringVar(&o.only, "only", "", "make a release for this processor only, such as "+string(native)+", for tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	start := time.Now()
	if o.version == "" {
		text, err := os.ReadFile("VERSION")
		if err != nil {
			return fmt.Errorf("read the version (run this in the repository root): %w", err)
		}
		o.version = strings.TrimSpace(string(text))
		if o.release != "" {
			o.version = strings.TrimSuffix(o.version, development)
		}
	}
	if o.release != "" {
		return dist(ctx, o)
	}
	bin := filepath.Join(o.output, "bin")
	if err := buildPrograms(ctx, native, bin); err != nil {
		return err
	}
	contents, err := contents(native, bin, o.version)
	if err != nil {
		return err
	}
	if o.rootfs != "" {
		return writeRootfs(o.rootfs, contents)
	}
	if o.registry == "" {
		contents = append(contents, shapes(contents[1])...)
	}
	layers := filepath.Join(o.output, "layers")
	images, err := newImages(contents, layers, o.version)
	if err != nil {
		return err
	}
	if err := prune(layers, images); err != nil {
		return err
	}
	archive := filepath.Join(o.output, "images.tar")
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
	if o.registry == "" {
		return nil
	}
	return push(ctx, o.registry, images)
}
